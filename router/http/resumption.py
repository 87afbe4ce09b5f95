"""Streams that outlive their connections, where a client asks for it: SSE's Last-Event-ID.

    X-Resumable: true     the request goes on without its client, and each event has an id
    Last-Event-ID: ID     the events behind that one, from the request that still goes on

A stream that nobody reads for `grace_s` seconds ends as if its client had left; one that has ended
is kept as long. It is read on by whoever has its id and, where keys are needed, the same key, under
the same path. It knows no API's events.

What such a stream sends goes through its log:

    0 ... first ... next ... end        of the events' numbers
          |  taken  | waits |
          +-- kept in here -+

A writer appends, at most one reader takes; a further one takes its place. What was taken is kept
too, within bounds, since a connection that breaks loses what its reader had not yet read.
"""

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from processes.instruments import Counter
from router.http.bodies import PART_WRITER, BodyReader, body_part, end, until_disconnected
from router.http.errors import HttpError
from router.http.server.access import AccessRecord, refuse
from router.http.sse import KEEP_ALIVE, KEEP_ALIVE_S

# A thousand tokens of a chat, about.
MAX_LOG_LEN = 1 << 18
_SEPARATOR = b"\n\n"
_DISPLACED = b": another connection reads on\n\n"
_logger = logging.getLogger(__name__)
OPT_IN_HEADER = "x-resumable"
ID_HEADER = "last-event-id"
MAX_BYTES = 64 * 2**20
# What waits and what was taken may each be as long as a log.
_MAX_STREAMS = MAX_BYTES // (2 * MAX_LOG_LEN)
_CHOICES: Mapping[str, bool] = MappingProxyType(
    {"true": True, "1": True, "false": False, "0": False}
)
_EVENT_ID = re.compile(r"([0-9a-f]{32})-(\d{1,9})", re.ASCII)


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
            self._next = self.end
            self._waiting_len = 0
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
        self._is_closed = True
        self._is_complete = is_complete
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
        start = self._next - self._first
        self._next = self.end
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


@dataclass(frozen=True, slots=True)
class _Owner:
    """Who may read a stream on, and where."""

    key_digest: bytes
    path: str


