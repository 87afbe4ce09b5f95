"""An answer that was asked for as events, from before its model is there.

    silence, for a moment ---> the model's own answer, status and all
         `-> 200, ": loading", ": loading" ... ---> the answer's events, or an error as an event

What takes a moment alone ends as if nobody had waited: a client sees the status, and may try again
by itself. Then a comment every few seconds keeps clients and proxies from giving up; an error that
comes after it can only be an event.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Send

from fleet.http.upstream import Answer, Headers
from router.http.server.errors import Dialect, Problem

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_DONE = b"data: [DONE]\n\n"
# Always by events, or if the body says so.
_EVENTS = frozenset({"/generate_stream"})
_EITHER = frozenset(
    {"/", "/invocations", "/v1/chat/completions", "/v1/completions", "/v1/responses"}
    | {"/v1/messages"}
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommentTimes:
    """Seconds of silence before the first comment, and between two."""

    first_s: float = 2.0
    next_s: float = 5.0


class EventStream:
    """Owner of what was sent of one answer before its model's server was asked."""

    def __init__(self, request: Request, send: Send, times: CommentTimes) -> None:
        self._path: str = request.scope["path"]
        self._send = send
        self._times = times
        self.is_open = False

    def is_wanted(self, asked: object) -> bool:
        """Whether the client reads events; `asked` is `stream` of its body."""
        return self._path in _EVENTS or (self._path in _EITHER and asked is True)

    async def told(self, work: Coroutine[Any, Any, T], word: Callable[[], str]) -> T:
        """What `work` returns; meanwhile comments go out, each with what `word` says then."""
        telling = asyncio.create_task(self._tell(word))
        # What ends it early is that the client is gone, which everybody else finds out too.
        telling.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await work
        finally:
            telling.cancel()  # not awaited: what was waited for is in hand here

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """A server's answer behind the comments: its events, or its error as one. Raises Cut."""
        if has_events(answer.headers):
            async for piece in answer.pieces():
                yield piece
            return
        body = b"".join([piece async for piece in answer.pieces()])
        problem = Problem(answer.status, "", body, {}, _retry_after_s(answer))
        yield error_event(self._path, problem)

    async def fail(self, problem: Problem) -> None:
        """Ends the stream with an error, in the dialect of its path."""
        await self._write(error_event(self._path, problem), is_last=True)

    async def _tell(self, word: Callable[[], str]) -> None:
        await asyncio.sleep(0.0 if self.is_open else self._times.first_s)
        while True:
            if not self.is_open:
                start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                await self._send(start)
                self.is_open = True
            await self._write(f": {word()}\n\n".encode())
            await asyncio.sleep(self._times.next_s)

    async def _write(self, body: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})


def error_event(path: str, problem: Problem) -> bytes:
    """An error as the last words of a stream at `path`."""
    dialect = Dialect.of_path(path)
    if dialect is Dialect.TGI:
        return problem.frame()
    if dialect is Dialect.ANTHROPIC or path == "/v1/responses":
        return b"event: error\n" + problem.frame()
    return problem.frame() + _DONE


def with_retry(problem: Problem, retry_after_s: float) -> Problem:
    """The problem for an event, which has no headers to say when to come back."""
    return replace(problem, retry_after_s=retry_after_s)


def has_events(headers: Headers) -> bool:
    """Whether an answer's headers say that it is a stream of events."""
    return dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")


def _retry_after_s(answer: Answer) -> float | None:
    given_ms = dict(answer.headers).get(b"retry-after-ms", b"")
    return int(given_ms) / 1000 if given_ms.isdigit() else None
