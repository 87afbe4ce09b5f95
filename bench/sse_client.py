"""A streaming HTTP client that costs the measured machine little: asyncio streams and no more.

It speaks just enough HTTP/1.1 for a POST whose answer is an event stream: one connection a
request, chunked or plain bodies.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_LIMIT_BYTES = 4 * 2**20


class HttpError(Exception):
    """The server answered with another status than 200. Names of `headers` are in small letters."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str) -> None:
        super().__init__(f"HTTP {status}: {body[:300]}")
        self.status = status
        self.headers = headers


async def post_events(
    url: str, body: bytes, headers: Mapping[str, str] = NO_HEADERS
) -> AsyncIterator[bytes]:
    """POST `body`, with these headers too; yields the payload of each `data:` line as it arrives.

    Raises HttpError for a status other than 200, OSError when the connection fails, and
    asyncio.IncompleteReadError when the server hangs up in the middle.
    """
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    port = parts.port or 80
    reader, writer = await asyncio.open_connection(host, port, limit=_LIMIT_BYTES)
    try:
        head = (
            f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Accept: text/event-stream\r\nConnection: close\r\n"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"{head}\r\n".encode() + body)
        status, answered = await _read_head(reader)
        if status != 200:
            rest = await reader.read(_LIMIT_BYTES)
            raise HttpError(status, answered, rest.decode(errors="replace"))
        is_chunked = "chunked" in answered.get("transfer-encoding", "")
        pieces = _chunks(reader) if is_chunked else _plain(reader)
        buffer = b""
        async for piece in pieces:
            buffer += piece
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(status_line.split()[1]), headers


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await reader.readline()
        if not line:
            raise asyncio.IncompleteReadError(b"", None)
        size = int(line.split(b";")[0], 16)
        if size == 0:
            return
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _plain(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(65536):
        yield piece
