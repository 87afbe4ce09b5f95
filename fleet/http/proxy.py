"""Passes one HTTP request on to a model's server, and its response back to the client.

Headers of one connection stay on it. If the client leaves, the server's work is cancelled; if the
server dies, the response ends with an error in the client's dialect. An event stream may start
before its model is loaded:

    first_s of silence ---> the server's own response, status and all
         `-> 200, ": loading", ": loading" ... ---> the server's events, or an error event

What takes only a moment has its own status, so that clients can retry by it. After that, comments
keep clients and proxies from timing out, and errors can only be events.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Send

from fleet.errors import ResponseCut, ServerGone
from fleet.http.upstream import Headers, UpstreamResponse, send_request
from fleet.metrics import FleetMetrics
from router.http.server.access import AccessRecord
from router.http.server.body import end, unless_disconnected, until_disconnected
from router.http.server.errors import Dialect, Problem

_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
)
# The front reads bodies whole, handles CORS, and sets a request's id.
_NOT_FORWARDED = _OF_CONNECTION | {b"content-length", b"expect", b"origin", b"x-request-id"}
_NOT_RETURNED = _OF_CONNECTION | {b"x-request-id", b"date", b"server"}
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_DONE = b"data: [DONE]\n\n"
# Paths that always answer by events, and those that do if `stream` is true.
_EVENTS = frozenset({"/generate_stream"})
_EITHER = frozenset(
    {"/", "/invocations", "/v1/chat/completions", "/v1/completions", "/v1/responses"}
    | {"/v1/messages"}
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommentTimes:
    """Seconds before the first comment, and between comments."""

    first_s: float = 2.0
    next_s: float = 5.0


class EventStream:
    """Owner of the part of a response that is sent before its model's server is asked.

    `is_open`: the status and headers are sent.
    """

    def __init__(self, request: Request, send: Send, times: CommentTimes) -> None:
        self._path: str = request.scope["path"]
        self._send = send
        self._times = times
        self.is_open = False

    def is_wanted(self, *, is_stream: bool) -> bool:
        """Whether the client expects events; `is_stream`: its body has `stream`."""
        return self._path in _EVENTS or (self._path in _EITHER and is_stream)

    async def with_comments(self, work: Coroutine[Any, Any, T], comment: Callable[[], str]) -> T:
        """The result of `work`; until it is there, comments are sent."""
        commenting = asyncio.create_task(self._send_comments(comment))
        # It fails only if the client is gone, which `work` notices itself.
        commenting.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await work
        finally:
            commenting.cancel()  # not awaited: a lease must not be lost here

    async def chunks(self, response: UpstreamResponse) -> AsyncIterator[bytes]:
        """A server's response after comments: its events, or its error as an event.

        Raises ResponseCut.
        """
        if has_events(response.headers):
            async for chunk in response.chunks():
                yield chunk
            return
        body = b"".join([chunk async for chunk in response.chunks()])
        problem = Problem(response.status, "", body, {}, _retry_after_s(response))
        yield error_event(self._path, problem)

    async def fail(self, problem: Problem) -> None:
        """End the stream with an error event."""
        await self._write(error_event(self._path, problem), is_last=True)

    async def _send_comments(self, comment: Callable[[], str]) -> None:
        await asyncio.sleep(0.0 if self.is_open else self._times.first_s)
        while True:
            if not self.is_open:
                start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                await self._send(start)
                self.is_open = True
            await self._write(f": {comment()}\n\n".encode())
            await asyncio.sleep(self._times.next_s)

    async def _write(self, body: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})


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


def error_event(path: str, problem: Problem) -> bytes:
    """An error as the last event of a stream at `path`."""
    dialect = Dialect.of_path(path)
    if dialect is Dialect.TGI:
        return problem.frame()
    if dialect is Dialect.ANTHROPIC or path == "/v1/responses":
        return b"event: error\n" + problem.frame()
    return problem.frame() + _DONE


def has_events(headers: Headers) -> bool:
    """Whether a response is an event stream."""
    return dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")


def _retry_after_s(response: UpstreamResponse) -> float | None:
    retry_ms = dict(response.headers).get(b"retry-after-ms", b"")
    return int(retry_ms) / 1000 if retry_ms.isdigit() else None
