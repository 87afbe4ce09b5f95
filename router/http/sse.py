"""Server-sent events: bursts of events, rendered and written as they come.

    source 0 --burst--> Frames.render --bytes--> send      one task for each source
    source 1 --burst--> Frames.render --bytes--> send
    receive --disconnect--> end of the stream              one task

A burst goes out in one write. Where the client keeps up, whoever makes a burst renders and writes
it, and no task is woken for it. A client that leaves ends the sources at once; a client that waits
long gets a comment line. It knows no API's events.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar, runtime_checkable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.http.bodies import PART_WRITER, PartWriter, body_part, end, until_disconnected
from router.request.errors import RouterError

KEEP_ALIVE_S = 15.0
EVENT_HEADERS: Mapping[str, str] = MappingProxyType(
    {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
)
KEEP_ALIVE = b":\n\n"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class Source(Protocol[T_co]):
    """Bursts of events; who closes it before its end wants no more."""

    def __aiter__(self) -> AsyncIterator[Sequence[T_co]]:
        """For its one reader."""

    async def aclose(self) -> None:
        """Ends it, also one that was never begun; may be called again."""


@runtime_checkable
class PushingSource(Protocol[T_co]):
    """A source that needs no task to be woken for each burst."""

    def push_to(self, sink: Callable[[Sequence[T_co]], bool]) -> None:
        """While its reader waits, the sink is called with a burst; where it answers False, and for
        the last one, the reader is woken as ever.
        """


class Frames(Protocol[T_contra]):
    """Renders events as bytes; empty when there is nothing to send."""

    def render(self, index: int, burst: Sequence[T_contra], /) -> bytes:
        """A burst of source `index`. Raises RouterError to end the whole stream with `fail`."""

    def fail(self, error: RouterError, /) -> bytes | None:
        """The last bytes of a stream that fails; None: it breaks off, and may go on elsewhere."""

    def end(self) -> bytes:
        """The last bytes of a stream that finishes."""


class EventStream(Response, Generic[T]):
    """An event stream as an ASGI response. It owns its sources and always closes them."""

    def __init__(
        self,
        sources: Sequence[Source[T]],
        frames: Frames[T],
        headers: Mapping[str, str],
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**EVENT_HEADERS, **headers})
        self._sources = sources
        self._frames = frames
        self._keep_alive_s = keep_alive_s
        self._writers: list[asyncio.Task[None]] = []
        self._send: Send | None = None
        self._may_send = asyncio.Event()
        # Waiting for a slow reader is no silence, so writes under way are counted.
        self._num_writing = 0
        self._sent_s = 0.0
        self._clock = asyncio.get_running_loop().time

    async def begin(self) -> None:
        """Starts to read the sources, before anything is sent.

        Raises the RouterError of a source that refuses at once: it can still be an answer of its
        own. Without it, the sources begin with the response and all errors are events.
        """
        self._start()
        await asyncio.sleep(0)  # every writer takes its first step
        try:
            self._check_writers()
        except BaseException:
            await self._close()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream; returns when it has ended or its client has left."""
        leaving = asyncio.ensure_future(until_disconnected(receive))
        try:
            self._start()
            await self._open(scope, send)
            last: bytes | None
            try:
                await self._until_written(leaving, send)
                last = self._frames.end()
            except RouterError as error:
                last = self._frames.fail(error)
            await self._close()  # nothing may be written behind the last bytes
            if last is not None and not leaving.done():
                await send(body_part(last, more=False))
        finally:
            await end(leaving)
            await self._close()

    def _start(self) -> None:
        self._writers = self._writers or [
            asyncio.create_task(self._write(index, source))
            for index, source in enumerate(self._sources)
        ]

    async def _open(self, scope: Scope, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        self._send = send
        self._sent_s = self._clock()
        self._may_send.set()
        parts: PartWriter | None = scope.get(PART_WRITER)
        if parts is not None:
            for index, source in enumerate(self._sources):
                if isinstance(source, PushingSource):
                    source.push_to(partial(self._push, parts, index))

    def _push(self, parts: PartWriter, index: int, burst: Sequence[T]) -> bool:
        """Writes a burst; False: it has to wait for the client."""
        if self._num_writing or not parts.is_ready:
            return False
        if frames := self._frames.render(index, burst):
            parts.write(frames)
            self._sent_s = self._clock()
        return True

    async def _until_written(self, leaving: "asyncio.Future[None]", send: Send) -> None:
        """Waits for all writers or the client's leaving, and breaks long silences."""
        clock = self._clock
        while not leaving.done():
            self._check_writers()
            writing = {writer for writer in self._writers if not writer.done()}
            if not writing:
                return
            silent_s = 0.0 if self._num_writing else clock() - self._sent_s
            if silent_s >= self._keep_alive_s:
                await send(body_part(KEEP_ALIVE, more=True))
                self._sent_s = clock()
                continue
            await asyncio.wait(
                {*writing, leaving},
                timeout=self._keep_alive_s - silent_s,
                return_when=asyncio.FIRST_COMPLETED,
            )

    def _check_writers(self) -> None:
        for writer in self._writers:
            if writer.done():
                writer.result()

    async def _write(self, index: int, source: Source[T]) -> None:
        clock = self._clock
        render = self._frames.render
        async for burst in source:
            if frames := render(index, burst):
                if self._send is None:
                    await self._may_send.wait()
                    assert self._send is not None
                self._num_writing += 1
                await self._send(body_part(frames, more=True))
                self._num_writing -= 1
                self._sent_s = clock()

    async def _close(self) -> None:
        await end(*self._writers)
        for source in self._sources:
            await source.aclose()
