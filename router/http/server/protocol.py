"""HTTP/1.1 as uvicorn speaks it, with limits on what a client may send and on how slow it may be.

What breaks a limit while it is still read never becomes a request, so the application cannot answer
it; this answers as it would. `request_size.py` says what is too large, `inflow.py` who sends too
slowly, `outflow.py` who reads too slowly.
"""

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.http.errors import Dialect, HttpError, Problem
from router.http.server.read_limits import MIN_BODY_LEN, Expected, Inflow
from router.http.server.request_record import RequestRecord
from router.http.server.request_size import RequestSize, check_handshake
from router.http.server.upgrade import without_offer
from router.http.server.write_limits import Outflow
from router.telemetry.instruments import Counter

_logger = logging.getLogger(__name__)

_LINGER_S = 1.0
# Requests of one connection that wait for their turn. One read brings ten thousand of them.
MAX_WAITING = 64


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """What a client may do; see `inflow.py` and `outflow.py`. `cuts` counts those cut, by cause.

    `max_message_len` is in bytes, of one WebSocket message; a socket is asked every
    `ping_interval_s` whether it is there, and has as long to answer.
    """

    max_head_len: int = 32_768
    head_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    max_message_len: int = 1 << 23
    ping_interval_s: float = 20.0
    cuts: Counter = field(default_factory=lambda: Counter("tandem_connections_cut", "", "cause"))


