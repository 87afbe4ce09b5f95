"""Lines of code, counted alike for a query program and a Python baseline.

A physical line counts unless it is blank, a comment, part of a docstring, an import, or prompt text
alone: a string literal on a line of its own, or one that is added to a variable, with no hole and
nothing filled in. Brackets that are alone on their line count for nothing either, so that the
formatter has no say.
"""

import io
import re
import tokenize
from pathlib import Path

_TEXT_ONLY = re.compile(r"""(\w+ \+= )?[rf]{0,2}("[^"]*"|'[^']*'),?""")
_FILLED_IN = re.compile(r"(?<!\[)\[[A-Z_]+[\]:]|(?<!\{)\{(?!\{)")
_BRACKETS = re.compile(r"[][(){},:]+")
_IMPORT = re.compile(r"(from \S+ )?import ")


def lines_of_code(source: str) -> int:
    """How many lines of the text count."""
    kept = source.splitlines()
    for number in _docstring_lines(source):
        kept[number - 1] = ""
    return sum(_counts(line.strip()) for line in kept)


def of_files(*paths: Path) -> int:
    """The sum over files."""
    return sum(lines_of_code(path.read_text()) for path in paths)


def _counts(line: str) -> bool:
    if not line or line.startswith("#") or _IMPORT.match(line) or _BRACKETS.fullmatch(line):
        return False
    return not _TEXT_ONLY.fullmatch(line) or _FILLED_IN.search(line) is not None


def _docstring_lines(source: str) -> set[int]:
    """Lines of strings in triple quotes."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and token.string.startswith('"""'):
            found.update(range(token.start[0], token.end[0] + 1))
    return found
