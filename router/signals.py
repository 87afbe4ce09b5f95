"""Who asks the process to stop, how often, and work that is given up when somebody does."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

_PARENT_POLL_S = 0.5
T = TypeVar("T")


class Signals:
    """The first and the second SIGTERM or SIGINT. The end of the parent is a first one.

    To be made in the event loop that is to hear of them.
    """

    def __init__(self, parent_pid: int | None) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._watching = asyncio.ensure_future(self._watch(parent_pid)) if parent_pid else None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note)

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    async def _watch(self, parent_pid: int) -> None:
        while os.getppid() == parent_pid:  # noqa: ASYNC110 (nothing tells of a parent's end)
            await asyncio.sleep(_PARENT_POLL_S)
        self.first.set()


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None, and `work` cancelled, when `stop` is set before."""
    working = asyncio.create_task(work)
    await first_of(stop.wait(), working)
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return None
    return working.result()


async def first_of(waiting: Coroutine[Any, Any, object], *tasks: asyncio.Task[Any]) -> None:
    """Returns when one of them is done; `waiting` is then given up, the tasks go on."""
    waiter = asyncio.create_task(waiting)
    await asyncio.wait({waiter, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
