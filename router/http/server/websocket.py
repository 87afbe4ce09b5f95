"""One WebSocket connection: uvicorn's protocol, with the limits of `protocol.py`.

A client that breaks the protocol, or sends too much, gets a close frame with a code and a reason,
even while it is still writing.
"""

import asyncio
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.protocol import State

from router.http.server.protocol import LINGER_S, ConnectionLimits, SlowReaderCheck

_INVALID_DATA = 1007
_POLICY_VIOLATION = 1008
_INTERNAL_ERROR = 1011
_SERVICE_RESTART = 1012


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, from its handshake on."""

    _reader_check: SlowReaderCheck

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
        self._reader_check = SlowReaderCheck(self.transport, self._limits)

    def data_received(self, data: bytes) -> None:
        """Bytes of frames; behind a close frame of ours they are dropped."""
        if self._hangs_up:
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # uvicorn answers nothing to what the library cannot parse, as a handshake with a body.
            refusal = self.conn.reject(400, f"{self.conn.handshake_exc.__cause__}\n")
            answer = b"".join(self.conn.data_to_send()) or refusal.serialize()
            self.transport.write(answer)
            self.transport.close()

    def resume_writing(self) -> None:
        """The client read most of it."""
        super().resume_writing()
        self._reader_check.restart()

    def check_time(self, now_s: float) -> None:
        """Closes the connection if its client reads too slowly."""
        is_waited_for = self.transport.is_closing() or not self.writable.is_set()
        if self._reader_check.is_too_slow(now_s, is_waited_for=is_waited_for):
            self._reader_check.record_cut(getattr(self, "scope", None), self.client)
            timeout_s = self._limits.write_timeout_s
            self._fail(_POLICY_VIOLATION, f"what was sent was not read within {timeout_s:g} s")

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
        if not self.close_sent:
            self._limits.cuts.inc("no_pong")
            self._fail(_INTERNAL_ERROR, "keepalive ping timeout")

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
        if self.read_paused:
            # Unread bytes would make the kernel reset the connection and drop the close frame.
            self.read_paused = False
            self.transport.resume_reading()
        # uvicorn's own handle too: it hangs up at once where there is none.
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)
