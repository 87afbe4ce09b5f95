"""The open streams of a socket, each a task: what it is made of, and its queue messages."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from router.engine.infer import Infer
from router.http.lmtp.frames import Frame, Message, as_json, error_fields
from router.http.lmtp.prompts import BufferLimits, Buffers, Prompts
from router.http.request_validator import RequestRecord, RequestValidator
from router.http.server.errors import HttpError
from router.http.server_info import ServerInfo
from router.request.errors import RouterError
from router.telemetry.metrics import Metrics

# When a request is first looked for in the queue, and the longest pause between two looks.
_FIRST_LOOK_S = 0.2
_MAX_PAUSE_S = 2.0

SendMessages = Callable[[Iterable[Message]], Awaitable[None]]
Notify = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """The limits of one socket; `max_beams` is that of one beam search.

    Clients get `max_message_len` (bytes) in HELLO; the connection enforces it. Of messages that a
    client does not read at most `max_waiting_len` characters are kept.
    """

    max_message_len: int = 1 << 23
    max_streams: int = 256
    max_beams: int = 32
    max_waiting_len: int = 1 << 16
    buffers: BufferLimits = field(default_factory=BufferLimits)


@dataclass(frozen=True, slots=True)
class LmtpServices:
    """The services that all sockets share."""

    infer: Infer
    validator: RequestValidator
    prompts: Prompts
    info: ServerInfo
    metrics: Metrics
    limits: SocketLimits

    @property
    def eos_id(self) -> int | None:
        """The model's first end token, if it has one."""
        return next(iter(self.info.limits.eos_token_ids), None)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What one stream needs: `version` is the protocol's, `notify` sends a system message."""

    services: LmtpServices
    buffers: Buffers
    record: RequestRecord
    stream_id: int
    version: int
    notify: Notify

    def error(self, error: RouterError | HttpError) -> list[Message]:
        """An error object, which clients of either version read."""
        return [("TOKEN", as_json({"stream_id": self.stream_id, **error_fields(error)}))]


class StreamTask(Protocol):
    """Answers one frame with objects; the last of them ends the stream.

    What it hands to `send` goes out before its end, even if it is cancelled meanwhile.
    """

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """The last objects, which the caller sends. Raises RouterError, HttpError for `fail`."""

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The last objects of a stream that fails."""

    def cancelled(self) -> list[Message]:
        """The last objects of a stream that its client cancelled."""


class Streams:
    """The tasks of a socket's streams by stream id."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Cancelled by the client, with the last object still to be sent.
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._tasks

    def start(self, stream_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Opens a stream, until `work` is done."""
        assert stream_id not in self._tasks, "the id of an open stream"
        task = asyncio.create_task(work)
        self._tasks[stream_id] = task
        task.add_done_callback(lambda _: self._forget(stream_id))

    def cancel(self, stream_id: int) -> None:
        """Cancels a stream for its client; does nothing if it is not open."""
        task = self._tasks.get(stream_id)
        if task is not None and stream_id not in self._cancelled:
            self._cancelled.add(stream_id)
            # Not at once: a task that is cancelled before its first step sends no last object.
            asyncio.get_running_loop().call_soon(task.cancel)

    def was_cancelled(self, stream_id: int) -> bool:
        """Whether its client cancelled an open stream."""
        return stream_id in self._cancelled

    async def until_empty(self) -> None:
        """Waits until all streams have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Cancels all streams, and so their requests."""
        tasks = list(self._tasks.values())
        self._cancelled.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, stream_id: int) -> None:
        del self._tasks[stream_id]
        self._cancelled.discard(stream_id)


def draining_notice() -> Mapping[str, object]:
    """The system message of a server that stops."""
    message = "the server stops: nothing new is taken, what runs may finish"
    return {"stream_id": None, "state": "draining", "message": message}


class QueueNotices:
    """System messages of one request that waits: its place in the queue, and that it starts.

    `place`: 1 for the next request; None once it has started. A request that starts soon gets no
    message.
    """

    def __init__(self, context: StreamContext, place: Callable[[], int | None]) -> None:
        self._context = context
        self._place = place
        self._sent_place: int | None = None
        self._pause_s = _FIRST_LOOK_S
        self._timer = self._schedule()

    def started(self) -> None:
        """The request has started; to be called before its first token is sent."""
        self._timer.cancel()
        if self._sent_place is not None:
            self._sent_place = None
            self._context.notify({"stream_id": self._context.stream_id, "state": "running"})

    def close(self) -> None:
        """Sends no more messages."""
        self._timer.cancel()

    def _schedule(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def _look(self) -> None:
        place = self._place()
        if place is None:
            self.started()
            return
        if place != self._sent_place:
            self._sent_place = place
            before = "nothing is" if place == 1 else f"{place - 1} are"
            notice = {"stream_id": self._context.stream_id, "state": "queued", "place": place}
            self._context.notify(notice | {"message": f"the request waits, {before} before it"})
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        self._timer = self._schedule()
