"""Requests to a model's server over its unix socket, and their streamed responses.

    client's request -> forward -> send_request -> UpstreamResponse -> send_back -> client

Each request gets a connection: on one machine that costs less than to check whether an old one is
still open. Bytes are read on demand, so that a slow client slows its server down and fills no
memory here. Headers of one connection stay on it. If the client leaves, the server's work is
cancelled; if the server dies, an event stream ends with an error in the client's dialect.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import httptools
from starlette.requests import Request
from starlette.types import Send

from fleet.errors import ResponseCut, ServerGone
from router.http.bodies import end, unless_disconnected, until_disconnected
from router.http.errors import Dialect, Problem
from router.http.server.access import AccessRecord

_READ_LEN = 65_536
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
)
# The front reads bodies whole, handles CORS, and sets a request's id.
_NOT_FORWARDED = _OF_CONNECTION | {b"content-length", b"expect", b"origin", b"x-request-id"}
_NOT_RETURNED = _OF_CONNECTION | {b"x-request-id", b"date", b"server"}
_DONE = b"data: [DONE]\n\n"

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


async def forward(request: Request, socket: Path, body: bytes) -> UpstreamResponse:
    """The response of the server at `socket`, with its headers. Raises ServerGone, ClientLeft."""
    scope = request.scope
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = _without(scope["headers"], _NOT_FORWARDED)
    headers.append((b"x-request-id", AccessRecord.of(request).request_id.encode()))
    # HTTP/1.0 needs none, but what is sent on is HTTP/1.1.
    if not any(name == b"host" for name, _ in headers):
        headers.append((b"host", b"fleet"))
    sending = send_request(socket, request.method, target, headers, body)
    return await unless_disconnected(request, sending)


async def send_back(request: Request, response: UpstreamResponse, send: Send) -> None:
    """Send the response as it arrives, until it ends or the client leaves."""
    leaving = asyncio.ensure_future(until_disconnected(request.receive))
    leaving.add_done_callback(lambda _: response.close())
    headers = _without(response.headers, _NOT_RETURNED)
    last = b""
    try:
        start = {"type": "http.response.start", "status": response.status}
        await send({**start, "headers": headers})
        async for chunk in response.chunks():
            last = chunk
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except ResponseCut as error:
        if not leaving.done():
            AccessRecord.of(request).error_type = "incomplete_generation"
            if _has_events(headers):
                await _end_with_error(request, last, error, send)
    finally:
        response.close()
        await end(leaving)


async def _end_with_error(request: Request, last: bytes, cut: ResponseCut, send: Send) -> None:
    """End an event stream; any other response can only be cut off."""
    path = request.url.path
    request_id = AccessRecord.of(request).request_id
    error = ServerGone(f"{cut}; the model is loaded anew")
    event = _error_event(path, Problem.of(error, Dialect.of_path(path), request_id))
    if last and not last.endswith(b"\n\n"):
        event = b"\n\n" + event
    await send({"type": "http.response.body", "body": event, "more_body": False})


def _without(
    headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]
) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name not in names]


def _error_event(path: str, problem: Problem) -> bytes:
    """An error as the last event of a stream at `path`."""
    dialect = Dialect.of_path(path)
    if dialect is Dialect.TGI:
        return problem.frame()
    if dialect is Dialect.ANTHROPIC or path == "/v1/responses":
        return b"event: error\n" + problem.frame()
    return problem.frame() + _DONE


def _has_events(headers: Headers) -> bool:
    return dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")
