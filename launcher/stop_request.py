"""The wish that everything stop: signals, and the end of the process that it is done for."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from processes.signals import stop_signals

_PARENT_POLL_S = 0.5


class Stopped(Exception):
    """A signal to stop came."""


class StopRequest:
    """Owner of the signals' handlers. `on_signal` is told each signal, and how many came so far."""

    def __init__(self, on_signal: Callable[[signal.Signals, int], None]) -> None:
        self._on_signal = on_signal
        self._asked = asyncio.Event()
        self._num_signals = 0
        self._watching: asyncio.Task[None] | None = None

    def listen(self, parent_pid: int | None) -> None:
        """From here on signals are requests; so is the end of that process, if there is one."""
        loop = asyncio.get_running_loop()
        for signum in stop_signals():
            loop.add_signal_handler(signum, self._take, signum)
        if parent_pid is not None:
            self._watching = asyncio.create_task(self._watch(parent_pid))

    def close(self) -> None:
        """The parent is watched no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def or_stop(self, work: Awaitable[object]) -> None:
        """Await `work`, or raise Stopped as soon as a request has come."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            raise Stopped
        task.result()

    def _take(self, signum: signal.Signals) -> None:
        if self._num_signals and signum is signal.SIGHUP:
            return  # of a terminal that is gone both the shell and the kernel tell
        self._num_signals += 1
        self._asked.set()
        self._on_signal(signal.Signals(signum), self._num_signals)

    async def _watch(self, parent_pid: int) -> None:
        while os.getppid() == parent_pid:  # noqa: ASYNC110 (nothing tells of a parent's end)
            await asyncio.sleep(_PARENT_POLL_S)
        self._take(signal.SIGTERM)
