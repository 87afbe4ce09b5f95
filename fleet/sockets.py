"""LMTP sockets of the front: each is joined to the server of one model, and holds that model.

    choose a model (HELLO is answered here) -> lease, connect -> messages in both directions, unread

The address (`?model=`) or the first frame that needs a model names it; without a name it is the
default. The lease lasts until the socket is closed, so its model stays in memory though no stream
is open. Then it is as in `fleet/relay.py`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from fleet.errors import FleetError, NotNow, ServerGone
from fleet.front import model_of
from fleet.metrics import FleetMetrics
from fleet.model_manager import Lease, ModelManager
from fleet.names import Model, ModelNames
from fleet.relay import (
    GOING_AWAY,
    OpenSockets,
    ServerLost,
    SocketClose,
    close_socket,
    connect_socket,
    relay,
)
from router.http.bodies import (
    DEFAULT_BOUNDS,
    JsonBounds,
    MalformedJson,
    ParserThread,
    almost_json,
    parse_json,
)
from router.http.errors import Dialect, HttpError, Problem
from router.http.server.access import AccessRecord

_logger = logging.getLogger("fleet")

VERSION = 2
# What every model's server can do, as its own HELLO says.
FEATURES = (
    "text", "messages", "constraint", "stop", "output", "cancel", "scores", "system_messages",
    "errors", "beams",
)  # fmt: skip
MAX_TOP_LOGPROBS = 256
_PATHS = frozenset({"/", "/lmtp", "/lmtp/"})
_TOKEN_COMMANDS = frozenset({"GENERATE", "SCORE", "BEAMS"})
_COMMANDS = _TOKEN_COMMANDS | {"HELLO", "CANCEL", "MODEL_INFO"}
# Messages that wait while the model is loaded; more are not read.
_MAX_QUEUED = 16
_MAX_COMMAND_LEN = 40
_GONE = "the model's server stopped; it is loaded anew when asked for"
# Close codes of WebSockets.
_UNSUPPORTED_DATA = 1003
_INVALID_DATA = 1007
_INTERNAL_ERROR = 1011


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that the front reads, since no server has it yet: its type, its object, the whole.

    `fault` is why it is refused alone, though its stream is known.
    """

    command: str
    fields: Mapping[str, Any]
    text: str
    fault: HttpError | None = None

    @property
    def stream_id(self) -> int | None:
        """None where it is no whole number."""
        stream_id = self.fields.get("stream_id")
        return stream_id if type(stream_id) is int else None


@dataclass(frozen=True, slots=True)
class SocketServices:
    """What all sockets share. `hello` has the constant fields of the answer to HELLO."""

    manager: ModelManager
    names: ModelNames
    metrics: FleetMetrics
    hello: Mapping[str, object]
    parser: ParserThread


class FleetSockets(OpenSockets):
    """Serves those of several models."""

    def __init__(self, services: SocketServices, keys: tuple[str, ...] = ()) -> None:
        super().__init__(services.metrics)
        self._services = services
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket, from its handshake until it is closed."""
        if scope["path"] not in _PATHS:
            message = f"there is no socket at {scope['path'][:200]}; LMTP is at / and /lmtp"
            problem = Problem.of(HttpError(404, "not_found", message), Dialect.TGI)
            await problem.response()(scope, receive, send)
            return
        await receive()
        query = parse_qs(scope["query_string"].decode(errors="replace"))
        model_name = query.get("model", [None])[0]
        with self.opened(send):
            await FleetSocket(self._services, model_name, self._headers(scope), send).run(receive)

    def _headers(self, scope: Scope) -> list[tuple[str, str]]:
        """The headers of the connection to a model's server."""
        record = AccessRecord.within(scope)
        headers = [] if record is None else [("x-request-id", record.request_id)]
        if self._keys:
            headers.append(("authorization", f"Bearer {self._keys[0]}"))
        return headers


