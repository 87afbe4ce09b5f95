"""Requests to a model's server, at a unix socket or a host, and their streamed responses.

    client's request -> forward -> send_request -> UpstreamResponse -> send_back -> client

Each request gets a connection: on one machine that costs less than to check whether an old one is
still open. Bytes are read on demand, so that a slow client slows its server down and fills no
memory here. Headers of one connection stay on it. If the client leaves, the server's work is
cancelled; if the server dies, an event stream ends with an error in the client's dialect.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import httptools
from starlette.requests import Request
from starlette.types import Send

from fleet.errors import FleetError, NotReached, ResponseCut, ServerGone
from router.http.bodies import end, unless_disconnected, until_disconnected
from router.http.errors import Dialect, HttpError, Problem
from router.http.server.access import AccessRecord

_READ_LEN = 65_536
_CONNECT_TIMEOUT_S = 2.0
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
)
# The front reads bodies whole, handles CORS, and sets a request's id.
_OF_FRONT = {b"x-tandem-front", b"x-tandem-continue", b"x-tandem-migrate"}
_NOT_FORWARDED = (
    _OF_CONNECTION | {b"content-length", b"expect", b"origin", b"x-request-id"} | _OF_FRONT
)
_NOT_RETURNED = _OF_CONNECTION | {b"x-request-id", b"date", b"server"}
_DONE = b"data: [DONE]\n\n"
_GONE = "the model's server stopped before it answered; it is loaded anew when asked for"

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Where a server listens by TCP; with a `tls_name` by TLS, with a certificate of that name."""

    host: str
    port: int
    tls_name: str | None = None


# A unix socket's path, or a host.
Address = Path | HostAddress


@dataclass(frozen=True, slots=True)
class StreamedBody:
    """A request's body that is passed on as it comes, with its length."""

    length: int
    chunks: AsyncIterable[bytes]


async def connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, also where nobody answers in time."""
    if isinstance(address, Path):
        return await asyncio.open_unix_connection(str(address), limit=_READ_LEN)
    tls = None if address.tls_name is None else client_tls()
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        return await asyncio.open_connection(
            address.host, address.port, ssl=tls, server_hostname=address.tls_name, limit=_READ_LEN
        )


@cache
def client_tls() -> ssl.SSLContext:
    """Trusts whom the system trusts (SSL_CERT_FILE)."""
    return ssl.create_default_context()


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

    async def read(self) -> bytes:
        """The whole body. Raises ResponseCut."""
        return b"".join([chunk async for chunk in self.chunks()])

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
    address: Address,
    method: str,
    target: bytes,
    headers: Headers,
    body: bytes | StreamedBody = b"",
) -> UpstreamResponse:
    """Send a request, and return when the response's headers are there.

    `headers` are without those of framing. Raises NotReached if there is no connection, and
    ServerGone if no response arrives.
    """
    try:
        reader, writer = await connect(address)
    except OSError as error:
        raise NotReached(_GONE) from error
    response = UpstreamResponse(writer, is_bodiless=method == "HEAD")
    body_len = len(body) if isinstance(body, bytes) else body.length
    try:
        writer.write(_head(method, target, headers, body_len))
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
        raise ServerGone(_GONE) from error
    except BaseException:
        response.close()
        raise
    return response


class Got(NamedTuple):
    """A server's answer. Where there is none in time the status is 0, and the body says why."""

    status: int
    body: bytes
    headers: Mapping[bytes, bytes] = MappingProxyType({})


async def get(address: Address, path: str, headers: Headers, timeout_s: float) -> Got:
    try:
        async with asyncio.timeout(timeout_s):
            response = await send_request(address, "GET", path.encode(), headers)
            with contextlib.closing(response):
                return Got(response.status, await response.read(), dict(response.headers))
    except (FleetError, ResponseCut, TimeoutError) as error:
        return Got(0, str(error).encode())


async def _write(writer: asyncio.StreamWriter, body: bytes | StreamedBody) -> None:
    with contextlib.suppress(OSError):
        if isinstance(body, bytes):
            writer.write(body)
            await writer.drain()
            return
        try:
            async for chunk in body.chunks:
                writer.write(chunk)
                await writer.drain()
        except HttpError:
            # The client's fault, for which the server must not wait.
            writer.transport.abort()
            raise


def _head(method: str, target: bytes, headers: Headers, body_len: int) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target)]
    lines += [b"%b: %b" % header for header in headers]
    if body_len or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % body_len)
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


async def forward(
    request: Request, address: Address, body: bytes | StreamedBody, own_headers: Headers = ()
) -> UpstreamResponse:
    """The response of the server at `address`, to the request with `own_headers` of the front.

    Raises ServerGone, ClientLeft.
    """
    scope = request.scope
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = without(scope["headers"], _NOT_FORWARDED)
    headers.append((b"x-request-id", AccessRecord.of(request).request_id.encode()))
    # HTTP/1.0 needs none, but what is sent on is HTTP/1.1.
    if not any(name == b"host" for name, _ in headers):
        headers.append((b"host", b"fleet"))
    sending = send_request(address, request.method, target, [*headers, *own_headers], body)
    if not isinstance(body, bytes):
        # The client's messages are read as its body.
        return await sending
    return await unless_disconnected(request, sending)


async def send_back(request: Request, response: UpstreamResponse, send: Send) -> None:
    """Send the response as it arrives, until it ends or the client leaves."""
    leaving = asyncio.ensure_future(until_disconnected(request.receive))
    leaving.add_done_callback(lambda _: response.close())
    headers = returned(response.headers)
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
            if has_events(headers):
                gone = ServerGone(f"{error}; the model is loaded anew")
                await end_with_error(request, last, gone, send)
    finally:
        response.close()
        await end(leaving)


async def end_with_error(request: Request, last: bytes, error: FleetError, send: Send) -> None:
    """End an event stream, of which `last` was sent last; other responses can only be cut off."""
    path = request.url.path
    request_id = AccessRecord.of(request).request_id
    event = _error_event(path, Problem.of(error, Dialect.of_path(path), request_id))
    if last and not last.endswith(b"\n\n"):
        event = b"\n\n" + event
    await send({"type": "http.response.body", "body": event, "more_body": False})


def returned(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Those of a server's response that its client gets."""
    return without(headers, _NOT_RETURNED)


def without(
    headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]
) -> list[tuple[bytes, bytes]]:
    """The headers of other names."""
    return [(name, value) for name, value in headers if name not in names]


def _error_event(path: str, problem: Problem) -> bytes:
    """An error as the last event of a stream at `path`."""
    dialect = Dialect.of_path(path)
    if dialect is Dialect.TGI:
        return problem.frame()
    if dialect is Dialect.ANTHROPIC or path == "/v1/responses":
        return b"event: error\n" + problem.frame()
    return problem.frame() + _DONE


def has_events(headers: Headers) -> bool:
    """Whether they are those of an event stream."""
    return dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")
