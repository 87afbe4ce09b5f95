"""A program's text, its tokens and its strings, and conversions between kinds of places.

offset      characters from the start of the text, from 0: used in this package
line, byte  lines from 1 and bytes of UTF-8 from 0: used in Python's trees
Place       lines and columns from 1: for people

Clauses are not valid Python, so Python's tokenizer reads the text as if in brackets, where it
ignores indentation. Logical lines are determined here.
"""

import ast
import io
import re
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from client.query.errors import BadProgram, Place, Source


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Part of a text; the end is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """Python code from a text, possibly joined from several places or with escapes resolved.

    `offsets[i]`: the origin of its character i, with one more for its end.
    """

    code: str
    offsets: Sequence[int]


class Text:
    """The text of a source. Lines end in newlines alone, see `normalized`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self._starts = [0]
        self._starts.extend(index + 1 for index, char in enumerate(self.text) if char == "\n")

    def line_of(self, offset: int) -> int:
        """The line of an offset, from 1."""
        return bisect_right(self._starts, offset)

    def column_of(self, offset: int) -> int:
        """The column of an offset, from 0."""
        return offset - self._starts[self.line_of(offset) - 1]

    def offset(self, line: int, column: int) -> int:
        """The offset of a line (from 1) and a column (from 0), clamped to the line and the text."""
        if line > len(self._starts):
            return len(self.text)
        start = self._starts[max(line, 1) - 1]
        end = self._starts[line] - 1 if line < len(self._starts) else len(self.text)
        return min(start + max(column, 0), end)

    def byte_position(self, offset: int) -> tuple[int, int]:
        """The line of an offset, and the bytes before it in the line."""
        line = self.line_of(offset)
        start = self._starts[line - 1]
        return line, len(self.text[start:offset].encode("utf-8", "replace"))

    def offset_of_bytes(self, line: int, num_bytes: int) -> int:
        """The offset behind so many bytes of a line."""
        start = self.offset(line, 0)
        end = self.offset(line, len(self.text))
        raw = self.text[start:end].encode("utf-8", "replace")
        return start + len(raw[:num_bytes].decode("utf-8", "replace"))

    def slice(self, span: SourceSpan) -> Fragment:
        return Fragment(self.text[span.start : span.end], range(span.start, span.end + 1))

    def place(self, span: SourceSpan) -> Place:
        line = self.line_of(span.start)
        end_line = self.line_of(span.end)
        column = self.column_of(span.start) + 1
        end_column = self.column_of(span.end) + 1
        return Place(line, column, end_line, end_column)

    def bad(self, message: str, where: SourceSpan | int) -> BadProgram:
        """An error at a place of the text, or at the character of an offset."""
        span = SourceSpan(where, where + 1) if isinstance(where, int) else where
        return BadProgram(message, self.place(span), self.source)


def normalized(text: str) -> str:
    """The text with only newlines as line ends, as Python reads it; without a byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def blank(text: str) -> str:
    """Blanks in place of all but line ends."""
    return "".join(char if char == "\n" else " " for char in text)


