"""Threads for work that would hold up the event loop, and the end of a process that has panicked.

A panic of a library in Rust leaves its locks poisoned: each further call fails, while the process
seems well. So it is the end of the process, by the signal that stops it, sent twice: its clients
get their last events, and whoever started it starts another one.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_logger = logging.getLogger(__name__)
# Of two signals that come together, a process notices one.
_BETWEEN_SIGNALS_S = 0.5

T = TypeVar("T")


class NoThreads(Exception):
    """The system lets this process start no further thread."""


class WorkerThreads:
    """So many threads, which start with the first work, or with `start`."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    def start(self) -> None:
        """Starts all of them now, so that none is missing later. Raises NoThreads."""
        together = threading.Barrier(self._num_threads)
        try:
            waiting = [self._pool.submit(together.wait) for _ in range(self._num_threads)]
        except RuntimeError as error:
            together.abort()
            raise NoThreads(f"no thread can be started ({self._name}): {error}") from error
        for each in waiting:
            each.result()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, or raises. A panic ends the process."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._guarded, work)

    def do(self, work: Callable[[], T]) -> T:
        """What `work` returns, or raises, a panic too: the caller waits for it."""
        return self._pool.submit(work).result()

    def close(self) -> None:
        """What has not begun is given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _guarded(work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException as error:
            stop_on_panic(error)
            raise


def stop_on_panic(error: BaseException) -> None:
    """Begins to stop the process if that is a panic of a library in Rust; else does nothing."""
    # Each library has a class of its own, that is no Exception and cannot be imported.
    if type(error).__name__ == "PanicException":
        _logger.critical("a library panicked, and can no longer be used: %s", error)
        threading.Thread(target=_stop, name="panic", daemon=True).start()


def _stop() -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_BETWEEN_SIGNALS_S)
