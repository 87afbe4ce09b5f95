"""The tokens of a program.

Clauses are not valid Python, so Python's tokenizer reads the text as if in brackets, where it
ignores indentation. Logical lines are determined here.
"""

import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from client.query.errors import BadProgram
from client.query.reading.text import SourceSpan, Text, blanked

NAME = tokenize.NAME
STRING = tokenize.STRING
OP = tokenize.OP
_SKIPPED = {tokenize.COMMENT, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT}
_BREAKS = {tokenize.NL, tokenize.NEWLINE}
_CLOSING = {")": "(", "]": "[", "}": "{"}
# Signs that Python does not have, and replacements for tokenizing.
_MEANT = {
    "!": "; write `not`",
    **dict.fromkeys("\u201c\u201d\u201e\u2018\u2019", "; strings have \" or ' around them"),
}
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


def beside_code(text: Text, region: SourceSpan) -> list[str]:
    """The strings and comments of a region. Raises BadProgram."""
    kinds = (STRING, tokenize.COMMENT)
    return [shown for kind, shown, _, _ in _joined(text, region) if kind in kinds]


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
    if shown[:1] == "\\":
        return text.bad("a backslash with something behind it on its line", offset)
    hint = _MEANT.get(shown[0], "")
    return text.bad(f"the character {shown[0]!r} means nothing here{hint}", offset)


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
    wrapped = f"(\n{blanked(text.text, region)}\n)"
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
