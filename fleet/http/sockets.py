"""LMTP sockets: each frame goes to the model that it names, over a channel of its own.

One socket may use several models, at the same time too. What names none goes to the model that the
socket named last, or else to the default. HELLO, which is about no model, is answered here; one
that names a model is answered by that model's server.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from fleet.http.channel import Channel, Upstream
from fleet.http.front import model_of
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.names import PLACEHOLDERS, Model, Names
from router.http.lmtp.commands import FEATURES, named_model, version_of
from router.http.lmtp.frames import (
    Frame,
    MalformedFrame,
    error_fields,
    read_frame,
    stream_id_of,
    write_frame,
)
from router.http.lmtp.generate import MAX_TOP_LOGPROBS
from router.http.lmtp.streams import SocketLimits
from router.http.server.access import AccessRecord
from router.http.server.errors import Dialect, HttpError, Problem
from router.request.errors import InvalidRequest, Overloaded

_logger = logging.getLogger("fleet")

_PATHS = frozenset({"/", "/lmtp", "/lmtp/"})
_STREAMS = frozenset({"GENERATE", "SCORE", "BEAMS"})
_OF_MODELS = _STREAMS | {"MODEL_INFO", "BUFFER", "DROP"}
_MAX_CHANNELS = 16
_MAX_REASON_LEN = 123
_GOING_AWAY = 1001
_BUG = 1011
# When another stream may have ended.
_STREAM_ENDS_S = 1.0


class FleetSockets:
    """Owner of the open sockets."""

    def __init__(
        self,
        keeper: ModelManager,
        names: Names,
        metrics: FleetMetrics,
        *,
        server: str,
        limits: SocketLimits,
        keys: tuple[str, ...] = (),
    ) -> None:
        self._keeper = keeper
        self._names = names
        self._metrics = metrics
        self._server = server
        self._limits = limits
        self._keys = keys
        self._sessions: set[FleetSocket] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one socket, from its handshake to its close."""
        if scope["path"] not in _PATHS:
            message = f"there is no socket at {scope['path'][:200]}; LMTP is at / and /lmtp"
            problem = Problem.of(HttpError(404, "not_found", message), Dialect.TGI)
            await problem.response()(scope, receive, send)
            return
        await receive()
        upstream = self._upstream(scope)
        session = FleetSocket(
            self._keeper, self._names, self._metrics, self._hello, self._limits, upstream, send
        )
        self._sessions.add(session)
        self._metrics.sockets.set(len(self._sessions))
        try:
            await session.run(receive)
        finally:
            self._sessions.discard(session)
            self._metrics.sockets.set(len(self._sessions))

    async def tell_draining(self) -> None:
        """Tells everybody that nothing new is taken."""
        await asyncio.gather(*(session.tell_draining() for session in self._sessions))

    async def close(self) -> None:
        """Closes what is still open."""
        await asyncio.gather(
            *(session.leave(_GOING_AWAY, "the server stops") for session in self._sessions)
        )

    async def _hello(self, version: int) -> dict[str, object]:
        listed = await asyncio.to_thread(self._names.listed)
        return {
            "version": version,
            "server": self._server,
            "models": list(dict.fromkeys([*listed, *self._keeper.states()])),
            "max_message_len": self._limits.max_message_len,
            "max_streams": self._limits.max_streams,
            "max_top_logprobs": MAX_TOP_LOGPROBS,
            "features": [*FEATURES, "models_on_demand"],
        }

    def _upstream(self, scope: Scope) -> Upstream:
        record = AccessRecord.within(scope)
        headers = [] if record is None else [("x-request-id", record.request_id)]
        if self._keys:
            headers.append(("authorization", f"Bearer {self._keys[0]}"))
        return Upstream("/lmtp", tuple(headers))


