"""LMTP's sockets, each a session from its handshake to its close.

    frames in -> HELLO, MODEL_INFO, or a stream of its own -> Outbox -> frames out

A session ends when the client leaves or breaks the protocol, or when the server stops. Then its
streams are cancelled, which cancels their requests.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from router.http.errors import Dialect, HttpError, Problem
from router.http.lmtp.beams import BeamStream
from router.http.lmtp.frames import (
    Frame,
    HelloFields,
    ModelInfoFields,
    SocketClose,
    as_json,
    error_fields,
    read_frame,
    stream_id_of,
)
from router.http.lmtp.generate import MAX_STOPS, MAX_TOP_LOGPROBS, GenerateStream
from router.http.lmtp.score import ScoreStream
from router.http.lmtp.streams import LmtpServices, Outbox, StreamContext, Streams, StreamTask
from router.http.request_record import RequestRecord
from router.http.schema import parse_part
from router.request.errors import RouterError, wrong
from router.telemetry.metrics import CLOSE_CODES, FRAMES

_logger = logging.getLogger(__name__)
VERSION = 2
FEATURES = (
    "text", "messages", "constraint", "stop", "output", "cancel", "scores", "system_messages",
    "errors", "beams",
)  # fmt: skip
DRAINING: Mapping[str, object] = {
    "stream_id": None,
    "state": "draining",
    "message": "the server stops: nothing new is taken, what runs may finish",
}
_STREAM_TASKS: Mapping[str, Callable[[StreamContext], StreamTask]] = {
    "GENERATE": GenerateStream,
    "SCORE": ScoreStream,
    "BEAMS": BeamStream,
}
_INTERNAL_ERROR = 1011
_MAX_REASON_LEN = 123
# The time to write the last messages when the server stops.
_FLUSH_TIMEOUT_S = 2.0
_PATHS = frozenset({"/", "/lmtp", "/lmtp/"})
_GOING_AWAY = 1001
_LOST = 1006


class Session:
    """Owner of one socket's streams, outbox and version. `record` is that of the handshake."""

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
        self._receive = receive
        self._send = send
        self._outbox = Outbox(services.limits.max_waiting_len)
        self._streams = Streams(services, record, headers, self._outbox)
        self._closing: asyncio.Future[SocketClose | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._num_frames = 0
        # The version of the protocol that the client asked for.
        self._version = 1

    async def run(self) -> None:
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
                "version": self._version,
                "num_frames": self._num_frames,
                "num_streams": self._streams.num_started,
            }
        if close is not None:
            self._record.socket |= {"close_code": close.code}
            reason = str(close).encode()[:_MAX_REASON_LEN].decode(errors="ignore")
            with suppress(OSError):  # the client has left
                await self._send({"type": "websocket.close", "code": close.code, "reason": reason})

    def notify(self, fields: Mapping[str, object]) -> None:
        """Sends a system message; version 1 has none."""
        if self._version > 1:
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
                    text = message.get("text")
                    parser = self._services.parser
                    read = partial(read_frame, text, parser.bounds)
                    frame = await parser.run(len(text or ""), read)
                    await self._dispatch(frame)
        except SocketClose as close:
            self._record.error_type = "no_frame"
            self._end(close)
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
        stream_id: int | None = None
        try:
            stream_id = stream_id_of(frame)
            if frame.command == "CANCEL":
                self._streams.cancel(stream_id)
            elif (make := _STREAM_TASKS.get(frame.command)) is None:
                if frame.fault is not None:
                    raise frame.fault
                await self._reply(stream_id, self._answer(frame))
                if frame.command == "HELLO" and self._services.infer.is_draining:
                    self.notify(DRAINING)
            elif stream_id in self._streams:
                message = (
                    f"stream {stream_id} is open; take another id, or this one when it has ended"
                )
                raise HttpError(409, "stream_in_use", message, field="stream_id")
            else:
                await self._streams.start(make, frame, stream_id, self._version, self.notify)
        except (RouterError, HttpError) as error:
            await self._reply(stream_id, error_fields(error))

    async def _reply(self, stream_id: int | None, fields: Mapping[str, object]) -> None:
        await self._outbox.put("MSG", as_json({"stream_id": stream_id, **fields}))

    def _answer(self, frame: Frame) -> Mapping[str, object]:
        """The fields of the reply to a frame without a stream. Raises RouterError, HttpError."""
        if frame.command == "HELLO":
            return {"hello": self._hello(frame)}
        if frame.command == "MODEL_INFO":
            return {"model_info": self._model_info(frame)}
        raise HttpError(404, "unknown_command", f"Unknown command: {frame.command}")

    def _hello(self, frame: Frame) -> Mapping[str, object]:
        version = parse_part(frame.text, frame.payload, (), HelloFields).version
        if version is not None and version < 1:
            raise wrong("version", "must be at least 1", version)
        self._version = VERSION if version is None else min(version, VERSION)
        info = self._services.info
        limits = self._services.limits
        models = self._services.models
        return {
            "version": self._version,
            "server": f"tandem {info.version}",
            "models": [info.model_id, *(adapter.name for adapter in models.adapters)],
            "eos_token_ids": list(info.limits.eos_token_ids),
            "vocab_size": info.limits.vocab_size,
            "max_input_len": info.limits.max_input_len,
            "max_total_len": info.limits.max_total_len,
            "max_message_len": limits.max_message_len,
            "max_streams": limits.max_streams,
            "max_top_logprobs": MAX_TOP_LOGPROBS,
            "max_stops": MAX_STOPS,
            "max_beams": limits.max_beams,
            "features": [
                feature
                for feature in FEATURES
                if feature != "messages" or self._services.prompts.takes_messages
            ],
        }

    def _model_info(self, frame: Frame) -> Mapping[str, object]:
        model = parse_part(frame.text, frame.payload, (), ModelInfoFields).model
        info = self._services.info
        tokenizer = self._services.prompts.tokenizer
        return {
            "model": self._services.models.find(model).name,
            "server": "tandem",
            "version": info.version,
            "dtype": info.model_dtype,
            "vocab_size": info.limits.vocab_size,
            "tokenizer_size": tokenizer.vocab_size,
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "eos_token_ids": list(info.limits.eos_token_ids),
            "max_total_len": info.limits.max_total_len,
        }


