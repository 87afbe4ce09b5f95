"""Passes one HTTP request on to a model's server, and its response back to the client.

Headers of one connection stay on it. If the client leaves, the server's work is cancelled; if the
server dies, the response ends with an error in the client's dialect.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import Request
from starlette.types import Send

from fleet.errors import ResponseCut, ServerGone
from fleet.http.event_stream import EventStream, error_event, has_events
from fleet.http.upstream import UpstreamResponse, send_request
from fleet.metrics import FleetMetrics
from router.http.server.access import AccessRecord
from router.http.server.body import end, unless_disconnected, until_disconnected
from router.http.server.errors import DRAINING_HEADER, Dialect, Problem

_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
)
# The front reads bodies whole, handles CORS, and sets a request's id.
_NOT_FORWARDED = _OF_CONNECTION | {b"content-length", b"expect", b"origin", b"x-request-id"}
_DRAINING = DRAINING_HEADER.encode()
_NOT_RETURNED = _OF_CONNECTION | {b"x-request-id", b"date", b"server", _DRAINING}


async def forward(request: Request, socket: Path, body: bytes) -> UpstreamResponse:
    """The response of the server at `socket`, with its headers. Raises ServerGone, ClientLeft."""
    scope = request.scope
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = _without(scope["headers"], _NOT_FORWARDED)
    headers.append((b"x-request-id", AccessRecord.of(request).request_id.encode()))
    sending = send_request(socket, request.method, target, headers, body)
    return await unless_disconnected(request, sending)


def is_draining(response: UpstreamResponse) -> bool:
    """Whether the server answers that it is shutting down."""
    return any(name == _DRAINING for name, _ in response.headers)


async def send_back(
    request: Request,
    response: UpstreamResponse,
    stream: EventStream,
    send: Send,
    metrics: FleetMetrics,
) -> None:
    """Send the response as it arrives, until it ends or the client leaves.

    `stream` may have sent the status already.
    """
    leaving = asyncio.ensure_future(until_disconnected(request.receive))
    leaving.add_done_callback(lambda _: response.close())
    headers = _without(response.headers, _NOT_RETURNED)
    chunks, last = stream.chunks(response) if stream.is_open else response.chunks(), b""
    try:
        if not stream.is_open:
            start = {"type": "http.response.start", "status": response.status}
            await send({**start, "headers": headers})
        async for chunk in chunks:
            last = chunk
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except ResponseCut as error:
        if not leaving.done():
            metrics.cut.inc()
            AccessRecord.of(request).error_type = "incomplete_generation"
            if stream.is_open or has_events(headers):
                await _end_with_error(request, last, error, send)
    finally:
        response.close()
        await end(leaving)


async def _end_with_error(request: Request, last: bytes, cut: ResponseCut, send: Send) -> None:
    """End an event stream; any other response can only be cut off."""
    path, request_id = request.url.path, AccessRecord.of(request).request_id
    error = ServerGone(f"{cut}; the model is loaded anew")
    event = error_event(path, Problem.of(error, Dialect.of_path(path), request_id))
    if last and not last.endswith(b"\n\n"):
        event = b"\n\n" + event
    await send({"type": "http.response.body", "body": event, "more_body": False})


def _without(
    headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]
) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name not in names]
