"""The ASGI application that opens LMTP sockets, and their end when the server stops."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from router.http.lmtp.frames import SocketClose
from router.http.lmtp.session import DRAINING, Session
from router.http.lmtp.streams import LmtpServices
from router.http.request_validator import RequestRecord
from router.http.server.errors import Dialect, HttpError, Problem
from router.telemetry.metrics import CLOSE_CODES

_PATHS = frozenset({"/", "/lmtp", "/lmtp/"})
_GOING_AWAY = 1001
_LOST = 1006


class Sockets:
    """Owner of the open sessions."""

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
