"""What can be wrong with a query, as a tree; each points into the program where it can.

QueryError
    BadProgram          the text is no program: syntax, an unknown clause, a hole without a name
    BadCondition        a `where` that means nothing: types, an operator under `not`
    Unsatisfiable       no text can satisfy a hole's `where`, or none within its tokens
    NotSatisfied        checks at the end failed on every try; `last_value` is what came last
    ProgramFailed       the program's own code raised; `__cause__` is what
"""

import unicodedata

from client.errors import TandemError
from client.query.place import Place, Source


class QueryError(TandemError):
    """The root. `str()` shows the program's line with a caret, if the place is known."""

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
        place, source = self.place, self.source
        head = f"{source.name}:{place.line + source.first_line - 1}:{place.column}: {self.message}"
        lines = source.text.split("\n")
        if not 1 <= place.line <= len(lines):
            return head
        line = lines[place.line - 1]
        end = place.end_column if place.end_line == place.line else len(line) + 1
        before, marked = line[: place.column - 1], line[place.column - 1 : end - 1]
        caret = "^" * max(1, sum(map(_width, marked)))
        return f"{head}\n    {line}\n    {''.join(map(_blank, before))}{caret}"


def _blank(char: str) -> str:
    """As much room as the character has, so that a caret stands below what it is about."""
    return char if char == "\t" else " " * _width(char)


def _width(char: str) -> int:
    """The columns of a terminal that it takes."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class BadProgram(QueryError):
    """The text is no program."""


class BadCondition(QueryError):
    """A `where` clause that means nothing."""


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
    """The program's own code raised; the cause is what."""