class _Stream:
    """One stream that may be resumed. Owner of its log and of the time that it has left."""

    def __init__(
        self, owner: _Owner, head: Message, grace_s: float, expire: Callable[[], None]
    ) -> None:
        self.owner = owner
        self.head = head
        self.log = EventLog(self._wait_for_reader)
        # Set when nobody has come back for it.
        self.abandoned = asyncio.Event()
        self._grace_s = grace_s
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, start: int) -> Reader:
        reader = self.log.attach(start)
        self._stop_timer()
        return reader

    def close(self, *, is_complete: bool) -> None:
        """All events are there; from now on they are kept for so long."""
        self.log.close(is_complete=is_complete)
        if not self.log.is_read:
            self._wait_for_reader()

    def end(self) -> None:
        """Nobody comes back for it any more."""
        self._stop_timer()
        self.abandoned.set()

    def _wait_for_reader(self) -> None:
        self._stop_timer()
        if not self.abandoned.is_set():
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Resumption:
    """ASGI middleware, inside that of the keys. Owner of the streams that may be resumed.

    `resumes` counts by outcome what came with an event's id.
    """

    def __init__(self, app: ASGIApp, bodies: BodyReader, grace_s: float, resumes: Counter) -> None:
        self._app = app
        self._bodies = bodies
        self._grace_s = grace_s
        self._resumes = resumes
        self._streams: dict[str, _Stream] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            if ID_HEADER in headers:
                await self._resume(headers[ID_HEADER], scope, receive, send)
            elif _opts_in(headers.get(OPT_IN_HEADER)):
                await self._host(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except HttpError as refusal:
            await refuse(refusal, scope, receive, send)

    async def _host(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request whose answer, if it is a stream, goes on without its client.

        Answers that are no streams pass unchanged.
        """
        scope.pop(PART_WRITER, None)
        hosted = _Host(scope, receive, send, self._open)
        try:
            await self._app(scope, hosted.receive, hosted.send)
        finally:
            await hosted.finish()

    def _open(self, scope: Scope, head: Message) -> tuple[str, _Stream] | None:
        """A new stream with its id; None while too many are open."""
        if len(self._streams) >= _MAX_STREAMS:
            ended = (key for key, stream in self._streams.items() if stream.log.is_closed)
            oldest = next(ended, None)
            if oldest is None:
                _logger.warning("%d streams can be resumed, no more", _MAX_STREAMS)
                return None
            self._drop(oldest)
        stream_id = secrets.token_hex(16)
        stream = _Stream(_owner(scope), head, self._grace_s, lambda: self._drop(stream_id))
        self._streams[stream_id] = stream
        return stream_id, stream

    def _drop(self, stream_id: str) -> None:
        self._streams.pop(stream_id).end()

    async def _resume(self, event_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The events behind one, in an answer of their own."""
        if scope["method"] == "POST":
            # The client asks as it did at first; what it asks for is known.
            await self._bodies.read(Request(scope, receive))
        stream, start = self._find(event_id, scope)
        if stream.log.is_closed and start >= stream.log.end:
            self._resumes.inc("ended")
            # What makes browsers stop (HTML, 9.2.3).
            await Response(status_code=204)(scope, receive, send)
            return
        try:
            reader = stream.attach(start)
        except EventsGone as gone:
            raise self._refuse(
                "gone",
                f"`Last-Event-ID`: the events behind {event_id} are not kept any more, those from "
                f"number {gone.first} on are",
            ) from gone
        self._resumes.inc("resumed")
        await send(stream.head)
        await read_out(reader, receive, send)

    def _find(self, event_id: str, scope: Scope) -> tuple[_Stream, int]:
        matched = _EVENT_ID.fullmatch(event_id)
        stream = self._streams.get(matched[1]) if matched else None
        if matched is None or stream is None or stream.owner != _owner(scope):
            raise self._refuse(
                "unknown",
                f"`Last-Event-ID`: no stream of yours at this path has the event "
                f"`{event_id[:60]}`: it was not asked for with `X-Resumable: true`, has ended more "
                f"than {self._grace_s:g} s ago (--resume-grace), or the server was restarted; ask "
                "anew, with what you have as the beginning of the answer where the API takes one",
            )
        return stream, int(matched[2]) + 1

    def _refuse(self, outcome: str, message: str) -> HttpError:
        self._resumes.inc(outcome)
        return HttpError(404, f"stream_{outcome}", message, field=ID_HEADER)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A stream, its id, and how the client that asked for it reads it."""

    stream_id: str
    stream: _Stream
    reader: Reader
    reading: asyncio.Future[None]

    def append(self, data: bytes) -> None:
        """Further events, each with its id."""
        log = self.stream.log
        events = split_events(data)
        log.append(
            b"id: %b-%d\n%b" % (self.stream_id.encode(), number, event)
            for number, event in enumerate(events, log.end)
        )


class _Host:
    """One request that its client may leave: what ASGI's `receive` and `send` are to its route."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        open_stream: Callable[[Scope, Message], tuple[str, _Stream] | None],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._open = open_stream
        self._opened: _Opened | None = None
        self._is_complete = False

    async def receive(self) -> Message:
        """The client's leaving is held back until nobody has come in its place."""
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._opened is not None:
            self._opened.reader.close()
            await self._opened.stream.abandoned.wait()
        return message

    async def send(self, message: Message) -> None:
        """What is no stream goes to the client at once; a stream's events go to its log."""
        if message["type"] == "http.response.start":
            await self._send(message)
            opened = self._open(self._scope, message) if _has_events(message) else None
            if opened is not None:
                stream_id, stream = opened
                reader = stream.attach(0)
                reading = asyncio.ensure_future(follow(reader, self._send))
                self._opened = _Opened(stream_id, stream, reader, reading)
        elif self._opened is None:
            await self._send(message)
        else:
            self._opened.append(message.get("body", b""))
            if message.get("more_body", False):
                await self._opened.stream.log.until_taken()
            else:
                self._is_complete = True

    async def finish(self) -> None:
        """Nothing comes from the route any more: its client, if it is there, gets the rest."""
        if self._opened is None:
            return
        reader = self._opened.reader
        reading = self._opened.reading
        self._opened.stream.close(is_complete=self._is_complete)
        try:
            if self._is_complete:
                await reading
                if reader.is_closed:
                    # The client has left, but its request is none that was cancelled.
                    await self._send(body_part(b"", more=False))
        finally:
            await end(reading)
            reader.close()


def _opts_in(value: str | None) -> bool:
    if value is None:
        return False
    if value.lower() not in _CHOICES:
        rule = f"the header `X-Resumable` must be true or false. Given: {value[:40]!r}"
        raise HttpError(400, "validation", rule, field=OPT_IN_HEADER)
    return _CHOICES[value.lower()]


def _owner(scope: Scope) -> _Owner:
    record = AccessRecord.within(scope)
    assert record is not None, "the access log is around it"
    return _Owner(record.key.digest, scope["path"])


def _has_events(head: Message) -> bool:
    headers = Headers(raw=head["headers"])
    return headers.get("content-type", "").startswith("text/event-stream")
