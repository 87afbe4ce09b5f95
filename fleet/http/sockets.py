"""LMTP sockets of the front: each is bound to one model, whose server gets its frames as they are.

The address (`?model=`) or the first frame that needs a model names it; without a name it is the
default. A frame that names another model is refused. HELLO without a model is answered here.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from fleet.errors import FleetError, NotNow
from fleet.http.front import model_of
from fleet.http.relay import Frame, Relay, error_fields, frame_text
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.names import PLACEHOLDERS, ModelNames
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
_COMMANDS = frozenset({"GENERATE", "SCORE", "BEAMS", "HELLO", "CANCEL", "MODEL_INFO"})
# Frames that wait while the model is loaded; more are not read.
_MAX_QUEUED = 16
_MAX_COMMAND_LEN = 40
_MAX_REASON_LEN = 123
# Close codes of WebSockets.
_GOING_AWAY = 1001
_UNSUPPORTED_DATA = 1003
_INVALID_DATA = 1007
_INTERNAL_ERROR = 1011
_SERVICE_RESTART = 1012


class MalformedFrame(Exception):
    """A message that is not a frame. The socket is closed with `code`, and the text as reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class SocketServices:
    """What all sockets share. `hello` has the constant fields of the answer to HELLO."""

    manager: ModelManager
    names: ModelNames
    metrics: FleetMetrics
    hello: Mapping[str, object]
    parser: ParserThread


class FleetSockets:
    """Owner of the open sockets."""

    def __init__(self, services: SocketServices, keys: tuple[str, ...] = ()) -> None:
        self._services = services
        self._keys = keys
        self._sockets: set[FleetSocket] = set()

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
        socket = FleetSocket(self._services, model_name, self._headers(scope), send)
        gauge = self._services.metrics.sockets
        self._sockets.add(socket)
        gauge.set(len(self._sockets))
        try:
            await socket.run(receive)
        finally:
            self._sockets.discard(socket)
            gauge.set(len(self._sockets))

    async def close(self) -> None:
        """Close what is still open."""
        await asyncio.gather(
            *(socket.close(_GOING_AWAY, "the server stops") for socket in self._sockets)
        )

    def _headers(self, scope: Scope) -> list[tuple[str, str]]:
        """The headers of the connection to a model's server."""
        record = AccessRecord.within(scope)
        headers = [] if record is None else [("x-request-id", record.request_id)]
        if self._keys:
            headers.append(("authorization", f"Bearer {self._keys[0]}"))
        return headers


