"""Passes one HTTP request on to a model's server, and its response back to the client.

Headers of one connection stay on it. If the client leaves, the server's work is cancelled; if the
server dies, an event stream ends with an error in the client's dialect.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import Request
from starlette.types import Send

from fleet.errors import ResponseCut, ServerGone
from fleet.http.upstream import Headers, UpstreamResponse, send_request
from router.http.bodies import end, unless_disconnected, until_disconnected
from router.http.errors import Dialect, Problem
from router.http.server.access import AccessRecord

_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
)
# The front reads bodies whole, handles CORS, and sets a request's id.
_NOT_FORWARDED = _OF_CONNECTION | {b"content-length", b"expect", b"origin", b"x-request-id"}
_NOT_RETURNED = _OF_CONNECTION | {b"x-request-id", b"date", b"server"}
_DONE = b"data: [DONE]\n\n"


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
