"""A program's text, and conversions between kinds of places.

offset      characters from the start of the text, from 0: used in this package
line, byte  lines from 1 and bytes of UTF-8 from 0: used in Python's trees
Place       lines and columns from 1: for people
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
    """Python code from a text, possibly joined from several places or with escapes resolved.

    `offsets[i]`: the origin of its character i, with one more for its end.
    """

    code: str
    offsets: Sequence[int]


class Text:
    """The text of a source. Lines end in newlines alone, see `normalized`."""

    def __init__(self, source: Source, shown: str | None = None) -> None:
        """`shown`: a replacement of the same length for parsing; default: the source's text."""
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

    def bad(self, message: str, start: int, end: int | None = None) -> BadProgram:
        """An error at a place of the text."""
        stop = start + 1 if end is None else max(end, start)
        return BadProgram(message, self.place(SourceSpan(start, stop)), self.source)


def normalized(text: str) -> str:
    """The text with only newlines as line ends, as Python reads it; without a byte order mark."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def blanked(text: str, keep: SourceSpan) -> str:
    """The text with blanks outside of a span; line ends and places stay."""
    before = text[: keep.start]
    after = text[keep.end :]
    return _blank(before) + text[keep.start : keep.end] + _blank(after)


def _blank(text: str) -> str:
    return "".join(char if char == "\n" else " " for char in text)
