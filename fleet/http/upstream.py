"""One HTTP/1.1 request to a model's server, over its unix socket, and the answer as it comes.

A connection of its own for each request: on this machine it costs less than to find out whether an
old one is still good. Bytes are read when somebody asks for them, so that a client that is slow to
take them slows its server down, and not this process.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httptools

from fleet.errors import Cut, ServerGone

_READ_LEN = 65_536
_RETRY_AFTER_S = 1.0

Headers = Sequence[tuple[bytes, bytes]]


class Answer:
    """An answer whose status and headers are there; its body is read by `pieces`."""

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
        """The parser's word for the first byte; of a second answer, too, behind a 1xx."""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's word for a header."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The parser's word for the end of the headers."""
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        self._is_complete |= self._has_head and self._is_bodiless

    def on_body(self, body: bytes) -> None:
        """The parser's word for a part of the body."""
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        """The parser's word for the end."""
        self._is_complete |= self._has_head

    def close(self) -> None:
        """Hangs up; the server stops what it does for us."""
        self._writer.transport.abort()

    async def begin(self, reader: asyncio.StreamReader) -> None:
        """Reads up to the end of the headers. Raises Cut."""
        self._reader = reader
        while not self._has_head:
            await self._read()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, in the pieces that it comes in. Raises Cut when it does not end well."""
        while True:
            if self._bodies:
                bodies, self._bodies = self._bodies, []
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
            raise Cut(f"the model's server broke its answer off: {error}") from error
        raise Cut("the model's server broke its answer off")


async def ask(
    socket: Path, method: str, target: bytes, headers: Headers, body: bytes = b""
) -> Answer:
    """Sends a request; returns when the answer's head is there. `headers` say nothing of framing.

    Raises ServerGone: nothing of an answer came.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=_READ_LEN)
    except OSError as error:
        raise _gone() from error
    answer = Answer(writer, is_bodiless=method == "HEAD")
    try:
        writer.write(_head(method, target, headers, len(body)))
        # A server that refuses while the body is being written has an answer to be read.
        sending = asyncio.ensure_future(_send(writer, body))
        try:
            await answer.begin(reader)
        finally:
            if sending.done():
                sending.result()
            else:
                sending.cancel()
    except (Cut, OSError) as error:
        answer.close()
        raise _gone() from error
    except BaseException:
        answer.close()
        raise
    return answer


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
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
        "the model's server stopped before it answered; it is loaded anew when asked for",
        _RETRY_AFTER_S,
    )
