"""Removes internal frames from the tracebacks of query errors.

    in the error's traceback    the caller, and the public function called
    in that of its cause        the program's own lines, and the functions they called

An error has its place in the program; internal frames add nothing but dozens of lines. Bugs are no
TandemErrors and keep their frames.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from client.errors import TandemError

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