class FleetSocket:
    """Owner of one client's socket, and of the connection to its model's server.

    `model_name` is that of its address, `headers` are those of the connection.
    """

    def __init__(
        self,
        services: SocketServices,
        model_name: str | None,
        headers: Sequence[tuple[str, str]],
        send: Send,
    ) -> None:
        self._services = services
        self._manager = services.manager
        self._metrics = services.metrics
        self._model_name = model_name
        self._headers = headers
        self._send = send
        # Of LMTP, until the server has the socket.
        self._version = 1
        self._messages: asyncio.Queue[str | bytes] = asyncio.Queue(_MAX_QUEUED)

    async def run(self, receive: Receive) -> None:
        """Serve the client until it leaves or its socket is closed."""
        await self._send({"type": "websocket.accept"})
        tasks = [asyncio.create_task(self._read(receive)), asyncio.create_task(self._serve())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except SocketClose as close:
            await close_socket(self._send, close)
        except OSError as error:
            _logger.debug("a socket's client left: %s", error)
        except Exception:
            _logger.exception("a socket failed by a bug")
            bug = SocketClose(_INTERNAL_ERROR, "a bug; the server's log has more")
            await close_socket(self._send, bug)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, receive: Receive) -> None:
        """Queue the client's messages until it leaves."""
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            await self._messages.put(message["bytes"] if text is None else text)

    async def _serve(self) -> None:
        while True:
            frame = await self._frame(await self._messages.get())
            try:
                model = await self._answer(frame)
                if model is not None:
                    with closing(await self._acquire(model, frame)) as lease:
                        await self._relay(lease, frame)
            except HttpError as error:
                await self._refuse(frame, error)
                # What stands behind it waited as long.
                while isinstance(error, NotNow) and not self._messages.empty():
                    await self._refuse(await self._frame(self._messages.get_nowait()), error)

    async def _frame(self, message: str | bytes) -> Frame:
        parser = self._services.parser
        return await parser.run(len(message), partial(read_frame, message, parser.bounds))

    async def _answer(self, frame: Frame) -> Model | None:
        """Answer a frame that needs no model; for others, the model. Raises HttpError."""
        if frame.stream_id is None:
            raise _wrong("stream_id", "must be a whole number of at most 64 bits")
        if frame.fault is not None:
            raise frame.fault
        if frame.command not in _COMMANDS:
            raise HttpError(404, "unknown_command", f"Unknown command: {frame.command}")
        if frame.command == "CANCEL":
            return None  # there are no streams
        name = frame.fields.get("model")
        if name is not None and not isinstance(name, str):
            raise _wrong("model", "must be a valid string")
        if frame.command == "HELLO":
            self._version = _version_of(frame.fields)
            if name is None:
                hello = {"stream_id": frame.stream_id, "hello": await self._hello()}
                await self._send_text(frame_text("MSG", hello))
                return None
        return await model_of(self._model_name or name, self._services.names, self._manager)

    async def _hello(self) -> dict[str, object]:
        listed = await asyncio.to_thread(self._services.names.listed)
        loaded = [each.name for each in self._manager.entries()]
        return {
            "version": self._version,
            **self._services.hello,
            "models": list(dict.fromkeys([*listed, *loaded])),
            "max_top_logprobs": MAX_TOP_LOGPROBS,
            "features": [*FEATURES, "models_on_demand"],
        }

    async def _acquire(self, model: Model, frame: Frame) -> Lease:
        """The leased model; a client of version 2 is notified if it has to wait. Raises NotNow."""
        lease = self._manager.acquire_ready(model.name)
        if lease is not None:
            return lease
        if self._version > 1 and not self._manager.is_draining:
            message = f"the model {model.name!r} is not loaded"
            fields = {"stream_id": frame.stream_id, "state": "loading", "message": message}
            await self._send_text(frame_text("SYS", fields))
        return await self._manager.acquire(model)

    async def _relay(self, lease: Lease, frame: Frame) -> None:
        """Pass messages on, `frame` first.

        Raises ServerGone if the server is not reached, and SocketClose in the end.
        """
        try:
            server = await self._connect(lease.socket)
        except (OSError, WebSocketException, TimeoutError) as error:
            self._manager.report_failure(lease)
            raise ServerGone(_GONE) from error
        try:
            await relay(server, self._counted(lease.model.name, frame.text), self._send, _GONE)
        except ServerLost:
            if self._manager.is_draining:
                raise SocketClose(GOING_AWAY, "the server stops") from None
            self._manager.report_failure(lease)
            self._metrics.rejected.inc(ServerGone.TYPE)
            raise

    async def _connect(self, socket: Path) -> ClientConnection:
        """A connection to a model's server that speaks the client's version."""
        server = await connect_socket(socket, "/lmtp", self._headers)
        if self._version > 1:
            # The client has its answer to HELLO.
            await server.send(f'HELLO {{"stream_id":0,"version":{self._version}}}')
            await server.recv()
        return server

    async def _counted(self, model: str, message: str | bytes) -> AsyncIterator[str | bytes]:
        """The client's messages, `message` first."""
        while True:
            self._metrics.requests.inc(model)
            yield message
            message = await self._messages.get()

    async def _refuse(self, frame: Frame, error: HttpError) -> None:
        if frame.command == "CANCEL" and isinstance(error, NotNow):
            return  # the stream is refused as well
        if isinstance(error, FleetError):
            self._metrics.rejected.inc(error.error_type)
        stream_id = frame.stream_id
        is_stream = stream_id is not None and frame.command in _TOKEN_COMMANDS
        fields: dict[str, object] = {"stream_id": stream_id, "error": str(error)}
        fields["error_type"] = error.error_type
        if error.field is not None:
            fields["field"] = error.field
        if error.retry_after_s is not None:
            fields["retry_after_s"] = error.retry_after_s
        fields["retryable"] = error.status >= 500
        await self._send_text(frame_text("TOKEN" if is_stream else "MSG", fields))

    async def _send_text(self, text: str) -> None:
        await self._send({"type": "websocket.send", "text": text})


