"""One record with a model's server: what a client sends goes there, what comes back goes here.

Headers that concern one connection alone stay on it. A client that leaves ends the server's work;
a server that dies ends the answer as the client's dialect ends a failed one.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import Request
from starlette.types import Send

from fleet.errors import Cut, ServerGone
from fleet.http.errors import http_error
from fleet.http.event_stream import EventStream, error_event, has_events, with_retry
from fleet.http.upstream import Answer, ask
from fleet.metrics import FleetMetrics
from router.http.server.access import AccessRecord
from router.http.server.body import end, unless_disconnected, until_disconnected
from router.http.server.errors import DRAINING_HEADER, Dialect, Problem

_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"}
)
# The front reads bodies whole, answers pages of other origins, and has a request's id.
_NOT_SENT = _OF_CONNECTION | {b"content-length", b"expect", b"origin", b"x-request-id"}
_LEAVING = DRAINING_HEADER.encode()
_NOT_TOLD = _OF_CONNECTION | {b"x-request-id", b"date", b"server", _LEAVING}
_RETRY_AFTER_S = 1.0


async def ask_for(request: Request, socket: Path, body: bytes) -> Answer:
    """The answer of the server at `socket`, whose head is there. Raises ServerGone, ClientLeft."""
    scope = request.scope
    target = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    headers = _without(scope["headers"], _NOT_SENT)
    headers.append((b"x-request-id", AccessRecord.of(request).request_id.encode()))
    asking = ask(socket, request.method, target, headers, body)
    return await unless_disconnected(request, asking)


def refuses_all(answer: Answer) -> bool:
    """Whether a server answers that it takes nothing more."""
    return any(name == _LEAVING for name, _ in answer.headers)


async def pass_back(
    request: Request, answer: Answer, stream: EventStream, send: Send, metrics: FleetMetrics
) -> None:
    """The answer, piece by piece as it comes, to its end or the client's leaving.

    `stream` may have begun it.
    """
    leaving = asyncio.ensure_future(until_disconnected(request.receive))
    leaving.add_done_callback(lambda _: answer.close())
    headers = _without(answer.headers, _NOT_TOLD)
    pieces, last = stream.pieces(answer) if stream.is_open else answer.pieces(), b""
    try:
        if not stream.is_open:
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for piece in pieces:
            last = piece
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except Cut as error:
        if not leaving.done():
            metrics.cut.inc()
            AccessRecord.of(request).error_type = "incomplete_generation"
            if stream.is_open or has_events(headers):
                await _break_off(request, last, error, send)
    finally:
        answer.close()
        await end(leaving)


async def _break_off(request: Request, last: bytes, cut: Cut, send: Send) -> None:
    """An event stream ends with an error; of any other answer only its being cut off can tell."""
    gone = http_error(ServerGone(f"{cut}; the model is loaded anew", _RETRY_AFTER_S))
    request_id = AccessRecord.of(request).request_id
    problem = Problem.of(gone, Dialect.of_path(request.url.path), request_id)
    frame = b"" if last.endswith(b"\n\n") or not last else b"\n\n"
    frame += error_event(request.url.path, with_retry(problem, _RETRY_AFTER_S))
    await send({"type": "http.response.body", "body": frame, "more_body": False})


def _without(
    headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]
) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name not in names]
