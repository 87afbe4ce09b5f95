"""One HTTP/1.1 connection: uvicorn's protocol, with the limits of `limits.py`.

A request that breaks a limit while it is read never reaches the application; it is answered here
in the same form. uvicorn has no public seam for this: its version is bounded in pyproject.toml.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from router.http.server.access import AccessRecord
from router.http.server.errors import Dialect, HttpError, Problem
from router.http.server.limits import (
    MIN_BODY_LEN,
    ConnectionLimits,
    Expected,
    ReadTimer,
    RequestSize,
    WriteTimer,
    check_handshake,
)

_logger = logging.getLogger(__name__)

_LINGER_S = 1.0
# Requests of one connection that wait for their turn. One read brings ten thousand of them.
MAX_WAITING = 64
_UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings"})


def raw_answer(status: int, body: bytes, headers: str) -> bytes:
    """The last answer of a connection, as bytes. `headers` are further lines."""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{headers}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def record_slow_reader(
    record: AccessRecord | None,
    limits: ConnectionLimits,
    client: tuple[str, int] | None,
    num_unread: int,
) -> None:
    """Counts and logs a client that is cut since it reads too slowly."""
    limits.cuts.inc("slow_reader")
    _logger.info(
        "request_id=%s error_type=slow_reader client=%s: cut with %d bytes untaken",
        "unknown" if record is None else record.request_id,
        ":".join(map(str, client or ())),
        num_unread,
    )


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _read_timer: ReadTimer
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
        self._size = RequestSize(limits.max_head_len)
        # The cycle that is answered; `cycle` is the one that was read last.
        self._answering: RequestResponseCycle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._is_unused = True
        self._hangs_up = False
        self._is_other_upgrade = False
        self._is_upgraded = False
        self._num_messages = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client is connected, and TLS is settled."""
        super().connection_made(transport)
        self._write_timer = WriteTimer(
            self.loop, transport, self._limits.write_timeout_s, self._cut_slow_reader
        )
        self._read_timer = ReadTimer(self.loop, self._limits, self._is_due, self._cut_slow_sender)
        self._read_timer.expect(Expected.HEAD)
        self._read_timer.settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; the application that waits for it is woken."""
        self._read_timer.cancel()
        self._write_timer.cancel()
        if self._lingering is not None:
            self._lingering.cancel()
        self._disconnect_answer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, which may begin and end anywhere in them."""
        if self._hangs_up or self.transport.is_closing():
            return
        self._is_unused = False
        if self._read_timer.expected is None and not self._is_answering:
            self._read_timer.expect(Expected.HEAD)
        num_messages = self._num_messages
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._hangs_up or self._is_upgraded or self.transport.is_closing():
            return
        if num_messages == self._num_messages:
            in_body = self._read_timer.expected is Expected.BODY
            try:
                self._size.count_wire(len(data), in_body=in_body)
            except HttpError as refusal:
                self._refuse(refusal)
                return
        self._read_timer.settle()
        if self._read_timer.expected is None and not self._is_answering:
            # The rest of a body came behind its answer; nothing else would end the silence.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._size.reset()
        self._read_timer.expect(Expected.HEAD)

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        super().on_url(url)
        self._size.count_url(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind the body."""
        # A trailer is none of the headers (RFC 9110, 6.5.1), which are checked already.
        if self._read_timer.expected is not Expected.BODY:
            super().on_header(name, value)
        self._size.count_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole; the body may follow."""
        if self.parser.get_method() == b"CONNECT":
            raise HttpError(400, "bad_request", "no tunnel is opened here")
        self._is_other_upgrade = self.parser.should_upgrade() and not self._should_upgrade()
        if self._is_other_upgrade:
            return  # `_feed` parses it once more
        if len(self.pipeline) >= MAX_WAITING:
            message = f"more than {MAX_WAITING} requests wait for their answers"
            raise HttpError(400, "bad_request", message)
        super().on_headers_complete()
        if self.parser.should_upgrade():
            check_handshake(self.url, self.headers)
            return  # `_feed` hands it over
        # A client whose next request waits may leave too, which is seen by reading alone.
        if sum(len(cycle.body) for cycle, _ in self.pipeline) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()
        self._read_timer.expect(Expected.BODY)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._size.count_body(len(body))
        self._read_timer.count_body(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._is_other_upgrade:
            return
        self._num_messages += 1
        self._read_timer.expect(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, though its client may not have read it yet."""
        self._write_timer.complete_answer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Too much waits for the client."""
        super().pause_writing()
        self._write_timer.pause()

    def resume_writing(self) -> None:
        """The client read most of it."""
        super().resume_writing()
        self._write_timer.resume()

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
        lines += [b"%b: %b" % header for header in _without_upgrade(self.headers)]
        return b"\r\n".join([*lines, b"", b""])

    def _should_upgrade(self) -> bool:
        # What is no handshake is ignored, as any other offer; so is one behind requests that are
        # not answered.
        has_key = any(name == b"sec-websocket-key" for name, _ in self.headers)
        return has_key and not self._is_answering and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """From now on the connection belongs to `websocket.py`."""
        self._is_upgraded = True
        self._read_timer.cancel()
        self._write_timer.cancel()
        super().handle_websocket_upgrade()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        self._write_timer.start_answer()
        if cycle.waiting_for_100_continue:
            app = _closing_unasked(cycle, app)
        super()._start_asgi_task(cycle, app)

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    @property
    def _record(self) -> AccessRecord | None:
        """That of the answer under way, or of the last one."""
        if self._answering is None:
            return None
        scope: Scope = self._answering.scope  # type: ignore[assignment]
        return AccessRecord.within(scope)

    def _is_due(self, expected: Expected) -> bool:
        if expected is Expected.HEAD:
            return not self._is_answering
        return not self.flow.read_paused and self._answering is self.cycle

    def _cut_slow_sender(self, expected: Expected) -> None:
        if expected is Expected.HEAD and self._is_unused:
            self.transport.close()  # a connection made in advance, and never used
            return
        self._limits.cuts.inc(expected.value)
        if expected is Expected.HEAD:
            message = f"the headers did not come within {self._limits.head_timeout_s:g} s"
        else:
            timeout_s = self._limits.body_timeout_s
            message = f"less than {MIN_BODY_LEN} bytes of the body came within {timeout_s:g} s"
        self._refuse(HttpError(408, "slow_sender", message))

    def _cut_slow_reader(self) -> None:
        record = self._record
        record_slow_reader(record, self._limits, self.client, self._write_timer.num_unread)
        if record is not None and self._is_answering:
            record.cut("slow_reader")
        # `close` would wait until the client has read what waits for it.
        self.transport.abort()

    def _refuse(self, error: HttpError) -> None:
        """Answers where no other answer was begun or is due before, and hangs up after the last."""
        self._hangs_up = True
        self._read_timer.cancel()
        is_known = self._read_timer.expected is Expected.BODY
        if not is_known and self._is_answering:
            self.cycle.keep_alive = False
        elif is_known and self._answering is not self.cycle:
            self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._answering
            assert last is not None, "a request that waits for its turn waits for another"
            last.keep_alive = False
        elif is_known and self.cycle.response_started:
            self._disconnect_answer()
            self.transport.close()
            self._write_timer.complete_answer()
        else:
            self._answer(error, self._record if is_known else None)
            self._disconnect_answer()
            self._linger()

    def _linger(self) -> None:
        """Hangs up a moment later, so that a client that still writes gets its answer."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._lingering = self.loop.call_later(_LINGER_S, self.transport.close)
        self._write_timer.complete_answer()

    def _answer(self, error: HttpError, record: AccessRecord | None) -> None:
        if record is not None:  # the access log has a line for it
            request_id = record.request_id
            record.cut(error.error_type, error.status)
        else:
            request_id = uuid.uuid4().hex
            _logger.info(
                "request_id=%s status=%d error_type=%s: %s",
                *(request_id, error.status, error.error_type, error),
            )
        path = getattr(self, "url", b"").partition(b"?")[0].decode("latin-1")
        body = Problem.of(error, Dialect.of_path(path), request_id).body
        self.transport.write(raw_answer(error.status, body, f"x-request-id: {request_id}"))

    def _disconnect_answer(self) -> None:
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()


def _without_upgrade(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            kept = [option for option in options if option.lower() not in _UPGRADE_HEADERS]
            if kept:
                yield name, b", ".join(kept)
        elif name not in _UPGRADE_HEADERS:
            yield name, value


def _closing_unasked(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Hangs up behind an answer that came before the body was asked for (100-continue).

    Nobody knows whether that body will still be sent, and so what the next bytes are.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body and not cycle.body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_last)

    return answer
