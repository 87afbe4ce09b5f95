"""Tasks that run what users wrote, ended whatever that catches.

    cancelled   it cleans up and has ended       nearly always
    then closed `within_s` later, where somebody swallows CancelledError: what cleans up does so
                as far as it awaits nothing; a warning says where it stood

A helper of the program's author that tries again for ever is no part of the program's text, in
which `reading/closing.py` sees to it that runs end. Whoever cancels a query is not to wait for it.
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
_SHOWN_FRAMES = 3
_LIBRARIES = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[2]}{os.sep}",
)
# What stands in a frame by the prefix of its attributes, and the one that says what it awaits.
_AWAITS = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}


class CancellationSwallowed(RuntimeWarning):
    """Code that a program awaits goes on where the program's run is over."""


async def end(task: asyncio.Task[Any], within_s: float = CLOSING_S) -> None:
    """Cancel it, and wait until it has ended; what it raises meanwhile is nobody's.

    One that goes on for so long is broken off, and so is one whose end nobody waits for any more.
    """
    task.add_done_callback(_look_at)
    task.cancel()
    try:
        await asyncio.wait({task}, timeout=within_s)
        if not task.done():
            _warn(_stack(task.get_coro()), within_s)
    finally:
        if not task.done():
            _break_off(task)
    await asyncio.wait({task}, timeout=within_s)


def _look_at(task: asyncio.Task[Any]) -> None:
    """An exception that nobody looks at is logged."""
    if not task.cancelled():
        task.exception()


def _break_off(task: asyncio.Task[Any]) -> None:
    """GeneratorExit where it stands; woken then, the task finds its coroutine at its end."""
    coroutine: Any = task.get_coro()
    with contextlib.suppress(Exception, asyncio.CancelledError):
        coroutine.close()
    task.cancel()


def _warn(stack: list[FrameType], within_s: float) -> None:
    """Shown at the line of whoever wrote the program that goes on, not of what it awaits.

    No frame shows which of them caught the error.
    """
    shown = [frame for frame in stack if not _is_library(frame)] or stack
    message = (
        f"a program's code goes on {within_s:g} s after its run was cancelled, and is broken off; "
        "who swallows CancelledError? It stands in "
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
    """Whether the code is Python's own, an installed package's or ours."""
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def _message_frame(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({code.co_filename}:{frame.f_lineno})"


def _stack(awaiting: Any) -> list[FrameType]:
    """Where a coroutine stands, and what it awaits: the innermost one last."""
    frames: list[FrameType] = []
    while kind := next((kind for kind in _AWAITS if hasattr(awaiting, f"{kind}_frame")), None):
        frame = getattr(awaiting, f"{kind}_frame")
        if frame is not None:
            frames.append(frame)
        awaiting = getattr(awaiting, _AWAITS[kind])
    return frames
