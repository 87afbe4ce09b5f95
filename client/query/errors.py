"""The errors of queries, as a tree; each has a place in the program if known.

QueryError
    BadProgram          invalid program: syntax, an unknown clause, a hole without a name
    BadCondition        invalid `where`: types, an operator under `not`
    Unsatisfiable       no text can satisfy a hole's `where`, or none within its tokens
    NotSatisfied        checks failed on every try; `last_value`: of the last try
    ProgramFailed       the program's own code raised; `__cause__`: its exception
"""

import unicodedata

from client.errors import TandemError
from client.query.place import Place, Source


class QueryError(TandemError):
    """The base class. `str()` shows the program's line with a caret, if the place is known."""

    def __init__(
        self, message: str, place: Place | None = None, source: Source | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.source = source

    def __str__(self) -> str:
        if self.place is None or self.source is None:
            return self.message
        place = self.place
        source = self.source
        head = f"{source.name}:{place.line + source.first_line - 1}:{place.column}: {self.message}"
        lines = source.text.split("\n")
        if not 1 <= place.line <= len(lines):
            return head
        line = lines[place.line - 1]
        end = place.end_column if place.end_line == place.line else len(line) + 1
        before = line[: place.column - 1]
        marked = line[place.column - 1 : end - 1]
        caret = "^" * max(1, sum(map(_width, marked)))
        return f"{head}\n    {line}\n    {''.join(map(_blank, before))}{caret}"


def _blank(char: str) -> str:
    """Blanks of the same width, to align the caret."""
    return char if char == "\t" else " " * _width(char)


def _width(char: str) -> int:
    """The number of columns in a terminal."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class BadProgram(QueryError):
    """The text is not a valid program."""


class BadCondition(QueryError):
    """A `where` clause is invalid."""


class Unsatisfiable(QueryError):
    """No text can satisfy the `where` of a hole, or none within its tokens."""


class NotSatisfied(QueryError):
    """Checks at the end of a hole failed on every try."""

    def __init__(
        self,
        message: str,
        last_value: object,
        place: Place | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(message, place, source)
        self.last_value = last_value


class ProgramFailed(QueryError):
    """The program's own code raised; `__cause__` is its exception."""
