"""Signals that ask a process to stop, the end of its parent, and work that both cut short."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_PARENT_POLL_S = 0.5
T = TypeVar("T")


class Stopped(Exception):
    """The process was asked to stop."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a process to stop: of a service, a terminal's key, a terminal that is gone.

    The last one not where it is ignored, as `nohup` has it.
    """
    asked = (signal.SIGTERM, signal.SIGINT)
    has_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return asked if has_nohup else (*asked, signal.SIGHUP)


class Signals:
    """The first and the second signal to stop. The end of the parent is a first one.

    So is SIGHUP: a shell and the kernel may both send it when a terminal is gone. To be made in
    the event loop that handles them. `on_first` and `on_second` are called at once, and so is
    `on_hangup`, where there is one: then SIGHUP is no signal to stop.
    """

    def __init__(
        self,
        parent_pid: int | None,
        on_first: Callable[[signal.Signals], None] = lambda number: None,
        on_second: Callable[[], None] = lambda: None,
        on_hangup: Callable[[], None] | None = None,
    ) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        # Whether the parent has ended.
        self.is_orphaned = False
        self._on_first = on_first
        self._on_second = on_second
        self._watching = asyncio.ensure_future(self._watch(parent_pid)) if parent_pid else None
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._note, number)
        if on_hangup is not None:
            loop.add_signal_handler(signal.SIGHUP, on_hangup)

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. Raises Stopped, with `work` cancelled, after a first signal."""
        working = asyncio.create_task(work)
        await first_of(self.first.wait(), working)
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            raise Stopped
        return working.result()

    def close(self) -> None:
        """Stops watching the parent."""
        if self._watching is not None:
            self._watching.cancel()

    def _note(self, number: signal.Signals) -> None:
        if not self.first.is_set():
            self.first.set()
            self._on_first(signal.Signals(number))
        elif number is not signal.SIGHUP:
            self.second.set()
            self._on_second()

    async def _watch(self, parent_pid: int) -> None:
        while os.getppid() == parent_pid:  # noqa: ASYNC110 (no event signals a parent's end)
            await asyncio.sleep(_PARENT_POLL_S)
        self.is_orphaned = True
        self._note(signal.SIGTERM)


def end_when_orphaned(parent_pid: int | None) -> None:
    """Ends this process, at once and from a thread, when that one is its parent no more.

    For work that cannot be interrupted and leaves nothing half done.
    """
    if parent_pid is not None:
        threading.Thread(target=_end, args=(parent_pid,), daemon=True).start()


def _end(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


async def first_of(waiting: Coroutine[Any, Any, object], *tasks: asyncio.Task[Any]) -> None:
    """Returns when one of them is done; `waiting` is then given up, the tasks go on."""
    waiter = asyncio.create_task(waiting)
    await asyncio.wait({waiter, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
