"""Attaches places in programs to errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from client.errors import TandemError
from client.query.errors import QueryError
from client.query.place import Place, Source
from client.query.program import Program
from client.query.reading.program_errors import as_query_error

_SHOWN_LEN = 80


def shortened(value: object) -> str:
    """A value for a message, shortened if it is long."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_LEN else f"{shown[:_SHOWN_LEN]}…"


def locate(error: QueryError, place: Place, source: Source) -> None:
    """Set the source of an error, and its place unless it has one."""
    if error.source is None:
        error.source = source
        error.place = error.place or place


@contextmanager
def located_errors(find: Callable[[Exception], Program]) -> Iterator[None]:
    """Context: converts exceptions of a program's own code to errors with places.

    `find` returns the program that raised an exception.
    """
    try:
        yield
    except TandemError:
        raise
    except Exception as error:
        raise as_query_error(error, find(error)) from error