class Sockets:
    def __init__(self) -> None:
        self._sessions: set[Session] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def app(self, services: LmtpServices) -> ASGIApp:
        """LMTP for WebSockets."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] in _PATHS:
                await self._serve(services, scope, receive, send)
            else:
                await _refuse(scope, receive, send)

        return serve

    def drain(self) -> None:
        """Sends all clients the notice that the server accepts nothing new."""
        for session in self._sessions:
            session.notify(DRAINING)

    async def close(self) -> None:
        """Closes all sockets once their last messages are sent."""
        close = SocketClose(_GOING_AWAY, "the server stops")
        await asyncio.gather(*(session.end(close) for session in self._sessions))

    async def _serve(
        self, services: LmtpServices, scope: Scope, receive: Receive, send: Send
    ) -> None:
        record = RequestRecord.within(scope) or RequestRecord("unknown", 0.0)
        message = await receive()
        assert message["type"] == "websocket.connect"
        session = Session(services, record, scope["headers"], receive, send)
        self._sessions.add(session)
        services.metrics.sockets.set(len(self._sessions))
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            services.metrics.sockets.set(len(self._sessions))
            code = str(record.socket.get("close_code", _LOST))
            services.metrics.socket_closes.inc(code if code in CLOSE_CODES else "other")


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    record = RequestRecord.within(scope)
    if record is not None:
        record.error_type = "not_found"
    message = f"there is no socket at {scope['path'][:200]}; LMTP is at / and /lmtp"
    error = HttpError(404, "not_found", message)
    await Problem.of(error, Dialect.TGI).response()(scope, receive, send)
