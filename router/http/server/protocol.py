"""Connections of HTTP/1.1 and WebSockets: uvicorn's protocols, with limits on what clients may do.

uvicorn has no public seam for them: its version is bounded in pyproject.toml. A request that breaks
a limit while it is read never reaches the application; it is answered here in the same form. A
client of a WebSocket that breaks the protocol, or sends too much, gets a close frame with a code
and a reason, even while it is still writing.

A client sends too slowly when the head of a request, its line and headers, is not whole
`head_timeout_s` after the connection was made, or after the first byte of a further request. Bodies
have their limits in `bodies.py`.

The application waits before it sends more while `HIGH_LEN` bytes of a connection are unread, until
`LOW_LEN` are. A client reads too slowly when the application waits for it, or the answer is
complete, and the client takes less than `MIN_READ_LEN` bytes in `write_timeout_s`, and not the
rest. The kernel's buffer is bounded by `listen.py`.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.protocol import State

from processes.instruments import Counter
from router.http.bodies import PART_WRITER
from router.http.errors import Dialect, HttpError, Problem
from router.http.server.access import AccessRecord, is_probe

_logger = logging.getLogger(__name__)
HIGH_LEN = 16_384
LOW_LEN = 4_096
MIN_READ_LEN = HIGH_LEN - LOW_LEN
MAX_URL_LEN = 8_192
# Requests of one connection that wait for their turn. One read brings ten thousand of them.
MAX_WAITING = 64
# Of a body whose request is answered already. Read on, so that the client gets to its answer.
MAX_DROPPED_LEN = 1 << 26
# How long a client is listened to after its last answer, so that it reads it.
LINGER_S = 1.0
# The label values of `ConnectionLimits.cuts`.
CUT_CAUSES = ("slow_head", "slow_body", "slow_reader", "no_pong", "too_many")
_CHECKS_PER_TIMEOUT = 10
# Connections beyond the limit that are kept back for probes of the server's health.
KEPT_BACK = 32
_INVALID_DATA = 1007
_POLICY_VIOLATION = 1008
_INTERNAL_ERROR = 1011
_SERVICE_RESTART = 1012


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a client may do. `cuts` counts the connections that were cut, by cause.

    `max_head_len` and `max_message_len`, of one WebSocket message, are in bytes. A WebSocket is
    pinged every `ping_interval_s`, and has as long to answer. Beyond `max_connections` there are
    KEPT_BACK more, on which only probes are answered.
    """

    max_head_len: int = 32_768
    head_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    max_message_len: int = 1 << 23
    ping_interval_s: float = 20.0
    max_connections: int | None = None
    cuts: Counter = field(default_factory=lambda: Counter("tandem_connections_cut", "", "cause"))


class Connection(Protocol):
    """What is checked for slow clients."""

    def check_time(self, now_s: float, /) -> None:
        """Cuts the connection if its client is too slow. `now_s` is of the loop's clock."""


async def watch(connections: Collection[Connection], limits: ConnectionLimits) -> None:
    """Checks all connections, again and again, until it is cancelled.

    One pass over all costs less than timers that each request starts and cancels.
    """
    clock = asyncio.get_running_loop().time
    timeout_s = min(limits.head_timeout_s, limits.write_timeout_s)
    while True:
        await asyncio.sleep(timeout_s / _CHECKS_PER_TIMEOUT)
        now_s = clock()
        for connection in tuple(connections):
            connection.check_time(now_s)


class SlowReaderCheck:
    """Whether the client of one connection takes what was written for it."""

    def __init__(self, transport: asyncio.WriteTransport, limits: ConnectionLimits) -> None:
        transport.set_write_buffer_limits(high=HIGH_LEN, low=LOW_LEN)
        self._transport = transport
        self._limits = limits
        self._since_s: float | None = None
        self._unread_len = 0

    def restart(self) -> None:
        self._since_s = None

    def is_too_slow(self, now_s: float, *, is_waited_for: bool) -> bool:
        """`is_waited_for`: the server waits for the client to read."""
        unread_len = self._transport.get_write_buffer_size() if is_waited_for else 0
        if not unread_len:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
            self._unread_len = unread_len
        elif now_s - self._since_s >= self._limits.write_timeout_s:
            if self._unread_len - unread_len < MIN_READ_LEN:
                return True
            self._since_s = now_s
            self._unread_len = unread_len
        return False

    def record_cut(self, scope: Scope | None, client: tuple[str, int] | None) -> None:
        """Counts and logs the cut, and notes it for the line of the request."""
        record = None if scope is None else AccessRecord.within(scope)
        if record is not None:
            record.cut_by = "slow_reader"
        self._limits.cuts.inc("slow_reader")
        _logger.info(
            "request_id=%s error_type=slow_reader client=%s: cut with %d bytes untaken",
            "unknown" if record is None else record.request_id,
            ":".join(map(str, client or ())),
            self._transport.get_write_buffer_size(),
        )


