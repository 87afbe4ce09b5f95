"""Errors and their places in programs."""

from typing import TypeVar

from client.errors import TandemError
from client.query.errors import QueryError
from client.query.place import Place, Source
from client.query.program import Program
from client.query.reading.blame import blame

ErrorT = TypeVar("ErrorT", bound=QueryError)


def located(error: ErrorT, place: Place, source: Source) -> ErrorT:
    """The error, pointing into the program: at its own place, or at this one if it has none."""
    if error.source is None:
        error.source = source
        error.place = error.place or place
    return error


def blamed(program: Program, error: Exception) -> TandemError:
    """What a body raised, as an error that points into the program; our own errors as they are."""
    if isinstance(error, TandemError):
        return error
    return blame(error, program)
