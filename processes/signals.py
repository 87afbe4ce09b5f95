"""Who asks the process to stop, how often, and work that is given up when somebody does."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

_PARENT_POLL_S = 0.5
T = TypeVar("T")


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a process to stop: of a service, a terminal's key, a terminal that is gone.

    The last one not where it is ignored, as `nohup` has it.
    """
    asked = (signal.SIGTERM, signal.SIGINT)
    has_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return asked if has_nohup else (*asked, signal.SIGHUP)


class Signals:
    """The first and the second signal to stop. The end of the parent is a first one.

    So is SIGHUP: of a terminal that is gone both the shell and the kernel tell.

    To be made in the event loop that is to hear of them.
    """

    def __init__(self, parent_pid: int | None) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._watching = asyncio.ensure_future(self._watch(parent_pid)) if parent_pid else None
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._note, number)

    def _note(self, number: signal.Signals) -> None:
        is_second = self.first.is_set() and number is not signal.SIGHUP
        (self.second if is_second else self.first).set()

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
