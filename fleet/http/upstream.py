"""One HTTP/1.1 request to a model's server over its unix socket, and its streamed response.

Each request gets a connection: on one machine that costs less than to check whether an old one is
still open. Bytes are read on demand, so that a slow client slows its server down and fills no
memory here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httptools

from fleet.errors import ResponseCut, ServerGone

_READ_LEN = 65_536

Headers = Sequence[tuple[bytes, bytes]]


class UpstreamResponse:
    """A response whose status and headers have arrived; `chunks` reads its body."""

    def __init__(self, writer: asyncio.StreamWriter, is_bodiless: bool) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._writer = writer
        self._is_bodiless = is_bodiless
        self._parser = httptools.HttpResponseParser(self)
        self._has_head = False
        self._is_complete = False
        self._bodies: list[bytes] = []

    def on_message_begin(self) -> None:
        """Callback of the parser; also for the response after a 1xx."""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Callback of the parser."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Callback of the parser."""
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        self._is_complete |= self._has_head and self._is_bodiless

    def on_body(self, body: bytes) -> None:
        """Callback of the parser."""
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        """Callback of the parser."""
        self._is_complete |= self._has_head

    def close(self) -> None:
        """Close the connection; the server cancels the request."""
        self._writer.transport.abort()

    async def read_head(self, reader: asyncio.StreamReader) -> None:
        """Read up to the end of the headers. Raises ResponseCut."""
        self._reader = reader
        while not self._has_head:
            await self._read()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises ResponseCut."""
        while True:
            if self._bodies:
                bodies = self._bodies
                self._bodies = []
                yield bodies[0] if len(bodies) == 1 else b"".join(bodies)
            elif self._is_complete:
                return
            else:
                await self._read()

    async def _read(self) -> None:
        try:
            data = await self._reader.read(_READ_LEN)
            if data:
                self._parser.feed_data(data)
                return
        except (OSError, httptools.HttpParserError) as error:
            raise ResponseCut(f"the model's server broke its answer off: {error}") from error
        raise ResponseCut("the model's server broke its answer off")


async def send_request(
    socket: Path, method: str, target: bytes, headers: Headers, body: bytes = b""
) -> UpstreamResponse:
    """Send a request, and return when the response's headers are there.

    `headers` are without those of framing. Raises ServerGone if no response arrives.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=_READ_LEN)
    except OSError as error:
        raise _gone() from error
    response = UpstreamResponse(writer, is_bodiless=method == "HEAD")
    try:
        writer.write(_head(method, target, headers, len(body)))
        # A server may refuse while the body is still being written.
        sending = asyncio.ensure_future(_write(writer, body))
        try:
            await response.read_head(reader)
        finally:
            if sending.done():
                sending.result()
            else:
                sending.cancel()
    except (ResponseCut, OSError) as error:
        response.close()
        raise _gone() from error
    except BaseException:
        response.close()
        raise
    return response


async def _write(writer: asyncio.StreamWriter, body: bytes) -> None:
    with contextlib.suppress(OSError):
        writer.write(body)
        await writer.drain()


def _head(method: str, target: bytes, headers: Headers, body_len: int) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target)]
    lines += [b"%b: %b" % header for header in headers]
    if body_len or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % body_len)
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


def _gone() -> ServerGone:
    return ServerGone(
        "the model's server stopped before it answered; it is loaded anew when asked for"
    )
