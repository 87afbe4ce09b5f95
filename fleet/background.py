"""Work beside requests: the model manager's tasks, and blocking calls in daemon threads."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fleet.errors import DidNotStart

_logger = logging.getLogger("fleet")

T = TypeVar("T")


class BackgroundTasks:
    """Owner of the model manager's tasks. A model has at most one check or load at a time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._loads: dict[str, asyncio.Task[None]] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that `wait` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_load(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a check or a load, which `cancel_loads` cancels; it enters `loading`."""
        self._loads[name] = self.start(work)

    def cancel_loads(self) -> None:
        """Cancel all checks and loads."""
        for task in self._loads.values():
            task.cancel()

    async def wait(self) -> None:
        """Wait for all tasks, and for those that they start meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    @asynccontextmanager
    async def loading(self, name: str) -> AsyncIterator[None]:
        """Turn every error into DidNotStart, or the model would be loading for ever."""
        try:
            yield
        except DidNotStart:
            raise
        except asyncio.CancelledError as error:
            raise DidNotStart("the server is shutting down") from error
        except Exception as error:
            _logger.exception("loading %s failed by a bug", name)
            raise DidNotStart("a bug; the server's log has more") from error
        finally:
            del self._loads[name]


async def run_in_daemon_thread(call: Callable[[], T]) -> T:
    """The result of a blocking call in a thread that nothing joins.

    The event loop's own threads are joined when it ends, and the interpreter's when that does: a
    thread that waits for a network would delay both. If the task is cancelled, the call goes on and
    its result is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        elif isinstance(error, Exception):
            done.set_exception(error)
        else:
            # A library's panic or exit ends its call, not the process.
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 (raised where it is awaited)
            failure = error
        # The loop may be closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=run, name="background", daemon=True).start()
    return await done
