"""What goes wrong with a query, raised without the frames of who reads and runs it.

    in the error's traceback    who asked, and the door that they asked at
    in that of its cause        the program's own lines, and what these called

An error points into its program. What was under way in here says nothing more about it, and is
dozens of lines. Mistakes of our own are no TandemErrors, and keep their frames.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from client.errors import TandemError

_HERE = f"{Path(__file__).parents[1]}{os.sep}"


class TrimmedTracebacks:
    """Around what a door does. Keeps nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TandemError):
            _trim(error)


def _trim(error: BaseException) -> None:
    trimmed: set[int] = set()
    cause: BaseException | None = error
    # Causes may go round where a program raises again what it caught before.
    while cause is not None and id(cause) not in trimmed:
        trimmed.add(id(cause))
        traceback = None if isinstance(cause, TandemError) else _from_outside(cause.__traceback__)
        cause.__traceback__ = traceback
        cause = cause.__cause__


def _from_outside(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_HERE):
        traceback = traceback.tb_next
    return traceback
