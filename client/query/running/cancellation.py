"""Ends tasks that run user code, even if that catches CancelledError.

cancelled   it cleans up and ends            nearly always
broken off  `within_s` later, or once it `goes_on`, if it swallows CancelledError: clean-up code
            may run as far as it awaits nothing; a warning shows where it was
"""

import asyncio
import contextlib
import os
import sysconfig
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

CLOSING_S = 10.0
_BROKEN_OFF_S = 0.1
_SHOWN_FRAMES = 3
_LIBRARIES = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[2]}{os.sep}",
)
# By prefix of the attributes of a coroutine type, the attribute with what it awaits.
_AWAITS = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}


class CancellationSwallowed(RuntimeWarning):
    """Code that a program awaits continues after the program's run was cancelled."""


async def end(
    task: asyncio.Task[Any],
    within_s: float = CLOSING_S,
    goes_on: "asyncio.Future[None] | None" = None,
) -> None:
    """Cancel a task and wait for its end; its exceptions are ignored.

    If it takes too long or `goes_on`, or if the wait itself is cancelled, the task is aborted.
    """
    task.add_done_callback(_look_at)
    task.cancel()
    try:
        awaited: set[asyncio.Future[Any]] = {task} if goes_on is None else {task, goes_on}
        await asyncio.wait(awaited, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            _warn(_stack(task.get_coro()))
    finally:
        if not task.done():
            _break_off(task)
    # What swallows even this stays behind, at a hole that nobody fills.
    await asyncio.wait({task}, timeout=_BROKEN_OFF_S)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that it is not logged."""
    if not task.cancelled():
        task.exception()


def _break_off(task: asyncio.Task[Any]) -> None:
    """Raise GeneratorExit in its coroutine, and wake up the task, which then ends."""
    coroutine: Any = task.get_coro()
    with contextlib.suppress(Exception, asyncio.CancelledError):
        coroutine.close()
    task.cancel()


def _warn(stack: list[FrameType]) -> None:
    """Warn at the line of the user code that continues, not of the library code it awaits.

    The frame that caught the error is unknown.
    """
    shown = [frame for frame in stack if not _is_library(frame)] or stack
    message = (
        "a program's code goes on after its run was cancelled, and is broken off; who "
        "swallows CancelledError? It stands in "
        + " > ".join(_message_frame(frame) for frame in shown[-_SHOWN_FRAMES:])
    )
    if not shown:
        warnings.warn(f"{message}code that has no frames", CancellationSwallowed, stacklevel=2)
        return
    frame = shown[-1]
    warnings.warn_explicit(
        message,
        CancellationSwallowed,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_library(frame: FrameType) -> bool:
    """Whether the code belongs to Python, an installed package or this one."""
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def _message_frame(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({code.co_filename}:{frame.f_lineno})"


def _stack(awaiting: Any) -> list[FrameType]:
    """The frames of a coroutine and of what it awaits, innermost last."""
    frames: list[FrameType] = []
    while kind := next((kind for kind in _AWAITS if hasattr(awaiting, f"{kind}_frame")), None):
        frame = getattr(awaiting, f"{kind}_frame")
        if frame is not None:
            frames.append(frame)
        awaiting = getattr(awaiting, _AWAITS[kind])
    return frames
