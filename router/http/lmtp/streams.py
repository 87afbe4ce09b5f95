"""The open streams of a socket, each a task."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from router.http.lmtp.frames import Frame
from router.http.lmtp.stream_encoder import Message
from router.http.server.errors import HttpError
from router.request.errors import RouterError


class Streams:
    """By stream id. Closing it ends them all."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Those that their clients cancelled, which still send their ends.
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._tasks

    def begin(self, stream_id: int, work: Coroutine[Any, Any, None]) -> None:
        """A stream, until `work` is done."""
        assert stream_id not in self._tasks, "the id of an open stream"
        task = asyncio.create_task(work)
        self._tasks[stream_id] = task
        task.add_done_callback(lambda _: self._left(stream_id))

    def cancel(self, stream_id: int) -> None:
        """Ends one at its client's word; nothing if it is not open."""
        task = self._tasks.get(stream_id)
        if task is not None and stream_id not in self._cancelled:
            self._cancelled.add(stream_id)
            # Not at once: a task that is cancelled before its first step never says its end.
            asyncio.get_running_loop().call_soon(task.cancel)

    def was_cancelled(self, stream_id: int) -> bool:
        """Whether an open stream ends at its client's word."""
        return stream_id in self._cancelled

    async def until_empty(self) -> None:
        """Until all have come to their end."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Ends all, which cancels their requests."""
        tasks = list(self._tasks.values())
        self._cancelled.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _left(self, stream_id: int) -> None:
        del self._tasks[stream_id]
        self._cancelled.discard(stream_id)


SendMessages = Callable[[Iterable[Message]], Awaitable[None]]

Notify = Callable[[Mapping[str, object]], None]


class StreamTask(Protocol):
    """Answers one frame with objects; the last of them ends the stream.

    What it has handed to `send` goes out before its end, even if it is cancelled meanwhile.
    """

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Runs to the end, which the caller sends. Raises RouterError, HttpError for `fail`."""

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The bad end."""

    def cancelled(self) -> list[Message]:
        """The end that the client asked for."""
