"""Errors and their places in programs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from client.errors import TandemError
from client.query.errors import QueryError
from client.query.place import Place, Source
from client.query.program import Program
from client.query.reading.program_errors import as_query_error

_SHOWN_LEN = 80


def shortened(value: object) -> str:
    """A value for a message: its beginning, if it is long."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_LEN else f"{shown[:_SHOWN_LEN]}…"


def locate(error: QueryError, place: Place, source: Source) -> None:
    """Point an error into the program: at its own place, or at this one if it has none."""
    if error.source is None:
        error.source = source
        error.place = error.place or place


@contextmanager
def located_errors(find: Callable[[Exception], Program]) -> Iterator[None]:
    """What a program's own code raises here, as an error that points into it; ours as they are.

    `find` gives the program from which an exception comes.
    """
    try:
        yield
    except TandemError:
        raise
    except Exception as error:
        raise as_query_error(error, find(error)) from error
