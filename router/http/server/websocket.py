"""One WebSocket connection: uvicorn's protocol, with the limits of `limits.py`.

A client that breaks the protocol, or sends too much, gets a close frame with a code and a reason,
even while it is still writing.
"""

import asyncio
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidMessage
from websockets.http11 import Request
from websockets.protocol import State

from router.http.server.access import AccessRecord
from router.http.server.errors import Dialect, HttpError, Problem
from router.http.server.limits import ConnectionLimits, WriteTimer
from router.http.server.protocol import raw_answer, record_slow_reader

_INVALID_DATA = 1007
_POLICY_VIOLATION = 1008
_SERVICE_RESTART = 1012
# How long a client that was sent a close frame is listened to, so that it reads it.
_LINGER_S = 1.0


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, from its handshake on."""

    _write_timer: WriteTimer

    def __init__(
        self,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._hangs_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake begins."""
        super().connection_made(transport)
        self._write_timer = WriteTimer(
            self.loop, self.transport, self._limits.write_timeout_s, self._cut_slow_reader
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of frames; behind a close frame of ours they are dropped."""
        if self._hangs_up:
            return
        super().data_received(data)
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            self._refuse(self.conn.handshake_exc)

    def handle_connect(self, event: Request) -> None:
        """The head of a handshake is read; uvicorn would answer with the library's own refusal."""
        self.conn.accept(event)
        if self.conn.handshake_exc is None:
            super().handle_connect(event)

    def pause_writing(self) -> None:
        """Too much waits for the client."""
        super().pause_writing()
        self._write_timer.pause()

    def resume_writing(self) -> None:
        """The client read most of it."""
        super().resume_writing()
        self._write_timer.resume()

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError as error:
                self._fail(_INVALID_DATA, f"a text frame is not UTF-8: byte {error.start}")
                return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        """The client broke the protocol; the close frame that says so is waiting to be sent."""
        assert self.conn.close_sent is not None
        self._leave(self.conn.close_sent.code, self.conn.close_sent.reason)

    def keepalive_timeout(self) -> None:
        """The client does not answer pings."""
        super().keepalive_timeout()
        self._limits.cuts.inc("no_pong")
        self._leave(1011, "keepalive ping timeout")

    def shutdown(self) -> None:
        """The server stops at once."""
        if self.handshake_complete and not self.close_sent:
            self._fail(_SERVICE_RESTART, "the server stops")
        super().shutdown()

    async def send(self, message: ASGISendEvent) -> None:
        """A message of the application."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refusal is an end of the handshake too; uvicorn would call it a mistake.
            self.handshake_complete = True

    def _refuse(self, reason: Exception) -> None:
        """Answers what the library takes for no handshake (one with a body, without a version)."""
        self._hangs_up = True
        what = reason.__cause__ if isinstance(reason, InvalidMessage) else reason
        error = HttpError(400, "bad_request", f"no handshake of a WebSocket: {what}")
        body = Problem.of(error, Dialect.TGI).body
        self.transport.write(raw_answer(error.status, body, "sec-websocket-version: 13"))
        self.transport.close()

    def _cut_slow_reader(self) -> None:
        record = AccessRecord.within(self.scope)  # type: ignore[arg-type]
        if record is not None:
            record.cut("slow_reader")
        record_slow_reader(record, self._limits, self.client, self._write_timer.num_unread)
        timeout_s = self._limits.write_timeout_s
        self._fail(_POLICY_VIOLATION, f"what was sent was not read within {timeout_s:g} s")

    def _fail(self, code: int, reason: str) -> None:
        if self.conn.state is State.OPEN:
            self.conn.send_close(code, reason)
        self._leave(code, reason)

    def _leave(self, code: int, reason: str) -> None:
        """Sends what is left to send, disconnects the application, and hangs up soon."""
        if self._hangs_up:
            return
        self._hangs_up = True
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()))
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self.close_sent = True
        # Whoever waits to write is woken.
        self.disconnected = True
        self.writable.set()
        self._write_timer.cancel()
        if self.read_paused:
            # Unread bytes would make the kernel reset the connection and drop the close frame.
            self.read_paused = False
            self.transport.resume_reading()
        # uvicorn's own handle too: it hangs up at once where there is none.
        self.close_timer = self.loop.call_later(_LINGER_S, self.transport.abort)
