"""One socket, from its handshake to its close.

    frames in -> Commands, or a stream of its own -> Outbox -> frames out

A session ends when the client leaves or breaks the protocol, or when the server stops. Then its
streams are cancelled, which cancels their requests, and its buffers are gone.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Send

from router.http.lmtp.beams import BeamStream
from router.http.lmtp.commands import Commands
from router.http.lmtp.frames import (
    Frame,
    MalformedFrame,
    Message,
    as_json,
    error_fields,
    error_type_of,
    read_frame,
    stream_id_of,
)
from router.http.lmtp.generate import GenerateStream
from router.http.lmtp.outbox import Outbox
from router.http.lmtp.prompts import Buffers
from router.http.lmtp.score import ScoreStream
from router.http.lmtp.streams import (
    LmtpServices,
    SendMessages,
    StreamContext,
    Streams,
    StreamTask,
    draining_notice,
)
from router.http.request_validator import RequestRecord
from router.http.server.errors import HttpError
from router.request.errors import InvalidRequest, Overloaded, RouterError
from router.telemetry.metrics import FRAMES

_logger = logging.getLogger(__name__)

ROUTE = "/lmtp"
_STREAM_TASKS: Mapping[str, Callable[[StreamContext], StreamTask]] = {
    "GENERATE": GenerateStream,
    "SCORE": ScoreStream,
    "BEAMS": BeamStream,
}
_INTERNAL_ERROR = 1011
# Bytes of a frame that takes a millisecond to read.
_LONG_FRAME_LEN = 1 << 16
_MAX_REASON_LEN = 123
_RETRY_AFTER_S = 1.0
# The time to write the last messages when the server stops.
_FLUSH_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class SocketClose:
    """The code and reason with which the server closes a socket."""

    code: int
    reason: str


class Session:
    """Owner of one socket's streams, buffers and outbox. `record` is that of the handshake."""

    def __init__(
        self,
        services: LmtpServices,
        record: RequestRecord,
        headers: list[tuple[bytes, bytes]],
        receive: Receive,
        send: Send,
    ) -> None:
        self._services = services
        self._record = record
        self._headers = headers
        self._receive = receive
        self._send = send
        self._streams = Streams()
        self._outbox = Outbox(services.limits.max_waiting_len)
        self._buffers = Buffers(services.limits.buffers)
        self._commands = Commands(services, self._buffers)
        self._closing: asyncio.Future[SocketClose | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._num_streams = 0
        self._num_frames = 0

    @property
    def version(self) -> int:
        """The version of the protocol that the client asked for."""
        return self._commands.version

    async def run(self) -> None:
        """Accepts the handshake, and serves until the close."""
        await self._send({"type": "websocket.accept"})
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        try:
            close = await self._closing
        finally:
            reading.cancel()
            await self._streams.close()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            self._record.socket |= {
                "version": self.version,
                "num_frames": self._num_frames,
                "num_streams": self._num_streams,
            }
        if close is not None:
            self._record.socket |= {"close_code": close.code}
            await self._close(close)

    def notify(self, fields: Mapping[str, object]) -> None:
        """Sends a system message; version 1 has none."""
        if self.version > 1:
            self._outbox.push("SYS", as_json(fields))

    async def end(self, close: SocketClose) -> None:
        """Closes the socket once its streams have ended and all is sent, or after a timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self._streams.until_empty()
                await self._outbox.until_empty()
        self._end(close)

    def _end(self, close: SocketClose | None) -> None:
        if not self._closing.done():
            self._closing.set_result(close)

    async def _close(self, close: SocketClose) -> None:
        reason = close.reason.encode()[:_MAX_REASON_LEN].decode(errors="ignore")
        try:
            await self._send({"type": "websocket.close", "code": close.code, "reason": reason})
        except OSError:
            return  # the client has left

    async def _write(self) -> None:
        try:
            await self._outbox.run(self._send_text)
        except OSError:
            return  # `_read` sees the disconnect
        except Exception as error:  # noqa: BLE001 (it is logged)
            self._fail(error)

    async def _send_text(self, text: str) -> None:
        await self._send({"type": "websocket.send", "text": text})

    async def _read(self) -> None:
        try:
            while True:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    self._record.socket |= {"close_code": message.get("code")}
                    self._end(None)
                    return
                if message["type"] == "websocket.receive":
                    frame = read_frame(message.get("text"))
                    if len(frame.text) > _LONG_FRAME_LEN:
                        # Reading it took long: other tasks may run before it is answered.
                        await asyncio.sleep(0)
                    await self._dispatch(frame)
        except MalformedFrame as error:
            self._record.error_type = "no_frame"
            self._end(SocketClose(error.code, str(error)))
        except Exception as error:  # noqa: BLE001 (it is logged)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        _logger.error("request_id=%s failed by a bug", self._record.request_id, exc_info=error)
        self._record.error_type = "internal_error"
        self._end(SocketClose(_INTERNAL_ERROR, "a bug; the server's log has more"))

    async def _dispatch(self, frame: Frame) -> None:
        self._num_frames += 1
        known = frame.command if frame.command in FRAMES else "other"
        self._services.metrics.socket_frames.inc(known)
        try:
            stream_id = stream_id_of(frame)
        except InvalidRequest as error:
            await self._refuse(None, error)
            return
        if frame.command == "CANCEL":
            self._streams.cancel(stream_id)
        elif frame.command in _STREAM_TASKS:
            await self._start_stream(stream_id, frame)
        else:
            await self._answer(stream_id, frame)

    async def _answer(self, stream_id: int, frame: Frame) -> None:
        try:
            fields = await self._commands.answer(frame)
        except (RouterError, HttpError) as error:
            await self._refuse(stream_id, error)
        else:
            await self._outbox.put("MSG", as_json({"stream_id": stream_id, **fields}))
            if frame.command == "HELLO" and self._services.infer.is_draining:
                self.notify(draining_notice())

    async def _refuse(self, stream_id: int | None, error: RouterError | HttpError) -> None:
        fields = {"stream_id": stream_id, **error_fields(error)}
        await self._outbox.put("MSG", as_json(fields))

    async def _start_stream(self, stream_id: int, frame: Frame) -> None:
        if stream_id in self._streams:
            message = f"stream {stream_id} is open; take another id, or this one when it has ended"
            error = HttpError(409, "stream_in_use", message, field="stream_id")
            await self._refuse(stream_id, error)
            return
        self._num_streams += 1
        record = RequestRecord(
            f"{self._record.request_id}/{self._num_streams}",
            time.monotonic(),
            is_stream=True,
            metrics=self._services.metrics,
            model=self._services.info.model_id,
        )
        context = StreamContext(
            *(self._services, self._buffers, record, stream_id, self.version, self.notify)
        )
        serving = self._serve(context, _STREAM_TASKS[frame.command](context), frame)
        if len(self._streams) >= self._services.limits.max_streams:
            # Refused streams are served one by one, so that their tasks are no more than one.
            await serving
        else:
            self._streams.start(stream_id, serving)

    async def _serve(self, context: StreamContext, task: StreamTask, frame: Frame) -> None:
        """Serves one stream to its last object; raises nothing but its own cancellation."""
        record, stream_id = context.record, context.stream_id
        self._services.validator.open(record, frame.command, ROUTE, self._headers)
        self._services.metrics.socket_streams.add(1)
        send = partial(self._send_behind, deque[Message]())
        try:
            if stream_id not in self._streams:
                max_streams = self._services.limits.max_streams
                message = f"a socket has at most {max_streams} streams at a time"
                raise Overloaded(message, _RETRY_AFTER_S)
            await self._send_end(stream_id, await task.run(frame, send), send)
        except (RouterError, HttpError) as error:
            record.error_type = error_type_of(error)
            await self._send_end(stream_id, task.fail(error), send)
        except asyncio.CancelledError:
            record.error_type = "cancelled"
            if not self._streams.was_cancelled(stream_id):
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

    async def _send_behind(self, unsent: deque[Message], messages: Iterable[Message]) -> None:
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
            if not self._streams.was_cancelled(stream_id):
                raise
            await send(())
