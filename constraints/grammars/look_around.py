r"""Look-around and word boundaries in a schema's pattern (ECMA 262), which the engine lacks.

^(?=.*[a-z])(?!.*x).{8,}$   ->  three patterns that hold together: conjuncts()
^(?!.*x)                    ->  a pattern of its automaton: without_look_around()
"""

import re
import sys
import unicodedata
from functools import lru_cache

from constraints.errors import NotEnforced
from constraints.grammars.pattern_escapes import Dialect
from constraints.grammars.pattern_parser import PatternParser
from constraints.grammars.patterns import Chars, Pattern
from constraints.grammars.state_elimination import pattern_of
from constraints.where.code_points import NUM_CODE_POINTS, Ranges
from constraints.where.regex_dfa import matches

_MAX_STATES = 400
_LOOKS = re.compile(r"\(\?<?[=!]|\\[bB]")
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_GROUP = re.compile(r"\(\?<(?![=!])(?P<name>[^>]*)>|\((?:\?(?:<?[=!]|[a-z-]*[:)]))?")
_REFERENCE = re.compile(r"\\(?:k<(?P<name>[^>]*)>|(?P<number>[1-9][0-9]*))")


def conjuncts(pattern: str) -> list[str]:
    """Patterns that are all found where this one is: its leading look-aheads, and the rest."""
    ahead, rest = _leading(pattern)
    found = [f"^(?{sign}{inner})" if sign == "!" else f"^(?:{inner})" for sign, inner in ahead]
    return [*found, rest] if rest != "^" or not found else found


def opposites(pattern: str) -> list[str]:
    """Patterns of which at least one is found where this one is not."""
    ahead, rest = _leading(pattern)
    missed = [inner if sign == "!" else f"(?!{inner})" for sign, inner in ahead]
    found = [f"^(?:{each})" for each in missed]
    return [*found, rf"^(?![\s\S]*(?:{rest}))"] if rest != "^" or not found else found


def _leading(pattern: str) -> tuple[list[tuple[str, str]], str]:
    """The leading look-aheads, `=` or `!` with what is inside, and the pattern without them."""
    found = []
    rest = 1
    opened = depth = 0
    for token in _TOKEN.finditer(pattern, rest):
        if token[0] == "(":
            opened = opened if depth else token.start()
            depth += 1
        elif token[0] == ")":
            depth -= 1
            if depth == 0 and opened == rest and pattern[rest : rest + 3] in ("(?=", "(?!"):
                found.append((pattern[rest + 2], pattern[rest + 3 : token.start()]))
                rest = token.end()
        elif token[0] == "|" and depth == 0:
            return [], pattern
    is_split = pattern.startswith("^") and not pattern.startswith(("*", "+", "?", "{"), rest)
    return (found, f"^{pattern[rest:]}") if is_split else ([], pattern)


def looks_around(pattern: str) -> bool:
    """Whether a pattern is rewritten by its automaton, which takes up to 0.1 s."""
    return _LOOKS.search(pattern) is not None


@lru_cache(maxsize=64)
def without_look_around(pattern: str) -> Pattern | None:
    """A pattern of the whole texts in which this one is found. None: there are none.

    Raises OutOfReach, NotEnforced.
    """
    return pattern_of(matches(rf"(?s:.*)(?:{for_python(pattern)})(?s:.*)", _MAX_STATES))


def for_python(pattern: str) -> str:
    """The same pattern for `re.search`. Raises Malformed, NotEnforced."""
    return _Rewriter(pattern, Dialect.ECMA).rewritten()


class _Rewriter(PatternParser):
    """Rewrites a pattern of ECMA 262 in Python's syntax, item by item."""

    def rewritten(self) -> str:
        """The same pattern for `re.search`. Raises Malformed, NotEnforced."""
        pieces = []
        while self._at < len(self._text):
            pieces.append(self._item())
        return "".join(pieces)

    def _item(self) -> str:
        start = self._at
        if self._repeat_bounds(start) is not None:
            return self._text[start : self._at]
        char = self._peek()
        if char == "(":
            return self._opening()
        found = _REFERENCE.match(self._text, start)
        if found:
            self._at = found.end()
            name = found["name"] or found["number"]
            # A group that has not matched yet counts as empty.
            return f"(?({name})(?P={name}))" if found["name"] else rf"(?({name})\{name})"
        self._at += 1
        match char:
            case "|" | ")":
                return char
            case "^" | "$":
                return r"\A" if char == "^" else r"\Z"
            case "\\" if self._peek() in ("b", "B"):
                self._at += 1
                return rf"(?a:\{self._text[self._at - 1]})"
            case "\\":
                read = self._class_or_code(start)
                return _written(read if isinstance(read, Chars) else Chars(((read, read),)))
            case "[":
                return _written(self._set(start))
            case ".":
                return _written(self._dot())
        return _written(Chars(((ord(char), ord(char)),)))

    def _opening(self) -> str:
        found = _GROUP.match(self._text, self._at)
        assert found is not None, "a parenthesis is a group by itself"
        self._at = found.end()
        return found[0] if found["name"] is None else f"(?P<{found['name']}>"

    def _add_class(self, chars: Chars, ranges: list[tuple[int, int]], named: list[str]) -> None:
        ranges.extend(_ranges(chars))


def _written(chars: Chars) -> str:
    inner = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in _ranges(chars))
    return f"[{inner}]" if inner else "(?!)"


def _ranges(chars: Chars) -> Ranges:
    """The characters of a set, in order."""
    members = list(chars.ranges)
    for name in chars.named:
        members.extend(_category(name.removeprefix(r"\p{").removesuffix("}")))
    if not chars.negated:
        return tuple(sorted(members))
    rest = []
    begin = 0
    for first, last in sorted(members):
        if begin < first:
            rest.append((begin, first - 1))
        begin = max(begin, last + 1)
    return (*rest, (begin, NUM_CODE_POINTS - 1)) if begin < NUM_CODE_POINTS else tuple(rest)


@lru_cache(maxsize=32)
def _category(name: str) -> Ranges:
    """The characters of one of Unicode's general categories, such as L and Lu."""
    ranges: list[tuple[int, int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(name):
            first = ranges.pop()[0] if ranges and ranges[-1][1] == code - 1 else code
            ranges.append((first, code))
    if not ranges:
        raise NotEnforced(f"`\\p{{{name}}}` is not known beside what looks around")
    return tuple(ranges)
