"""How large a request may be, counted while it is read; its body's limit is the application's.

What breaks a limit is raised as an `HttpError`.
"""

from collections.abc import Iterable

from router.http.errors import HttpError

MAX_NUM_HEADERS = 100
MAX_URL_LEN = 8_192
# Of a URL or a header of a WebSocket's handshake.
MAX_HANDSHAKE_LINE_LEN = 8_000
# Bytes on the wire for each byte of a body, at most: chunks of one byte, and more than that.
_MAX_FRAMING = 16


def check_handshake(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise HttpError for lines that are longer than those of a WebSocket's handshake may be.

    The library that reads it again would never answer.
    """
    lines = (len(name) + len(value) for name, value in headers)
    if max((len(url), *lines)) > MAX_HANDSHAKE_LINE_LEN:
        message = (
            "a line of a WebSocket's handshake, a header or the URL, has more than "
            f"{MAX_HANDSHAKE_LINE_LEN} bytes"
        )
        raise HttpError(431, "headers_too_large", message)


class RequestSize:
    """The request that is being read on one connection. Lengths in bytes."""

    def __init__(self, max_head_len: int) -> None:
        self._max_head_len = max_head_len
        self._reset()
        self._has_begun = False

    @property
    def is_empty(self) -> bool:
        """Nothing of the first one came."""
        return not self._has_begun and self._wire_len == 0

    def begin(self) -> None:
        """The first byte of a request."""
        self._reset()
        self._has_begun = True

    def _reset(self) -> None:
        self._url_len = self._num_headers = self._head_len = 0
        self._body_len = self._wire_len = 0

    def add_url(self, url_len: int) -> None:
        """The request's target, or a part of it."""
        self._url_len += url_len
        if self._url_len > MAX_URL_LEN:
            raise HttpError(414, "uri_too_long", f"the URL has more than {MAX_URL_LEN} bytes")

    def add_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind the body."""
        self._num_headers += 1
        self._head_len += len(name) + len(value) + 4
        if self._num_headers > MAX_NUM_HEADERS:
            message = f"there are more than {MAX_NUM_HEADERS} headers"
            raise HttpError(431, "headers_too_large", message)
        if self._head_len > self._max_head_len:
            raise self._head_too_large()

    def add_body(self, body_len: int) -> None:
        """A part of the body."""
        self._body_len += body_len

    def add_wire(self, wire_len: int, *, in_body: bool) -> None:
        """What came over the wire, read or not.

        A header that does not end, or framing without a body, is in the parser's hands and is seen
        here alone.
        """
        self._wire_len += wire_len
        max_head_len = 2 * self._max_head_len if in_body else self._max_head_len  # trailers
        if self._wire_len - _MAX_FRAMING * self._body_len > max_head_len:
            raise self._head_too_large()

    def _head_too_large(self) -> HttpError:
        message = f"the headers have more than {self._max_head_len} bytes"
        return HttpError(431, "headers_too_large", message)
