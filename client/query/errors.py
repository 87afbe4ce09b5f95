"""The errors of queries; each has a place in the program if known.

Their tracebacks are without internal frames, which add nothing but dozens of lines to the place:

    in the error's traceback    the caller, and the public function called
    in that of its cause        the program's own lines, and the functions they called

Bugs are no TandemErrors and keep their frames.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.cells import cell_len

from client.errors import TandemError


@dataclass(frozen=True, slots=True)
class Source:
    """A program's text and where it came from: a path, or a name in angle brackets.

    `first_line`: the line of the file at which the text begins, counted from 1.
    """

    text: str
    name: str
    first_line: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Lines and columns of the program's text, counted from 1; the end column is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


_QUOTED = re.compile(r"'(\w+)'")


def unknown_name(error: BaseException) -> str | None:
    """The name of a NameError; None: another error."""
    if not isinstance(error, NameError):
        return None
    quoted = _QUOTED.search(str(error))
    return quoted[1] if quoted else None


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or "" if no known name is similar."""
    names = sorted(set(known) - {name})
    close = get_close_matches(name, names, n=1)
    close += [each for each in names if each.lower() == name.lower()]
    return f"; did you mean `{close[0]}`?" if close else ""


def meant_by(error: BaseException, known: Iterable[str]) -> str:
    """`meant` for the name of a NameError; "" for other errors."""
    name = unknown_name(error)
    if name is not None:
        return meant(name, known)
    if isinstance(error, AttributeError) and isinstance(error.name, str):
        public = (each for each in dir(error.obj) if not each.startswith("_"))
        return meant(error.name, public)
    return ""


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
        caret = "^" * max(1, sum(map(cell_len, marked)))
        return f"{head}\n    {line}\n    {''.join(map(_blank, before))}{caret}"


def _blank(char: str) -> str:
    """Blanks of the same width, to align the caret."""
    return char if char == "\t" else " " * cell_len(char)


class BadProgram(QueryError):
    """The text is not a valid program: syntax, a second clause, a hole without a name."""


class BadCondition(QueryError):
    """A `where` clause is invalid: types, an operator under `not`."""


class Unsatisfiable(QueryError):
    """No text can satisfy the `where` of a hole, or none within its tokens."""


class NotSatisfied(QueryError):
    """Checks at the end of a hole failed on every try; `last_value`: of the last one."""

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


_HERE = f"{Path(__file__).parents[1]}{os.sep}"


class TrimmedTracebacks:
    """Context manager around public functions."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TandemError):
            _trim(error)


def _trim(error: BaseException) -> None:
    trimmed: set[int] = set()
    cause: BaseException | None = error
    # Causes may form a cycle if a program raises a caught exception again.
    while cause is not None and id(cause) not in trimmed:
        trimmed.add(id(cause))
        traceback = None if isinstance(cause, TandemError) else _from_outside(cause.__traceback__)
        cause.__traceback__ = traceback
        cause = cause.__cause__


def _from_outside(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_HERE):
        traceback = traceback.tb_next
    return traceback