class FleetSocket:
    """Owner of one socket. `model_name` is that of its address, `headers` are its relay's."""

    def __init__(
        self,
        services: SocketServices,
        model_name: str | None,
        headers: Sequence[tuple[str, str]],
        send: Send,
    ) -> None:
        self._services = services
        self._model_name = model_name
        self._headers = headers
        self._send = send
        self._version = 1
        self._relay: Relay | None = None
        self._frames: asyncio.Queue[Frame] = asyncio.Queue(_MAX_QUEUED)

    async def run(self, receive: Receive) -> None:
        """Serve frames until the client leaves or the socket is closed."""
        await self._send({"type": "websocket.accept"})
        tasks = [asyncio.create_task(self._read(receive)), asyncio.create_task(self._serve())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except MalformedFrame as error:
            await self.close(error.code, str(error))
        except OSError as error:
            _logger.debug("a socket's client left: %s", error)
        except Exception:
            _logger.exception("a socket failed by a bug")
            await self.close(_INTERNAL_ERROR, "a bug; the server's log has more")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._relay is not None:
                self._relay.close()

    async def _read(self, receive: Receive) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            parser = self._services.parser
            read = partial(read_frame, text, parser.bounds)
            await self._frames.put(await parser.run(len(text or ""), read))

    async def _serve(self) -> None:
        while True:
            frame = await self._frames.get()
            try:
                await self._answer(frame)
            except HttpError as error:
                await self._refuse(frame, error)
                # What stands behind it waited as long.
                while isinstance(error, NotNow) and not self._frames.empty():
                    await self._refuse(self._frames.get_nowait(), error)

    async def send_text(self, text: str) -> None:
        """Send a frame to the client."""
        await self._send({"type": "websocket.send", "text": text})

    async def close(self, code: int, reason: str) -> None:
        reason = reason.encode()[:_MAX_REASON_LEN].decode(errors="ignore")
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (OSError, RuntimeError) as error:
            _logger.debug("a socket was closed already: %s", error)

    async def _refuse(self, frame: Frame, error: HttpError) -> None:
        if frame.command == "CANCEL" and isinstance(error, NotNow):
            return  # the stream is refused as well
        if isinstance(error, FleetError):
            self._services.metrics.rejected.inc(error.error_type)
        kind, stream_id = frame.key
        await self.send_text(frame_text(kind, {"stream_id": stream_id, **error_fields(error)}))

    async def _answer(self, frame: Frame) -> None:
        _, stream_id = frame.key
        if stream_id is None:
            raise _wrong("stream_id", "must be a whole number of at most 64 bits")
        if frame.fault is not None:
            raise frame.fault
        if frame.command == "CANCEL" and self._relay is None:
            return  # there are no streams
        if frame.command not in _COMMANDS:
            raise HttpError(404, "unknown_command", f"Unknown command: {frame.command}")
        name = frame.fields.get("model")
        if name is not None and not isinstance(name, str):
            raise _wrong("model", "must be a valid string")
        if frame.command == "HELLO":
            self._version = _version_of(frame.fields)
            if self._relay is not None:
                await self._relay.set_version(self._version)
            if name is None:
                hello = {"stream_id": stream_id, "hello": await self._hello()}
                await self.send_text(frame_text("MSG", hello))
                return
        relay = await self._bind(None if name in PLACEHOLDERS else name)
        await relay.forward(frame)

    async def _hello(self) -> dict[str, object]:
        listed = await asyncio.to_thread(self._services.names.listed)
        loaded = [each.name for each in self._services.manager.entries()]
        return {
            "version": self._version,
            **self._services.hello,
            "models": list(dict.fromkeys([*listed, *loaded])),
            "max_top_logprobs": MAX_TOP_LOGPROBS,
            "features": [*FEATURES, "models_on_demand"],
        }

    async def _bind(self, name: str | None) -> Relay:
        """The relay to the socket's model. Raises HttpError if `name` is another model's."""
        if self._relay is None:
            bound_name = self._model_name or name
            manager = self._services.manager
            metrics = self._services.metrics
            model = await model_of(bound_name, self._services.names, manager)
            self._model_name = bound_name
            hang_up = partial(self.close, _SERVICE_RESTART)
            self._relay = Relay(model, manager, metrics, self._headers, self.send_text, hang_up)
            await self._relay.set_version(self._version)
        model = self._relay.model
        if name not in (None, self._model_name, model.name, model.source):
            message = (
                f"this socket is bound to the model {model.name!r}; open another one for {name!r}"
            )
            raise HttpError(400, "validation", message, field="model")
        return self._relay


def read_frame(text: str | None, bounds: JsonBounds = DEFAULT_BOUNDS) -> Frame:
    """A client's frame; None: a binary message. Raises MalformedFrame."""
    if text is None:
        raise MalformedFrame(_UNSUPPORTED_DATA, "a frame is a text message: TYPE, a space, JSON")
    command, space, body = text.partition(" ")
    if not space or not command.isascii() or not 1 <= len(command) <= _MAX_COMMAND_LEN:
        raise MalformedFrame(_INVALID_DATA, "a frame is TYPE, a space, JSON")
    raw = body.encode()
    try:
        fields = parse_json(raw, bounds)
    except MalformedJson as fault:
        almost = almost_json(raw, "stream_id")
        if almost is None:
            raise MalformedFrame(_INVALID_DATA, f"the frame's JSON: {fault}") from fault
        return Frame(command, almost, text, fault)
    except HttpError as error:
        raise MalformedFrame(_INVALID_DATA, f"the frame's JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MalformedFrame(_INVALID_DATA, "the JSON of a frame must be an object")
    return Frame(command, fields, text)


def _version_of(fields: Mapping[str, Any]) -> int:
    """The version that a HELLO agrees on."""
    version = fields.get("version", VERSION)
    if type(version) not in (int, float) or version < 1:
        raise _wrong("version", "must be a whole number of at least 1")
    return min(int(version), VERSION)


def _wrong(field: str, rule: str) -> HttpError:
    return HttpError(400, "validation", f"`{field}` {rule}", field=field)