class Protocol(HttpToolsProtocol):
    """One connection."""

    _inflow: Inflow
    _outflow: Outflow

    def __init__(
        self,
        rules: ConnectionRules,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._rules = rules
        self._size = RequestSize(rules.max_head_len)
        # The cycle whose turn it is; `cycle` is the one that was read last.
        self._answering: RequestResponseCycle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._hangs_up = False
        self._is_offer = False
        self._is_upgraded = False
        self._num_messages = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is here, and TLS is settled."""
        super().connection_made(transport)
        rules = self._rules
        self._outflow = Outflow(self.loop, transport, rules.write_timeout_s, self._cut_slow_reader)
        self._inflow = Inflow(
            self.loop,
            {Expected.HEAD: rules.head_timeout_s, Expected.BODY: rules.body_timeout_s},
            self._is_due,
            self._cut_slow_sender,
        )
        self._inflow.expect(Expected.HEAD)
        self._inflow.settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Everybody who waits for this client is told."""
        self._inflow.close()
        self._outflow.close()
        if self._lingering is not None:
            self._lingering.cancel()
        self._tell_disconnected()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, which may begin and end anywhere in them."""
        if self._hangs_up or self.transport.is_closing():
            return
        if self._inflow.expected is None and not self._is_answering:
            self._inflow.expect(Expected.HEAD)
        num_messages = self._num_messages
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._hangs_up or self._is_upgraded or self.transport.is_closing():
            return
        if num_messages == self._num_messages:
            try:
                self._size.add_wire(len(data), in_body=self._inflow.expected is Expected.BODY)
            except HttpError as refusal:
                self._refuse(refusal)
                return
        self._inflow.settle()
        if self._inflow.expected is None and not self._is_answering:
            self._await_next()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._size.begin()
        self._inflow.expect(Expected.HEAD)

    def on_url(self, url: bytes) -> None:
        """The request's target, or a part of it."""
        super().on_url(url)
        self._size.add_url(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind the body."""
        # A trailer is none of the headers (RFC 9110, 6.5.1): who checks those has done so.
        if self._inflow.expected is not Expected.BODY:
            super().on_header(name, value)
        self._size.add_header(name, value)

    def on_headers_complete(self) -> None:
        """The request is known; its body may be to come."""
        if self.parser.get_method() == b"CONNECT":
            raise HttpError(400, "bad_request", "no tunnel is opened here")
        self._is_offer = self.parser.should_upgrade() and not self._should_upgrade()
        if self._is_offer:
            return  # `_feed` reads it once more
        if len(self.pipeline) >= MAX_WAITING:
            message = f"more than {MAX_WAITING} requests wait for their answers"
            raise HttpError(400, "bad_request", message)
        super().on_headers_complete()
        if self.parser.should_upgrade():
            check_handshake(self.url, self.headers)
            return  # `_feed` hands it over
        # Who has asked for more may leave too, which is seen by reading alone.
        if sum(len(cycle.body) for cycle, _ in self.pipeline) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()
        self._inflow.expect(Expected.BODY)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._size.add_body(len(body))
        self._inflow.take_body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._is_offer:
            return
        self._num_messages += 1
        self._inflow.expect(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, though its client may not have it yet."""
        self._outflow.complete()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Much waits for the client."""
        super().pause_writing()
        self._outflow.fill()

    def resume_writing(self) -> None:
        """The client took most of it."""
        super().resume_writing()
        self._outflow.ease()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What our own callbacks raise, the parser wraps.
            refusal = error.__context__
            if not isinstance(refusal, HttpError):
                refusal = HttpError(400, "bad_request", f"this is no HTTP request: {error}")
            self._refuse(refusal)
        except httptools.HttpParserUpgrade as offer:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
            parser = self.parser
            version = parser.get_http_version()
            head = without_offer(parser.get_method(), self.url, version, self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._feed(head + data[offer.args[0] :])

    def _should_upgrade(self) -> bool:
        # What is no handshake is passed over, as any other offer; so is one behind requests that
        # are not answered.
        has_key = any(name == b"sec-websocket-key" for name, _ in self.headers)
        return has_key and not self._is_answering and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """The connection is `socket_protocol.py`'s from now on."""
        self._is_upgraded = True
        self._inflow.close()
        self._outflow.close()
        super().handle_websocket_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        self._outflow.begin()
        if cycle.waiting_for_100_continue:
            app = _closing_unasked(cycle, app)
        super()._start_asgi_task(cycle, app)

    def _await_next(self) -> None:
        """The rest of a body came behind its answer; nothing else will end the silence."""
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _is_due(self, expected: Expected) -> bool:
        if expected is Expected.HEAD:
            return not self._is_answering
        return not self.flow.read_paused and self._answering is self.cycle

    def _cut_slow_sender(self, expected: Expected) -> None:
        if expected is Expected.HEAD and self._size.is_empty:
            self.transport.close()  # a connection made in advance, and never used
            return
        self._rules.cuts.inc(expected.value)
        if expected is Expected.HEAD:
            message = f"the headers did not come within {self._rules.head_timeout_s:g} s"
        else:
            timeout_s = self._rules.body_timeout_s
            message = f"less than {MIN_BODY_LEN} bytes of the body came within {timeout_s:g} s"
        self._refuse(HttpError(408, "slow_sender", message))

    def _cut_slow_reader(self) -> None:
        self._rules.cuts.inc("slow_reader")
        record = self._exchange()
        request_id = record.request_id if record is not None else "unknown"
        _logger.info(
            "request_id=%s error_type=slow_reader client=%s: cut with %d bytes untaken",
            request_id,
            ":".join(map(str, self.client or ())),
            self._outflow.num_unsent,
        )
        if record is not None and self._is_answering:
            record.cut("slow_reader")
        # Not close, which waits for the client to take what waits for it.
        self.transport.abort()

    def _refuse(self, error: HttpError) -> None:
        """Answers where no other answer was begun or is due before, and hangs up after the last."""
        self._hangs_up = True
        self._inflow.close()
        is_known = self._inflow.expected is Expected.BODY
        is_its_turn = self._answering is self.cycle
        if not is_known and self._is_answering:
            self.cycle.keep_alive = False
        elif is_known and not is_its_turn:
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._answering
            assert last is not None, "whose turn it is not waits for another"
            last.keep_alive = False
        elif is_known and self.cycle.response_started:
            self._tell_disconnected()
            self.transport.close()
            self._outflow.complete()
        else:
            self._answer(error, self._exchange() if is_known else None)
            self._tell_disconnected()
            self._linger()

    def _linger(self) -> None:
        """Hangs up, but listens for a moment: a client that still writes gets its answer."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._lingering = self.loop.call_later(_LINGER_S, self.transport.close)
        self._outflow.complete()

    def _answer(self, error: HttpError, record: RequestRecord | None) -> None:
        request_id = uuid.uuid4().hex
        if record is not None:  # whose log line tells of it
            request_id = record.request_id
            record.cut(error.error_type, error.status)
        else:
            _logger.info(
                "request_id=%s status=%d error_type=%s: %s",
                *(request_id, error.status, error.error_type, error),
            )
        path = getattr(self, "url", b"").partition(b"?")[0].decode("latin-1")
        body = Problem.of(error, Dialect.of_path(path), request_id).body
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

    def _exchange(self) -> RequestRecord | None:
        """That of the answer under way, or of the last one."""
        if self._answering is None:
            return None
        scope: Scope = self._answering.scope  # type: ignore[assignment]
        return RequestRecord.within(scope)

    def _tell_disconnected(self) -> None:
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()


def _closing_unasked(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Hangs up behind an answer that came before a body was asked for.

    Nobody knows whether that body will still be sent, and so what the next bytes are.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body and not cycle.body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_last)

    return answer
