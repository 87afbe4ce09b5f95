"""Server-sent events: bursts of things to say, rendered and written as they come.

    source --burst--> Frames.render --bytes--> send        one task
    receive --disconnect--> end of it all                  one task

What is there at once goes out in one write. A client that leaves ends the source at once; a client
that waits in silence gets a comment line. It knows neither TGI's nor OpenAI's words.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.errors import RouterError
from router.http.disconnect import end, until_disconnected

KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = b":\n\n"

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Frames(Protocol[T_contra]):
    """Turns what happened into bytes; may be empty when there is nothing to show."""

    def render(self, burst: Sequence[T_contra], /) -> bytes:
        """Frames of what happened since the last call. Raises RouterError to end with `fail`."""

    def fail(self, error: RouterError, /) -> bytes:
        """The last frames of a stream that ends badly."""

    def end(self) -> bytes:
        """The last frames of a stream that ends well."""


class EventStream(Response):
    """An event stream as an ASGI response. It owns `source` and closes it, whatever happens."""

    def __init__(
        self,
        source: AsyncGenerator[Sequence[T], None],
        frames: Frames[T],
        headers: Mapping[str, str],
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._source = source
        self._frames = frames
        self._keep_alive_s = keep_alive_s
        self._sent_s: float | None = None
        self.status_code = 200
        self.background = None
        self.init_headers(
            {
                "content-type": "text/event-stream",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
                **headers,
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream; returns when it ended or its client left."""
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(until_disconnected(receive))
        try:
            await self._guard(writing, leaving, send)
        finally:
            await end(writing, leaving)
            await self._source.aclose()
        if not writing.cancelled():
            writing.result()

    async def _guard(
        self, writing: asyncio.Future[None], leaving: asyncio.Future[None], send: Send
    ) -> None:
        """Waits for the end of either, and breaks long silences."""
        clock = asyncio.get_running_loop().time
        while not (writing.done() or leaving.done()):
            silent_s = 0.0 if self._sent_s is None else clock() - self._sent_s
            if silent_s >= self._keep_alive_s:
                await send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})
                self._sent_s = clock()
                continue
            await asyncio.wait(
                {writing, leaving},
                timeout=self._keep_alive_s - silent_s,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def _write(self, send: Send) -> None:
        # `_sent_s` is None while a write is under way: waiting for a slow reader is no silence.
        clock = asyncio.get_running_loop().time
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        self._sent_s = clock()
        try:
            async for burst in self._source:
                if frames := self._frames.render(burst):
                    self._sent_s = None
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
                    self._sent_s = clock()
            last = self._frames.end()
        except RouterError as error:
            last = self._frames.fail(error)
        self._sent_s = None
        await send({"type": "http.response.body", "body": last, "more_body": False})
