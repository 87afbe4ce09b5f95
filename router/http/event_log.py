"""The last events of one stream, numbered, so that its reader may come back for them.

    0 ... first ... next ... end        of the events' numbers
          |  taken  | waits |
          +-- kept in here -+

A writer appends, at most one reader takes; a further one takes its place. What was taken is kept
too, within bounds, since a connection that breaks loses what its reader had not yet read.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from starlette.types import Receive, Send

from router.http.server.body import body_part, end, until_disconnected
from router.http.sse import KEEP_ALIVE, KEEP_ALIVE_S

# A thousand tokens of a chat, about.
MAX_LOG_LEN = 1 << 18
_SEPARATOR = b"\n\n"
_DISPLACED = b": another connection reads on\n\n"


class EventsGone(Exception):
    """A reader asks for events that are not kept any more; `first` is the first that is."""

    def __init__(self, first: int) -> None:
        super().__init__(f"the first event that is kept is {first}")
        self.first = first


class EventLog:
    """Owner of a stream's events, of which it keeps about `max_len` bytes.

    `left` is called when the reader has left, and no other has come. `waits` is whether a writer
    without a reader waits for room, so that nothing is dropped before it was taken.
    """

    def __init__(
        self,
        left: Callable[[], None] = lambda: None,
        max_len: int = MAX_LOG_LEN,
        *,
        waits: bool = True,
    ) -> None:
        self._left = left
        self._max_len = max_len
        self._waits = waits
        self._events: deque[bytes] = deque()
        self._first = 0
        self._next = 0
        self._kept_len = 0
        self._waiting_len = 0
        self._reader: Reader | None = None
        self._is_closed = False
        self._is_complete = False
        self._grown = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def end(self) -> int:
        """The number that the next event gets."""
        return self._first + len(self._events)

    @property
    def is_closed(self) -> bool:
        """Whether no further event comes."""
        return self._is_closed

    def append(self, events: Iterable[bytes]) -> None:
        """Further events, each with the empty line behind it."""
        for event in events:
            self._events.append(event)
            self._kept_len += len(event)
            self._waiting_len += len(event)
        if self._reader is None and not self._waits:
            self._next, self._waiting_len = self.end, 0
            self._trim()
        self._grown.set()

    async def until_taken(self) -> None:
        """Waits until the reader wants more; without one, until there is room for more."""
        while self._waiting_len > (0 if self._reader else self._max_len) and not self._is_closed:
            self._taken.clear()
            await self._taken.wait()

    @property
    def is_complete(self) -> bool:
        """Whether the last event of the stream is there."""
        return self._is_complete

    def close(self, *, is_complete: bool) -> None:
        """No further event comes; the reader takes the rest."""
        self._is_closed, self._is_complete = True, is_complete
        self._grown.set()
        self._taken.set()

    def attach(self, start: int) -> "Reader":
        """A reader of the events from number `start` on, in place of any other.

        Raises EventsGone.
        """
        if start < self._first:
            raise EventsGone(self._first)
        kept = list(self._events)
        self._next = min(start, self.end)
        self._waiting_len = sum(map(len, kept[self._next - self._first :]))
        self._reader = Reader(self)
        self._grown.set()
        return self._reader

    def detach(self, reader: "Reader") -> None:
        """The reader has left; nothing happens if another has taken its place."""
        if self._reader is reader:
            self._reader = None
            self._grown.set()
            self._taken.set()
            self._left()

    @property
    def is_read(self) -> bool:
        """Whether it has a reader."""
        return self._reader is not None

    def is_read_by(self, reader: "Reader") -> bool:
        """False once the reader has left, or another has taken its place."""
        return self._reader is reader

    async def take(self, reader: "Reader", timeout_s: float) -> bytes | None:
        """What waits for the reader; empty when nothing came in time, None when nothing will."""
        while self._reader is reader:
            if self._next < self.end:
                return self._take_all()
            if self._is_closed:
                return None
            self._grown.clear()
            try:
                await asyncio.wait_for(self._grown.wait(), timeout_s)
            except TimeoutError:
                return b""
        return None

    def _take_all(self) -> bytes:
        start, self._next = self._next - self._first, self.end
        taken = b"".join([self._events[index] for index in range(start, len(self._events))])
        self._waiting_len = 0
        self._taken.set()
        self._trim()
        return taken

    def _trim(self) -> None:
        while self._kept_len > self._max_len:
            self._kept_len -= len(self._events.popleft())
            self._first += 1


class Reader:
    """One reader's hold on a log, from `EventLog.attach` to `close`."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.is_closed = False

    async def take(self, timeout_s: float) -> bytes | None:
        """As `EventLog.take`."""
        return await self._log.take(self, timeout_s)

    @property
    def is_displaced(self) -> bool:
        """Whether another reader has taken its place."""
        return not self.is_closed and not self._log.is_read_by(self)

    @property
    def has_all(self) -> bool:
        """Whether it has taken the last event of the stream."""
        return self._log.is_complete and self._log.is_read_by(self)

    def close(self) -> None:
        """It takes no more."""
        if not self.is_closed:
            self.is_closed = True
            self._log.detach(self)


def split_events(data: bytes) -> list[bytes]:
    """The events of a part of a stream that ends with an event; comments are dropped."""
    events = data.split(_SEPARATOR)
    assert not events[-1], "a part of a stream ends with an event"
    return [event + _SEPARATOR for event in events[:-1] if not event.startswith(b":")]


async def follow(reader: Reader, send: Send) -> None:
    """Sends what the reader takes, to the end of the stream or until another takes its place."""
    while (taken := await reader.take(KEEP_ALIVE_S)) is not None:
        await send(body_part(taken or KEEP_ALIVE, more=True))
    if reader.is_displaced:
        await send(body_part(_DISPLACED, more=False))
    elif reader.has_all:
        await send(body_part(b"", more=False))


async def read_out(reader: Reader, receive: Receive, send: Send) -> None:
    """As `follow`, but not for longer than the client stays; closes the reader."""
    leaving = asyncio.ensure_future(until_disconnected(receive))
    reading = asyncio.ensure_future(follow(reader, send))
    try:
        await asyncio.wait({leaving, reading}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
    finally:
        await end(leaving, reading)
        reader.close()
