"""Calls on the event loop's thread from another one, which keeps the interpreter's lock meanwhile.

`call_soon_threadsafe` lets go of the lock to wake the loop, and the caller may wait long until it
has it again. Here the loop wakes up, and gets the lock when the caller lets go of it anyway.
"""

import asyncio
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable

# Foreign functions of a PyDLL are called with the lock held.
_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


class LoopCaller:
    """Made on the thread of a running loop, and lives no longer than that."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        reading, self._writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(self._writing, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(reading, _run, reading, self._calls)
        weakref.finalize(self, _end, loop, reading, self._writing)

    def call(self, function: Callable[[], None]) -> None:
        """From any thread."""
        self._calls.append(function)
        # A full pipe will wake the loop as well.
        _write(self._writing, b"\0", 1)


def _run(reading: int, calls: deque[Callable[[], None]]) -> None:
    os.read(reading, 4096)
    while calls:
        calls.popleft()()


def _end(loop: asyncio.AbstractEventLoop, reading: int, writing: int) -> None:
    """On whatever thread lets go of the caller last."""
    if loop.is_closed():
        _close(reading, writing)
    else:
        loop.call_soon_threadsafe(_forget, loop, reading, writing)


def _forget(loop: asyncio.AbstractEventLoop, reading: int, writing: int) -> None:
    # A loop that goes on takes another file of this number for the same one, and never looks at it.
    loop.remove_reader(reading)
    _close(reading, writing)


def _close(*files: int) -> None:
    for file in files:
        os.close(file)