NAME = tokenize.NAME
STRING = tokenize.STRING
OP = tokenize.OP
_SKIPPED = {tokenize.COMMENT, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT}
_BREAKS = {tokenize.NL, tokenize.NEWLINE}
_CLOSING = {")": "(", "]": "[", "}": "{"}
# Python 3.12 and later split f-strings into tokens.
_STARTS = {getattr(tokenize, name, None) for name in ("FSTRING_START", "TSTRING_START")} - {None}
_ENDS = {getattr(tokenize, name, None) for name in ("FSTRING_END", "TSTRING_END")} - {None}


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    depth:  the number of enclosing brackets
    begins: whether it is the first one of a logical line
    indent: the column of that line
    """

    kind: int
    text: str
    start: int
    end: int
    depth: int
    begins: bool
    indent: int

    def is_name(self, *names: str) -> bool:
        """Whether it is one of these words outside of brackets, in lower or upper case."""
        return (
            self.kind == NAME
            and self.depth == 0
            and (self.text.islower() or self.text.isupper())
            and self.text.lower() in names
        )

    def is_op(self, *texts: str) -> bool:
        return self.kind == OP and self.text in texts


def tokens_of(text: Text, region: SourceSpan) -> list[Token]:
    """The tokens of a region, without comments and line ends. Raises BadProgram."""
    made: list[Token] = []
    open_brackets: list[tuple[str, int]] = []
    begins = True
    indent = 0
    for kind, shown, start, end in _joined(text, region):
        if kind in _BREAKS:
            begins = begins or not open_brackets
            continue
        if kind in _SKIPPED or not shown:
            continue
        if kind == tokenize.ERRORTOKEN:
            raise _unreadable(text, shown, start)
        if begins:
            indent = text.column_of(start)
        if kind == OP and shown in _CLOSING:
            _close(text, open_brackets, shown, start)
        made.append(Token(kind, shown, start, end, len(open_brackets), begins, indent))
        if kind == OP and shown in _CLOSING.values():
            open_brackets.append((shown, start))
        begins = False
    if open_brackets:
        sign, offset = open_brackets[-1]
        raise text.bad(f"'{sign}' is never closed", offset)
    return made


def _close(text: Text, open_brackets: list[tuple[str, int]], sign: str, offset: int) -> None:
    if not open_brackets:
        raise text.bad(f"'{sign}' closes nothing", offset)
    opened, _ = open_brackets.pop()
    if opened != _CLOSING[sign]:
        raise text.bad(f"'{sign}' cannot close '{opened}'", offset)


def _unreadable(text: Text, shown: str, offset: int) -> BadProgram:
    if not shown.strip():
        # Python's tokenizer stops before the spaces in front of an invalid character.
        rest = text.text[offset:]
        offset += len(rest) - len(rest.lstrip())
        shown = text.text[offset : offset + 1] or " "
    if shown.lstrip("rRbBuUfF")[:1] in {"'", '"'}:
        return text.bad("a string that is not closed on its line", offset)
    return text.bad(f"the character {shown[0]!r} means nothing here", offset)


def _joined(text: Text, region: SourceSpan) -> Iterator[tuple[int, str, int, int]]:
    """Kind, text, start and end; an f-string is one string."""
    depth = 0
    begin = 0
    for kind, shown, start, end in _raw(text, region):
        if kind in _STARTS:
            begin = begin if depth else start
            depth += 1
        elif kind in _ENDS:
            depth -= 1
            if not depth:
                yield STRING, text.text[begin:end], begin, end
        elif not depth:
            yield kind, shown, start, end


def _raw(text: Text, region: SourceSpan) -> Iterator[tuple[int, str, int, int]]:
    before = blank(text.text[: region.start])
    after = blank(text.text[region.end :])
    wrapped = f"(\n{before}{text.text[region.start : region.end]}{after}\n)"
    last = 2 + text.line_of(len(text.text))
    try:
        for token in tokenize.generate_tokens(io.StringIO(wrapped).readline):
            if 1 < token.start[0] < last:
                start = text.offset(token.start[0] - 1, token.start[1])
                end = text.offset(token.end[0] - 1, token.end[1])
                yield token.type, token.string, start, end
    except (tokenize.TokenError, SyntaxError) as error:
        if "multi-line statement" in str(error):
            return  # a bracket is open, see `tokens_of`
        raise _refused(text, region, error) from None


def _refused(
    text: Text, region: SourceSpan, error: tokenize.TokenError | SyntaxError
) -> BadProgram:
    if isinstance(error, SyntaxError):
        message = error.msg
        line = error.lineno or 1
        column = (error.offset or 1) - 1
    else:
        message = error.args[0]
        line, column = error.args[1]
    offset = min(text.offset(line - 1, column), max(region.end - 1, region.start))
    if "multi-line string" in message or "triple-quoted" in message:
        return text.bad("a string in three quotes that is never closed", offset)
    if "string" in message:
        return text.bad("a string that is not closed on its line", offset)
    return text.bad(message, offset)


_LITERAL = re.compile(r"([A-Za-z]*)('''|\"\"\"|'|\")")
_ONE_LINE = re.compile(r"(?:[^\n\\]|\\.)*", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^{}]+\}|.)", re.DOTALL
)


def literal_of(text: Text, tokens: tuple[Token, ...]) -> Fragment:
    """The joined value of adjacent literals, with escapes resolved. Raises BadProgram.

    Content in braces of f-strings is left unchanged.
    """
    chars: list[str] = []
    offsets: list[int] = []
    for token in tokens:
        content = content_of(token)
        body = text.text[content.start : content.stop]
        prefix, quotes = _opening(token).groups()
        one_line = _ONE_LINE.match(body)
        if len(quotes) == 1 and one_line is not None and one_line.end() < len(body):
            # Before 3.12 Python's tokens include line ends behind an escaped backslash.
            raise text.bad("the string does not end on its line", content.start + one_line.end())
        if "r" in prefix.lower():
            chars.extend(body)
            offsets.extend(content)
        else:
            _unescape(text, body, content.start, chars, offsets)
    offsets.append(tokens[-1].end)
    return Fragment("".join(chars), offsets)


def _opening(token: Token) -> re.Match[str]:
    """The prefix of a literal, and its quotes."""
    match = _LITERAL.match(token.text)
    assert match is not None
    return match


def content_of(token: Token) -> range:
    """The offsets between the quotes."""
    opening = _opening(token)
    return range(token.start + opening.end(), token.end - len(opening[2]))


def is_prompt_literal(token: Token) -> bool:
    """Whether it is a string and not bytes."""
    match = _LITERAL.match(token.text)
    return match is not None and "b" not in match[1].lower()


def _unescape(text: Text, body: str, start: int, chars: list[str], offsets: list[int]) -> None:
    """Append the characters that a literal means, and where each comes from."""
    end = 0
    for match in _ESCAPE.finditer(body):
        made = _meaning(match[0])
        if made is None:
            what = f"the escape {match[0]!r} is not complete, or no character"
            raise text.bad(what, start + match.start())
        chars.extend(body[end : match.start()])
        offsets.extend(range(start + end, start + match.start()))
        chars.extend(made)
        # Python knows no such escape, as in "\d": it means its two characters.
        is_itself = made == match[0]
        where = range(start + match.start(), start + match.end())
        offsets.extend(where if is_itself else [start + match.start()] * len(made))
        end = match.end()
    chars.extend(body[end:])
    offsets.extend(range(start + end, start + len(body)))


def _meaning(escape: str) -> str | None:
    """The value of an escape; None: it is malformed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return str(ast.literal_eval(f'"""{escape}"""'))
    except (SyntaxError, ValueError):
        return None