def read_frame(message: str | bytes, bounds: JsonBounds = DEFAULT_BOUNDS) -> Frame:
    """A client's frame. Raises SocketClose for what is none."""
    if isinstance(message, bytes):
        raise SocketClose(_UNSUPPORTED_DATA, "a frame is a text message: TYPE, a space, JSON")
    command, space, body = message.partition(" ")
    if not space or not command.isascii() or not 1 <= len(command) <= _MAX_COMMAND_LEN:
        raise SocketClose(_INVALID_DATA, "a frame is TYPE, a space, JSON")
    raw = body.encode()
    try:
        fields = parse_json(raw, bounds)
    except MalformedJson as fault:
        almost = almost_json(raw, "stream_id")
        if almost is None:
            raise SocketClose(_INVALID_DATA, f"the frame's JSON: {fault}") from fault
        return Frame(command, almost, message, fault)
    except HttpError as error:
        raise SocketClose(_INVALID_DATA, f"the frame's JSON: {error}") from error
    if not isinstance(fields, dict):
        raise SocketClose(_INVALID_DATA, "the JSON of a frame must be an object")
    return Frame(command, fields, message)


def frame_text(kind: str, fields: Mapping[str, object]) -> str:
    """A server's frame of one object."""
    return f"{kind} [{orjson.dumps(fields).decode()}]"


def _version_of(fields: Mapping[str, Any]) -> int:
    """The version that a HELLO agrees on."""
    version = fields.get("version", VERSION)
    if type(version) not in (int, float) or version < 1:
        raise _wrong("version", "must be a whole number of at least 1")
    return min(int(version), VERSION)


def _wrong(field: str, rule: str) -> HttpError:
    return HttpError(400, "validation", f"`{field}` {rule}", field=field)
