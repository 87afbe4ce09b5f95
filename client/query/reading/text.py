"""A program's text, and the ways in which its places are counted.

offset      characters from the beginning of the text, from 0: how this package counts
line, byte  lines from 1 and bytes of UTF-8 from 0: how Python's trees count
Place       lines and columns from 1: how people count
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from client.query.errors import BadProgram
from client.query.place import Place, Source


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Part of a text; the end is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """Python code that stands in a text, perhaps in pieces or with escapes in it.

    `offsets[i]` is where its character i comes from, with one more for its end.
    """

    code: str
    offsets: Sequence[int]


class Text:
    """The text of a source. Lines end in newlines alone, see `normalized`."""

    def __init__(self, source: Source, shown: str | None = None) -> None:
        """`shown`: what is read for it, of the same length; else the source's text."""
        self.source = source
        self.text = source.text if shown is None else shown
        self._starts = [0]
        self._starts.extend(index + 1 for index, char in enumerate(self.text) if char == "\n")

    def line_of(self, offset: int) -> int:
        """The line of an offset, from 1."""
        return bisect_right(self._starts, offset)

    def column_of(self, offset: int) -> int:
        """The column of an offset, from 0."""
        return offset - self._starts[self.line_of(offset) - 1]

    def offset(self, line: int, column: int) -> int:
        """The offset of a line, from 1, and a column, from 0; held within the line and the text."""
        if line > len(self._starts):
            return len(self.text)
        start = self._starts[max(line, 1) - 1]
        end = self._starts[line] - 1 if line < len(self._starts) else len(self.text)
        return min(start + max(column, 0), end)

    def byte_position(self, offset: int) -> tuple[int, int]:
        """Line, and bytes in front of the offset in it."""
        line = self.line_of(offset)
        start = self._starts[line - 1]
        return line, len(self.text[start:offset].encode("utf-8", "replace"))

    def offset_of_bytes(self, line: int, num_bytes: int) -> int:
        """The offset behind so many bytes of a line."""
        start, end = self.offset(line, 0), self.offset(line, len(self.text))
        raw = self.text[start:end].encode("utf-8", "replace")
        return start + len(raw[:num_bytes].decode("utf-8", "replace"))

    def slice(self, span: SourceSpan) -> Fragment:
        """The text of a span."""
        return Fragment(self.text[span.start : span.end], range(span.start, span.end + 1))

    def place(self, span: SourceSpan) -> Place:
        """A span for people."""
        line, end_line = self.line_of(span.start), self.line_of(span.end)
        column, end_column = self.column_of(span.start) + 1, self.column_of(span.end) + 1
        return Place(line, column, end_line, end_column)

    def bad(self, message: str, start: int, end: int | None = None) -> BadProgram:
        """What is wrong with the text from `start` on."""
        stop = start + 1 if end is None else max(end, start)
        return BadProgram(message, self.place(SourceSpan(start, stop)), self.source)


def normalized(text: str) -> str:
    """The text with newlines alone at the ends of its lines, as Python reads it, and without the
    mark that some editors put in front of a file."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def blanked(text: str, keep: SourceSpan) -> str:
    """The text with nothing but lines outside of a span, so that places stay."""
    before, after = text[: keep.start], text[keep.end :]
    return _blank(before) + text[keep.start : keep.end] + _blank(after)


def _blank(text: str) -> str:
    return "".join(char if char == "\n" else " " for char in text)