class FleetSocket:
    """Owner of one socket's channels. `hello` tells what the server is, for a version."""

    def __init__(
        self,
        keeper: ModelManager,
        names: Names,
        metrics: FleetMetrics,
        hello: Callable[[int], Awaitable[dict[str, object]]],
        limits: SocketLimits,
        upstream: Upstream,
        send: Send,
    ) -> None:
        self._keeper = keeper
        self._names = names
        self._metrics = metrics
        self._hello = hello
        self._limits = limits
        self._upstream = upstream
        self._send = send
        self._version = 1
        self._channels: dict[str | None, Channel] = {}
        self._last_named: str | None = None

    async def run(self, receive: Receive) -> None:
        """To the client's leaving, or to what it is sent away for."""
        await self._send({"type": "websocket.accept"})
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                await self._take(read_frame(message.get("text")))
        except MalformedFrame as error:
            await self.leave(error.code, str(error))
        except OSError as error:
            _logger.debug("a socket's client left: %s", error)
        except Exception:
            _logger.exception("a socket failed by a bug")
            await self.leave(_BUG, "a bug; the server's log has more")
        finally:
            await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def tell_draining(self) -> None:
        """To clients that know what that is."""
        if self._version == 1:
            return
        message = "the server is shutting down; nothing new is taken"
        try:
            await self._say("SYS", {"stream_id": None, "state": "draining", "message": message})
        except OSError as error:
            _logger.debug("a socket's client left: %s", error)

    async def leave(self, code: int, reason: str) -> None:
        """Sends the client away."""
        told = reason.encode()[:_MAX_REASON_LEN].decode(errors="ignore")
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": told})
        except (OSError, RuntimeError) as error:
            _logger.debug("a socket was closed already: %s", error)

    async def _take(self, frame: Frame) -> None:
        try:
            stream_id = stream_id_of(frame)
        except InvalidRequest as error:
            await self._say("MSG", {"stream_id": None, **error_fields(error)})
            return
        try:
            await self._answer(stream_id, frame)
        except (HttpError, InvalidRequest, Overloaded) as error:
            kind = "TOKEN" if frame.command in _STREAMS else "MSG"
            if isinstance(error, HttpError) and error.error_type == "stream_in_use":
                kind = "MSG"
            await self._say(kind, {"stream_id": stream_id, **error_fields(error)})

    async def _answer(self, stream_id: int, frame: Frame) -> None:
        if frame.command == "CANCEL":
            for channel in self._channels.values():
                if stream_id in channel:
                    await channel.cancel(stream_id)
            return
        if frame.command == "HELLO":
            await self._greet(stream_id, frame)
            return
        if frame.command not in _OF_MODELS:
            raise HttpError(404, "unknown_command", f"Unknown command: {frame.command}")
        self._check_room(stream_id)
        await self._channel(named_model(frame)).put(stream_id, frame)

    def _check_room(self, stream_id: int) -> None:
        if any(stream_id in channel for channel in self._channels.values()):
            message = f"stream {stream_id} is open; take another id, or this one when it has ended"
            raise HttpError(409, "stream_in_use", message, field="stream_id")
        most = self._limits.max_streams
        if sum(channel.num_streams for channel in self._channels.values()) >= most:
            message = f"a socket has at most {most} streams at a time"
            raise Overloaded(message, _STREAM_ENDS_S)

    async def _greet(self, stream_id: int, frame: Frame) -> None:
        self._version = version_of(frame)
        for channel in self._channels.values():
            channel.speak(self._version)
        if named_model(frame) is not None:
            self._check_room(stream_id)
            await self._channel(named_model(frame)).put(stream_id, frame)
            return
        await self._say("MSG", {"stream_id": stream_id, "hello": await self._hello(self._version)})
        if self._keeper.is_draining:
            await self.tell_draining()

    def _channel(self, named: str | None) -> Channel:
        """The channel of a model's name; of the last one, where none is given."""
        # One name for what means one model: what a socket's buffers are kept by.
        is_none = named is None or named in PLACEHOLDERS
        name = self._last_named if is_none else named
        self._last_named = name
        found = self._channels.pop(name, None)
        if found is not None:
            self._channels[name] = found  # the last one: they stand in the order of their use
            return found
        self._drop_idle()
        channel = Channel(
            lambda: self._find(name),
            self._keeper,
            self._metrics,
            self._upstream,
            self._send_text,
            self._version,
        )
        self._channels[name] = channel
        return channel

    def _drop_idle(self) -> None:
        """Makes room for a channel: of those that hold no model, first those of which no server
        keeps anything, be there such models or not; then the least recently used."""
        if len(self._channels) < _MAX_CHANNELS:
            return
        idle = [name for name, channel in self._channels.items() if channel.is_idle]
        if not idle:
            message = f"a socket uses at most {_MAX_CHANNELS} models at a time"
            raise Overloaded(message, _STREAM_ENDS_S)
        name = min(idle, key=lambda each: self._channels[each].is_connected)
        self._channels.pop(name).hang_up()

    async def _find(self, name: str | None) -> Model:
        return await model_of(name, self._names, self._keeper)

    async def _say(self, command: str, told: dict[str, Any]) -> None:
        await self._send_text(write_frame(command, [orjson.dumps(told).decode()]))

    async def _send_text(self, text: str) -> None:
        await self._send({"type": "websocket.send", "text": text})
