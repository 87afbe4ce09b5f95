"""What the keeper has under way: tasks that check, load, watch and unload models."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fleet.servers import DidNotStart

_logger = logging.getLogger("fleet")


class BackgroundTasks:
    """Owner of the keeper's tasks. A model has one check or load at a time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._bringing: dict[str, asyncio.Task[None]] = {}

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that is waited for at the end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def bring(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A check or a load, given up when the end comes; within `in_words` all that may fail."""
        self._bringing[name] = self.begin(work)

    def give_up(self) -> None:
        """Cancels checks and loads."""
        for task in self._bringing.values():
            task.cancel()

    async def until_done(self) -> None:
        """Waits for all, and for what they begin meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    @asynccontextmanager
    async def in_words(self, name: str) -> AsyncIterator[None]:
        """Whatever goes wrong within is a DidNotStart: else the model would be coming for ever."""
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
            del self._bringing[name]
