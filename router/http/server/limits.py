"""The limits of one connection: how large a request's head may be, how slow its client may be.

A client sends too slowly when

* the head of a request, its line and headers, is not whole `head_timeout_s` after the connection
  was made, or after the first byte of a further request; or
* less than `MIN_BODY_LEN` bytes of a body, and not the rest of it, came in `body_timeout_s`. Time
  in which the server does not read, since an answer is under way, does not count.

A connection holds at most `HIGH_LEN` bytes that its client has not read, and one piece more; the
application waits before it sends more. The client reads too slowly when

* `HIGH_LEN` bytes waited, and `write_timeout_s` later there were still more than `LOW_LEN`; or
* an answer was complete, and `write_timeout_s` later a part of it still waited.

Both count from when they began, whatever is read in between. The kernel's buffer is bounded by
`listen.py`.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from processes.instruments import Counter
from router.http.server.errors import HttpError

MIN_BODY_LEN = 16_384
HIGH_LEN = 16_384
LOW_LEN = 4_096
PIECE_LEN = 16_384
MAX_NUM_HEADERS = 100
MAX_URL_LEN = 8_192
# Of a URL or a header of a WebSocket's handshake.
_MAX_HANDSHAKE_LINE_LEN = 8_000
# Bytes on the wire for each byte of a body, at most: chunks of one byte, and more than that.
_MAX_FRAMING = 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a client may do. `cuts` counts the connections that were cut, by cause.

    `max_head_len` and `max_message_len`, of one WebSocket message, are in bytes. A WebSocket is
    pinged every `ping_interval_s`, and has as long to answer.
    """

    max_head_len: int = 32_768
    head_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    max_message_len: int = 1 << 23
    ping_interval_s: float = 20.0
    cuts: Counter = field(default_factory=lambda: Counter("tandem_connections_cut", "", "cause"))


def check_handshake(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise HttpError for lines that the library that reads a handshake again would not answer."""
    lines = (len(name) + len(value) for name, value in headers)
    if max((len(url), *lines)) > _MAX_HANDSHAKE_LINE_LEN:
        message = (
            "a line of a WebSocket's handshake, a header or the URL, has more than "
            f"{_MAX_HANDSHAKE_LINE_LEN} bytes"
        )
        raise HttpError(431, "headers_too_large", message)


class RequestSize:
    """The size of the request that is being read, in bytes. A limit exceeded raises HttpError."""

    def __init__(self, max_head_len: int) -> None:
        self._max_head_len = max_head_len
        self.reset()

    def reset(self) -> None:
        """A request begins."""
        self._url_len = self._num_headers = self._head_len = 0
        self._body_len = self._wire_len = 0

    def count_url(self, url_len: int) -> None:
        """A part of the URL came."""
        self._url_len += url_len
        if self._url_len > MAX_URL_LEN:
            raise HttpError(414, "uri_too_long", f"the URL has more than {MAX_URL_LEN} bytes")

    def count_header(self, name: bytes, value: bytes) -> None:
        """A header came, or a trailer behind the body."""
        self._num_headers += 1
        self._head_len += len(name) + len(value) + 4
        if self._num_headers > MAX_NUM_HEADERS:
            message = f"there are more than {MAX_NUM_HEADERS} headers"
            raise HttpError(431, "headers_too_large", message)
        if self._head_len > self._max_head_len:
            raise self._head_too_large()

    def count_body(self, body_len: int) -> None:
        """A part of the body came."""
        self._body_len += body_len

    def count_wire(self, wire_len: int, *, in_body: bool) -> None:
        """Bytes came that may still be in the parser: an endless header, framing without a body."""
        self._wire_len += wire_len
        max_head_len = 2 * self._max_head_len if in_body else self._max_head_len  # trailers
        if self._wire_len - _MAX_FRAMING * self._body_len > max_head_len:
            raise self._head_too_large()

    def _head_too_large(self) -> HttpError:
        message = f"the headers have more than {self._max_head_len} bytes"
        return HttpError(431, "headers_too_large", message)


class Expected(Enum):
    """What a client has to send next; the value is the cause of a cut when it does not come."""

    HEAD = "slow_head"
    BODY = "slow_body"


# The label values of `ConnectionLimits.cuts`.
CUT_CAUSES = (*(part.value for part in Expected), "slow_reader", "no_pong")


class ReadTimer:
    """Calls `on_timeout`, once, with what was expected and did not come in time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ConnectionLimits,
        is_due: Callable[[Expected], bool],
        on_timeout: Callable[[Expected], None],
    ) -> None:
        """`is_due`: whether the client, not the server, is waited for."""
        self._loop = loop
        self._timeouts_s = {
            Expected.HEAD: limits.head_timeout_s,
            Expected.BODY: limits.body_timeout_s,
        }
        self._is_due = is_due
        self._on_timeout = on_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._is_timed = False
        self._body_len = 0
        self.expected: Expected | None = None

    def expect(self, expected: Expected | None) -> None:
        """Another part begins, or nothing is expected. It is timed from the next `settle` on."""
        self.expected = expected
        self._is_timed = False
        self._body_len = 0

    def count_body(self, body_len: int) -> None:
        """A part of the body came."""
        self._body_len += body_len

    def settle(self) -> None:
        """Everything that has come was parsed: time what has not."""
        if self.expected is None:
            self.cancel()
        elif not self._is_timed:
            self._start(self.expected)

    def cancel(self) -> None:
        """Nothing is timed any more."""
        self._is_timed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, expected: Expected) -> None:
        self.cancel()
        self._is_timed = True
        self._body_len = 0
        self._timer = self._loop.call_later(self._timeouts_s[expected], self._check, expected)

    def _check(self, expected: Expected) -> None:
        if self._body_len >= MIN_BODY_LEN or not self._is_due(expected):
            self._start(expected)
        else:
            self.cancel()
            self._on_timeout(expected)


class WriteTimer:
    """Calls `on_timeout`, once, when the client did not read what was written in time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.WriteTransport,
        timeout_s: float,
        on_timeout: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._paused: asyncio.TimerHandle | None = None
        self._complete: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=HIGH_LEN, low=LOW_LEN)

    @property
    def num_unread(self) -> int:
        """Bytes that were written and are not read."""
        return self._transport.get_write_buffer_size()

    def pause(self) -> None:
        """`HIGH_LEN` bytes wait."""
        if self._paused is None:
            self._paused = self._loop.call_later(self._timeout_s, self._expire)

    def resume(self) -> None:
        """At most `LOW_LEN` bytes wait."""
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None

    def start_answer(self) -> None:
        """An answer starts; what is left of the one before counts as a part of it."""
        if self._complete is not None:
            self._complete.cancel()
            self._complete = None

    def complete_answer(self) -> None:
        """The last byte of an answer was written."""
        self.start_answer()
        if self.num_unread:
            self._complete = self._loop.call_later(self._timeout_s, self._check_rest)

    def cancel(self) -> None:
        """The connection is closed."""
        self.resume()
        self.start_answer()

    def _check_rest(self) -> None:
        if self.num_unread:
            self._expire()

    def _expire(self) -> None:
        self.cancel()
        self._on_timeout()
