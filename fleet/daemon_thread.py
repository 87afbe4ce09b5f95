"""Calls that may take long, in threads that nobody waits for when the process ends.

The event loop's own threads are joined at its end, and the interpreter's at its: one that waits for
a network would hold up both.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Cancelled, it goes on, and nobody is told what came of it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(tell: Callable[[], None]) -> None:
        if not done.done():
            tell()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (it is raised where it is waited for)
            # A library's panic or exit is an end of its work, not of the process.
            broken = RuntimeError(f"{type(error).__name__}: {error}")
            failure = error if isinstance(error, Exception) else broken
            tell: Callable[[], None] = lambda: done.set_exception(failure)  # noqa: E731
        else:
            tell = lambda: done.set_result(result)  # noqa: E731
        # A loop that is closed by now has nobody to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, tell)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await done
