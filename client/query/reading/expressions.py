"""Parses parts of a program with Python's parser; nodes get their places in the program."""

import ast
import re
import warnings
from collections.abc import Sequence

from client.query.errors import BadProgram
from client.query.reading.nodes import CALLS
from client.query.reading.text import Fragment, Text

# Errors of Python's parser: syntax, null bytes and lone surrogates, too deep nesting.
_REFUSALS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)

# Syntax of other languages.
_FOREIGN = {
    "//": "; a comment begins with #, // divides",
    "&&": "; write `and` for &&",
    "||": "; write `or` for ||",
}

_SHOUTED = re.compile(r"\b(?:AND|OR|NOT|IN|IS)\b")
_STRING = re.compile(r"""(['"]).*?\1""")

# Nodes with a place.
PLACED = (
    ast.expr,
    ast.stmt,
    ast.arg,
    ast.keyword,
    ast.alias,
    ast.excepthandler,
    ast.pattern,
    *([ast.type_param] if hasattr(ast, "type_param") else []),
)


def expression(text: Text, fragment: Fragment, what: str) -> ast.expr:
    """An expression, possibly on several lines. `what`: its name in messages."""
    if not fragment.code.strip():
        raise text.bad(f"{what}: an expression is missing", fragment.offsets[0])
    tree = _parsed(text, fragment, ("(", "\n)"), "eval", what)
    assert isinstance(tree, ast.Expression)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            check_is_free(text, node)
    return tree.body


def check_is_free(text: Text, node: ast.Name) -> None:
    """Raises BadProgram for a name that generated code reserves."""
    if node.id.startswith(CALLS):
        start = text.offset_of_bytes(node.lineno, node.col_offset)
        end = text.offset_of_bytes(node.end_lineno or node.lineno, node.end_col_offset or 0)
        raise text.bad(f"the name {node.id} is taken", start, end)


def statements(text: Text, fragment: Fragment) -> list[ast.stmt]:
    """Statements, indented or not; the fragment begins at a line start."""
    is_indented = next((line for line in fragment.code.split("\n") if _is_code(line)), "")[:1] in (
        " ",
        "\t",
    )
    prefix = "if 1:\n" if is_indented else ""
    tree = _parsed(text, fragment, (prefix, ""), "exec", "")
    assert isinstance(tree, ast.Module)
    if not is_indented:
        return tree.body
    block = tree.body[0]
    assert isinstance(block, ast.If)
    strays = [*tree.body[1:], *block.orelse]
    if strays:
        offset = text.offset_of_bytes(strays[0].lineno, 0)
        raise text.bad("this line stands further left than the program begins", offset)
    return block.body


def _is_code(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#")


def _parsed(
    text: Text, fragment: Fragment, around: tuple[str, str], mode: str, what: str
) -> ast.AST:
    code = around[0] + fragment.code + around[1]
    lines = _Lines(text, code, len(around[0]), fragment.offsets)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code, mode=mode)
    except _REFUSALS as error:
        raise _refused(text, lines, fragment, error, what) from None
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            lines.place(node)
    return tree


class _Lines:
    """Positions in parsed code to offsets of the text."""

    def __init__(self, text: Text, code: str, num_before: int, offsets: Sequence[int]) -> None:
        self._text = text
        self._code = code.split("\n")
        self._starts = [0]
        for line in self._code:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._num_before = num_before
        self._offsets = offsets

    def offset(self, line: int, column: int) -> int:
        """`column` counts characters, from 0."""
        return self._offsets[self._index(line, column)]

    def end_offset(self, line: int, column: int) -> int:
        """The offset behind the last character before the column."""
        index = self._index(line, column)
        return self._offsets[index - 1] + 1 if index else self._offsets[0]

    def line(self, number: int) -> str:
        """The text of a line, from 1."""
        return self._code[min(max(number, 1), len(self._code)) - 1]

    def _index(self, line: int, column: int) -> int:
        index = self._starts[min(max(line, 1), len(self._code)) - 1] + column - self._num_before
        return min(max(index, 0), len(self._offsets) - 1)

    def _characters(self, line: int, num_bytes: int) -> int:
        raw = self._code[min(line, len(self._code)) - 1].encode("utf-8", "replace")
        return len(raw[: max(num_bytes, 0)].decode("utf-8", "replace"))

    def place(self, node: ast.AST) -> None:
        """Set a node's place to that in the text."""
        assert isinstance(node, PLACED)
        start = self.offset(node.lineno, self._characters(node.lineno, node.col_offset))
        end_line = node.end_lineno or node.lineno
        end_bytes = node.end_col_offset or 0
        end = max(self.end_offset(end_line, self._characters(end_line, end_bytes)), start)
        node.lineno, node.col_offset = self._text.byte_position(start)
        node.end_lineno, node.end_col_offset = self._text.byte_position(end)


def _refused(
    text: Text, lines: _Lines, fragment: Fragment, error: Exception, what: str
) -> BadProgram:
    head = f"{what}: " if what else ""
    if not isinstance(error, SyntaxError):
        said = str(error) or "the code is nested too deeply"
        return text.bad(head + said, fragment.offsets[0])
    line = error.lineno or 1
    column = (error.offset or 1) - 1
    start = lines.offset(line, column)
    end_line = error.end_lineno or line
    end_column = (error.end_offset or 0) - 1
    end = lines.end_offset(end_line, end_column) if end_column > 0 else start + 1
    hint = _hint(lines.line(line), text.text[start - 1 : start])
    return text.bad(head + error.msg + hint, start, max(end, start + 1))


def _hint(line: str, before: str) -> str:
    """A hint if an invalid line has the syntax of another language.

    before: the character before the error
    """
    for sign, hint in _FOREIGN.items():
        if sign in line:
            return hint
    shouted = _SHOUTED.search(_STRING.sub("", line))
    if shouted is not None:
        return f"; write `{shouted[0].lower()}` for {shouted[0]}"
    if before in ('"', "'"):
        return f"; the string ends here, at {before}: write \\{before} for the sign itself"
    return ""
