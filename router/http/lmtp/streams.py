"""The open streams of one socket, each a task, and the queue of their messages.

    StreamTask.run -> Streams._send -> Outbox -> one task that sends

TOKENs that wait together go out in one frame: with many streams a step's tokens are one message. A
stream whose client reads too slowly waits here, and its sequence is paused.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from router.engine.infer import Infer
from router.http.bodies import ParserThread
from router.http.conversation import AnswerService
from router.http.errors import HttpError
from router.http.lmtp.frames import (
    Frame,
    Message,
    Prompts,
    as_json,
    error_fields,
    error_type_of,
    write_frame,
)
from router.http.request_record import RequestRecord
from router.http.request_validator import RequestValidator
from router.http.schema import Schema, parse_part
from router.http.served_models import ServedModels
from router.http.server_info import ServerInfo
from router.request.errors import Overloaded, RouterError
from router.telemetry.metrics import Metrics

_GATHERED = frozenset({"TOKEN"})
_MAX_FRAME_LEN = 1 << 16
SendText = Callable[[str], Awaitable[None]]
S = TypeVar("S", bound=Schema)
_logger = logging.getLogger(__name__)
ROUTE = "/lmtp"
_RETRY_AFTER_S = 1.0
# When a request is first looked for in the queue, and the longest pause between two looks.
_FIRST_LOOK_S = 0.2
_MAX_PAUSE_S = 2.0
SendMessages = Callable[[Iterable[Message]], Awaitable[None]]
Notify = Callable[[Mapping[str, object]], None]


class Outbox:
    """One socket's queue. `put` waits while more than `max_waiting_len` characters are queued."""

    def __init__(self, max_waiting_len: int) -> None:
        self._max_waiting_len = max_waiting_len
        self._waiting: deque[tuple[str, str]] = deque()
        self._waiting_len = 0
        self._has_work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_closed = False

    async def put(self, command: str, *objects: str) -> None:
        """Queues objects, once there is room. Does nothing after `close`."""
        while not self._has_room.is_set():
            await self._has_room.wait()
        for each in objects:
            self.push(command, each)

    def push(self, command: str, fields: str) -> None:
        """Queues one object without waiting for room: for rare messages."""
        if self._is_closed:
            return
        self._waiting.append((command, fields))
        self._waiting_len += len(fields)
        if self._waiting_len > self._max_waiting_len:
            self._has_room.clear()
        self._is_empty.clear()
        self._has_work.set()

    async def run(self, send: SendText) -> None:
        """Sends until closed. Raises what `send` does, and wakes all that wait then, too."""
        try:
            while not self._is_closed:
                await self._has_work.wait()
                while self._waiting:
                    command, objects = self._next()
                    await send(write_frame(command, objects))
                self._has_work.clear()
                self._is_empty.set()
        finally:
            self.close()

    async def until_empty(self) -> None:
        """Waits until all messages are sent, or the outbox is closed."""
        await self._is_empty.wait()

    def close(self) -> None:
        self._is_closed = True
        self._waiting.clear()
        for event in (self._has_work, self._has_room, self._is_empty):
            event.set()

    def _next(self) -> tuple[str, list[str]]:
        command, first = self._waiting.popleft()
        objects = [first]
        frame_len = len(first)
        while (
            command in _GATHERED
            and self._waiting
            and self._waiting[0][0] == command
            and frame_len + len(self._waiting[0][1]) <= _MAX_FRAME_LEN
        ):
            objects.append(self._waiting.popleft()[1])
            frame_len += len(objects[-1])
        self._waiting_len -= frame_len
        if self._waiting_len <= self._max_waiting_len:
            self._has_room.set()
        return command, objects


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


