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


class ErrorsWithoutFrames:
    """Around what a door does. Keeps nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TandemError):
            _trim(error)


def _trim(error: BaseException) -> None:
    traceback = None if isinstance(error, TandemError) else _from_outside(error.__traceback__)
    error.__traceback__ = traceback
    if error.__cause__ is not None and error.__cause__ is not error:
        _trim(error.__cause__)


def _from_outside(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_HERE):
        traceback = traceback.tb_next
    return traceback