class _AnswerTransport:
    """A connection's transport to one answer, whose `close` is another."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class _CycleParts:
    """See PartWriter; of one answer."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_ready(self) -> bool:
        cycle = self._cycle
        is_over = cycle.disconnected or cycle.response_complete
        return bool(cycle.chunked_encoding) and not (cycle.flow.write_paused or is_over)

    def write(self, data: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class _UnframedApp:
    """The application for a client of HTTP/1.0, which knows no chunks (RFC 9112, 6.1).

    An answer whose length is not declared goes out bare, and ends with its connection.
    """

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self._cycle
        is_bare = False

        async def send_bare(message: Message) -> None:
            nonlocal is_bare
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                is_bare = b"content-length" not in names
                if is_bare:
                    cycle.chunked_encoding = False
            elif is_bare:
                # uvicorn counts down what is declared.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_bare)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

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
        # The cycle that is answered; `cycle` is the one that was read last.
        self._answering: RequestResponseCycle | None = None
        self._hangs_up = False
        self._is_for_probes = False
        self._is_used = False
        self._head_len = 0
        # Bytes since the parser's last callback, which it may still hold.
        self._held_len = 0
        self._dropped_len = 0
        # When the head that is expected began; None during a body and between requests.
        self._head_since_s: float | None = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is connected, and TLS is settled."""
        super().connection_made(transport)
        self._reader_check = SlowReaderCheck(transport, self._limits)
        most = self._limits.max_connections
        num_beyond = 0 if most is None else len(self.connections) - most
        self._is_for_probes = num_beyond > 0
        if num_beyond > KEPT_BACK:
            self._limits.cuts.inc("too_many")
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; the application that waits for it is woken."""
        self._disconnect_answer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, which may begin and end anywhere in them."""
        if self._hangs_up or self.transport.is_closing():
            return
        self._held_len += len(data)
        self._feed(data)
        if self._held_len > self._limits.max_head_len and not self._hangs_up:
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_used = True
        self._head_len = 0
        self._head_since_s = self.loop.time()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_LEN:
            raise HttpError(414, "uri_too_long", f"the URL has more than {MAX_URL_LEN} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind the body."""
        # A trailer is none of the headers (RFC 9110, 6.5.1), which are checked already.
        if self._head_since_s is not None:
            super().on_header(name, value)
        self._held_len = 0
        self._head_len += len(name) + len(value) + 4
        if self._head_len > self._limits.max_head_len:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        """The head is whole; the body may follow."""
        self._held_len = 0
        self._unset_keepalive_if_required()
        self._check_head()
        if self._is_for_probes:
            self._check_probe()
        if self.parser.should_upgrade() and not self._should_upgrade():
            return  # `_feed` parses it once more
        if len(self.pipeline) >= MAX_WAITING:
            message = f"more than {MAX_WAITING} requests wait for their answers"
            raise HttpError(400, "bad_request", message)
        super().on_headers_complete()
        self._dropped_len = 0
        if self.parser.should_upgrade():
            return  # `_feed` hands it over
        # Of a body that was not asked for nobody knows whether it will still be sent.
        if self.expect_100_continue:
            self.cycle.keep_alive = False
        self._head_since_s = None

    def on_body(self, body: bytes) -> None:
        self._held_len = 0
        super().on_body(body)
        if self.cycle.response_complete and not self._hangs_up:
            self._dropped_len += len(body)
            if self._dropped_len > MAX_DROPPED_LEN:
                self._hang_up()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader_check.restart()

    def check_time(self, now_s: float) -> None:
        """Cuts the connection if its client is too slow."""
        is_waited_for = self.flow.write_paused or not self._is_answering
        if self._reader_check.is_too_slow(now_s, is_waited_for=is_waited_for):
            self._reader_check.record_cut(self.scope, self.client)  # type: ignore[arg-type]
            # `close` would wait until the client has read what waits for it.
            self.transport.abort()
        elif self._head_since_s is not None:
            if self._is_answering:
                self._head_since_s = now_s
            elif now_s - self._head_since_s >= self._limits.head_timeout_s:
                self._cut_slow_sender()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What our own callbacks raise, the parser wraps.
            refusal = error.__context__
            if not isinstance(refusal, HttpError):
                refusal = HttpError(400, "bad_request", f"this is no HTTP request: {error}")
            self._refuse(refusal)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
            # RFC 9110, 7.8: a server may ignore an offer of another protocol, and Java's client
            # offers h2c with every request. The parser stops behind the headers of such a request,
            # so that it is parsed again as if the offer had not been made.
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._feed(head + data[upgrade.args[0] :])

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _should_upgrade(self) -> bool:
        # The answers before it would go into the WebSocket.
        return not self._is_answering and super()._should_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _UnframedApp(app, cycle)
        elif cycle.scope["method"] != "HEAD":
            cycle.scope[PART_WRITER] = _CycleParts(cycle)  # type: ignore[literal-required]
        cycle.transport = _AnswerTransport(self.transport, partial(self._close_behind, cycle))  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _check_head(self) -> None:
        """Refuses what a proxy before this server may read in another way (RFC 9112, 3.2 and 6.1).

        The parser takes any list of codings that ends in `chunked`.
        """
        is_old = self.parser.get_http_version() == "1.0"
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        codings = {value.lower() for name, value in self.headers if name == b"transfer-encoding"}
        fault = None
        if self.parser.get_method() == b"CONNECT":
            fault = "no tunnel is opened here"
        elif num_hosts > 1 or (num_hosts == 0 and not is_old):
            fault = f"a request has one Host header, this one has {num_hosts}"
        elif codings and (is_old or codings != {b"chunked"}):
            fault = "a body's Transfer-Encoding must be `chunked`, in HTTP/1.1, or absent"
        if fault is not None:
            raise HttpError(400, "bad_request", fault)

    def _check_probe(self) -> None:
        """Refuses anything else on one of the connections that are kept back."""
        method = self.parser.get_method().decode()
        path = self.url.partition(b"?")[0].decode("latin-1")
        if not is_probe(method, path):
            self._limits.cuts.inc("too_many")
            most = self._limits.max_connections
            message = f"{most} connections are open, as many as there may be; try again"
            raise HttpError(503, "too_many_connections", message)

    def _cut_slow_sender(self) -> None:
        if not self._is_used:
            self.transport.close()  # a connection made in advance, and never used
            return
        self._limits.cuts.inc("slow_head")
        message = f"the headers did not come within {self._limits.head_timeout_s:g} s"
        self._refuse(HttpError(408, "slow_sender", message))

    def _head_too_large(self) -> HttpError:
        message = f"the headers have more than {self._limits.max_head_len} bytes"
        return HttpError(431, "headers_too_large", message)

    def _refuse(self, error: HttpError) -> None:
        """Hangs up, after the answer that is under way or else one of its own."""
        is_in_body = self._head_since_s is None and self.cycle is not None and self.cycle.more_body
        self._hangs_up = True
        self._head_since_s = None
        answering = self._answering
        if answering and self._is_answering and not (is_in_body and answering is self.cycle):
            answering.keep_alive = False
            self.pipeline.clear()
            return
        if not (is_in_body and self.cycle.response_started):
            self._answer(error)
        self._disconnect_answer()
        self._hang_up()

    def _close_behind(self, cycle: RequestResponseCycle) -> None:
        """The answer is complete, and the last one; its client may still send the body."""
        if cycle.more_body and not self.transport.is_closing():
            self._hang_up()
        else:
            self.transport.close()

    def _hang_up(self) -> None:
        """A moment later, so that a client that still writes gets its answer."""
        self._hangs_up = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _answer(self, error: HttpError) -> None:
        request_id = uuid.uuid4().hex
        _logger.info(
            "request_id=%s status=%d error_type=%s: %s",
            request_id,
            error.status,
            error.error_type,
            error,
        )
        path = getattr(self, "url", b"").partition(b"?")[0].decode("latin-1")
        body = Problem.of(error, Dialect.of_path(path), request_id).body
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

    def _disconnect_answer(self) -> None:
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()


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
        if self.handshake_complete and not self.close_sent:
            self._fail(_SERVICE_RESTART, "the server stops")
        super().shutdown()

    async def send(self, message: ASGISendEvent) -> None:
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