@dataclass(frozen=True, slots=True)
class LmtpServices:
    infer: Infer
    answers: AnswerService
    validator: RequestValidator
    parser: ParserThread
    prompts: Prompts
    info: ServerInfo
    metrics: Metrics
    limits: SocketLimits

    @property
    def eos_id(self) -> int | None:
        """The model's first end token, if it has one."""
        return next(iter(self.info.limits.eos_token_ids), None)

    @property
    def models(self) -> ServedModels:
        """What `model` may name."""
        return self.answers.models

    async def read(self, frame: Frame, schema: type[S]) -> S:
        """The frame's object as `schema`. Raises InvalidRequest."""
        return await self.parser.run(
            len(frame.text), lambda: parse_part(frame.text, frame.payload, (), schema)
        )


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What one stream needs: `version` is the protocol's, `notify` sends a system message."""

    services: LmtpServices
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
    """Owner of the tasks of a socket's streams, by stream id. Their messages go to `outbox`."""

    def __init__(
        self,
        services: LmtpServices,
        record: RequestRecord,
        headers: list[tuple[bytes, bytes]],
        outbox: Outbox,
    ) -> None:
        self._services = services
        self._record = record
        self._headers = headers
        self._outbox = outbox
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Cancelled by the client, with the last object still to be sent.
        self._cancelled: set[int] = set()
        self.num_started = 0

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._tasks

    async def start(
        self,
        make: Callable[[StreamContext], StreamTask],
        frame: Frame,
        stream_id: int,
        version: int,
        notify: Notify,
    ) -> None:
        """Opens a stream that answers `frame`."""
        assert stream_id not in self._tasks, "the id of an open stream"
        self.num_started += 1
        record = RequestRecord(
            f"{self._record.request_id}/{self.num_started}",
            time.monotonic(),
            is_stream=True,
            key=self._record.key,
            metrics=self._services.metrics,
            model=self._services.info.model_id,
        )
        context = StreamContext(self._services, record, stream_id, version, notify)
        serving = self._serve(context, make(context), frame)
        if len(self._tasks) >= self._services.limits.max_streams:
            # Refused streams are served one by one, so that their tasks are no more than one.
            await serving
        else:
            task = self._tasks[stream_id] = asyncio.create_task(serving)
            task.add_done_callback(lambda _: self._forget(stream_id))

    def cancel(self, stream_id: int) -> None:
        """Cancels a stream for its client; does nothing if it is not open."""
        task = self._tasks.get(stream_id)
        if task is not None and stream_id not in self._cancelled:
            self._cancelled.add(stream_id)
            # Not at once: a task that is cancelled before its first step sends no last object.
            asyncio.get_running_loop().call_soon(task.cancel)

    async def until_empty(self) -> None:
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

    async def _serve(self, context: StreamContext, task: StreamTask, frame: Frame) -> None:
        """Serves one stream to its last object; raises nothing but its own cancellation."""
        record = context.record
        stream_id = context.stream_id
        self._services.validator.open(record, frame.command, ROUTE, self._headers)
        self._services.metrics.socket_streams.add(1)
        send = partial(self._send, deque[Message]())
        try:
            if stream_id not in self._tasks:
                max_streams = self._services.limits.max_streams
                message = f"a socket has at most {max_streams} streams at a time"
                raise Overloaded(message, _RETRY_AFTER_S)
            if frame.fault is not None:
                raise frame.fault
            await self._send_end(stream_id, await task.run(frame, send), send)
        except (RouterError, HttpError) as error:
            record.error_type = error_type_of(error)
            await self._send_end(stream_id, task.fail(error), send)
        except asyncio.CancelledError:
            record.error_type = "cancelled"
            if stream_id not in self._cancelled:
                raise
            await send(task.cancelled())
        except Exception:
            _logger.exception("request_id=%s failed by a bug", record.request_id)
            record.error_type = "internal_error"
            message = f"a bug; the server's log has more under request_id {record.request_id}"
            messages = task.fail(HttpError(500, "internal_error", message))
            await self._send_end(stream_id, messages, send)
        finally:
            self._services.metrics.socket_streams.add(-1)
            record.end(frame.command, ROUTE)

    async def _send(self, unsent: deque[Message], messages: Iterable[Message]) -> None:
        """Queues messages in order; waits while the client reads slowly.

        A cancelled wait leaves the rest in `unsent`, which goes before the next messages.
        """
        unsent.extend(messages)
        while unsent:
            await self._outbox.put(*unsent[0])
            unsent.popleft()

    async def _send_end(self, stream_id: int, end: Iterable[Message], send: SendMessages) -> None:
        """Sends the last messages, even if the client cancels the stream while they wait."""
        try:
            await send(end)
        except asyncio.CancelledError:
            if stream_id not in self._cancelled:
                raise
            await send(())


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
