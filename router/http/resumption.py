"""Streams that outlive their connections, where a client asks for it: SSE's Last-Event-ID.

    X-Resumable: true     the request goes on without its client, and each event has an id
    Last-Event-ID: ID     the events behind that one, from the request that still goes on

A stream that nobody reads for `grace_s` seconds ends as if its client had left; one that has ended
is kept as long. It is read on by whoever has its id and, where keys are needed, the same key, under
the same path. It knows no API's events.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from processes.instruments import Counter
from router.http.event_log import (
    MAX_LOG_LEN,
    EventLog,
    EventsGone,
    Reader,
    follow,
    read_out,
    split_events,
)
from router.http.server.access import AccessRecord, refuse
from router.http.server.body import BodyReader, body_part, end
from router.http.server.errors import HttpError

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
        """The next reader. Raises EventsGone."""
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
        """Serves one request."""
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
        log, events = self.stream.log, split_events(data)
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
        reader, reading = self._opened.reader, self._opened.reading
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
