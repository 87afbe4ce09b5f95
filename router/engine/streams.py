"""The open streams: readers to wake, groups that submit in turns, backpressure, cancel latency.

It knows no scheduler and no shard.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from proto.contract import NewSequence
from router.engine.admission import Slots
from router.engine.stream import Stream
from router.request.api_key import ApiKey
from router.request.errors import RouterError
from router.request.request import GenerateRequest
from router.text.output_text import OutputText

# The output's text so far of each request, where it is known.
Texts: TypeAlias = Sequence[OutputText | None] | None
Accept: TypeAlias = Callable[[Sequence[GenerateRequest], Texts], list[Stream]]
# A stream with so many unread events is paused.
MANY_UNREAD = 64


class OpenStreams:
    """The streams that have not ended, by request id. The batcher is its only mutator.

    `retire` is called once for each stream, at its end.
    """

    def __init__(self, retire: Callable[[Stream], None]) -> None:
        self._retire = retire
        self._streams: dict[int, Stream] = {}
        # Streams with events whose readers have not been woken.
        self._to_wake: list[Stream] = []
        self._emptied = asyncio.Event()

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def __getitem__(self, request_id: int) -> Stream:
        return self._streams[request_id]

    def get(self, request_id: int) -> Stream | None:
        """None once it has ended: cancelled or expired, perhaps, while its step was under way."""
        return self._streams.get(request_id)

    def add(self, stream: Stream) -> None:
        """Adds an accepted stream."""
        self._streams[stream.request_id] = stream
        self._emptied.clear()

    def admit(self, new: Iterable[NewSequence], now_s: float) -> list[Stream]:
        """The streams that enter the running batch; the first time, they note when."""
        admitted = []
        for each in new:
            stream = self._streams[each.request_id]
            admitted.append(stream)
            if stream.first_scheduled_s is None:
                stream.first_scheduled_s = now_s
                stream.cached_len = each.cached_len
        return admitted

    def publish(self, stream: Stream) -> None:
        """The stream has events; if its end is among them, it leaves. The one way out."""
        self._to_wake.append(stream)
        if stream.end is not None:
            del self._streams[stream.request_id]
            if not self._streams:
                self._emptied.set()
            self._retire(stream)

    def fail(self, stream: Stream, error: RouterError) -> None:
        """Fails one."""
        stream.fail(error)
        self.publish(stream)

    def fail_some(self, request_ids: Iterable[int], error: RouterError) -> None:
        """Fails these; those that were cancelled during their step have left already."""
        for request_id in request_ids:
            stream = self._streams.get(request_id)
            if stream is not None:
                self.fail(stream, error)

    def fail_all(self, error: RouterError) -> None:
        """Fails all."""
        for stream in list(self._streams.values()):
            self.fail(stream, error)

    def wake_readers(self) -> None:
        """Wakes the readers that have something to read."""
        for stream in self._to_wake:
            stream.wake()
        self._to_wake.clear()

    async def until_empty(self) -> None:
        """Until the last has ended."""
        if self._streams:
            await self._emptied.wait()


class StreamGroup:
    """`num_slots` that are taken as long as the group is open.

    `advance` is called each time that all of its streams have ended; it must not raise.
    """

    __slots__ = ("advance", "is_settled", "key", "num_slots", "open_ids")

    def __init__(self, num_slots: int, key: ApiKey, advance: Callable[[], None]) -> None:
        self.num_slots = num_slots
        self.key = key
        self.advance = advance
        self.open_ids: set[int] = set()
        self.is_settled = False


class StreamGroups:
    """All open groups: streams that one request submits in turns, in slots kept between them.

        open -> submit -> all streams have ended -> advance: submit -> ... -> close

    A group's owner decides between two steps what it asks for next, before the next step is
    scheduled: so its sequences miss no step, and find the blocks that they released.

    `accept` makes streams of requests that have their slots, and of their texts if these are known.
    """

    def __init__(self, accept: Accept, slots: Slots) -> None:
        self._accept = accept
        self._slots = slots
        self._open: dict[StreamGroup, None] = {}
        self._of_stream: dict[int, StreamGroup] = {}
        self._closed = asyncio.Event()
        self._stopped: RouterError | None = None

    @property
    def idle_slots(self) -> list[ApiKey]:
        """The keys of slots that are taken, beside the open streams in them."""
        return [
            group.key for group in self._open for _ in range(group.num_slots - len(group.open_ids))
        ]

    def open(self, num_slots: int, key: ApiKey, advance: Callable[[], None]) -> StreamGroup:
        """A group that has so many slots from now on. Raises as `Slots.take`."""
        self._slots.take(num_slots, key)
        group = StreamGroup(num_slots, key, advance)
        self._open[group] = None
        return group

    def submit(
        self, group: StreamGroup, requests: Sequence[GenerateRequest], texts: Texts = None
    ) -> list[Stream]:
        """At most as many as the group has free slots. `texts`: as of a Stream, for each.

        Raises InvalidRequest for a request that could never run, ServerStopped after the end.
        """
        assert group in self._open, "the group was closed"
        assert len(group.open_ids) + len(requests) <= group.num_slots, "more streams than slots"
        if self._stopped is not None:
            raise self._stopped
        group.is_settled = False
        streams = self._accept(requests, texts)
        for stream in streams:
            if stream.end is None:
                group.open_ids.add(stream.request_id)
                self._of_stream[stream.request_id] = group
        return streams

    def close(self, group: StreamGroup, *, is_good: bool) -> None:
        """Frees its slots, once its streams have ended. Does nothing the second time."""
        assert not group.open_ids, "streams are open in a group that closes"
        if group in self._open:
            del self._open[group]
            self._slots.free(group.num_slots, is_good=is_good)
            if not self._open:
                self._closed.set()

    def remove(self, request_id: int) -> bool:
        """A stream has ended; whether it was in a group."""
        group = self._of_stream.pop(request_id, None)
        if group is None:
            return False
        group.open_ids.discard(request_id)
        group.is_settled = not group.open_ids
        return True

    def advance(self) -> None:
        """Advances the groups whose streams have ended."""
        for group in [group for group in self._open if group.is_settled]:
            group.is_settled = False
            group.advance()

    def stop(self, error: RouterError) -> None:
        """Accepts nothing from now on."""
        self._stopped = error
        self.advance()

    async def until_empty(self) -> None:
        """Until the last is closed."""
        while self._open:
            self._closed.clear()
            await self._closed.wait()


class Backpressure:
    """Pauses the sequences of streams whose readers do not keep up.

        reader takes  ->  events are few   ->  the sequence samples
        reader waits  ->  events are many  ->  it sits the steps out, in its place, with its blocks

    So a slow reader costs the others next to nothing, and an unread answer has a bounded length.
    The connection's own limit cuts one that does not read at all. `pause` is the scheduler's.
    """

    def __init__(self, pause: Callable[[int, bool], None]) -> None:
        self._pause = pause
        self._paused: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._paused)

    def check(self, stream: Stream) -> None:
        """Pauses a stream that has too many unread events."""
        if stream.num_unread >= MANY_UNREAD and stream.request_id not in self._paused:
            self._paused[stream.request_id] = stream
            self._pause(stream.request_id, True)
            # What comes next is not late.
            stream.last_token_s = None

    def resume(self) -> None:
        """Continues the streams whose readers took what was there."""
        read = [key for key, stream in self._paused.items() if stream.num_unread < MANY_UNREAD]
        for request_id in read:
            del self._paused[request_id]
            self._pause(request_id, False)

    def remove(self, stream: Stream) -> None:
        """The stream has ended."""
        self._paused.pop(stream.request_id, None)


class CancelLatency:
    """Measures the time from a cancel until neither shards nor scheduler hold the request.

    `has_left` is the scheduler's; `observe` gets the seconds.
    """

    def __init__(self, has_left: Callable[[int], bool], observe: Callable[[float], None]) -> None:
        self._has_left = has_left
        self._observe = observe
        self._since_s: dict[int, float] = {}

    def start(self, request_id: int, since_s: float, now_s: float) -> None:
        """A request was cancelled at `since_s`; one that never ran has left at once."""
        if self._has_left(request_id):
            self._observe(now_s - since_s)
        else:
            self._since_s[request_id] = since_s

    def check(self, now_s: float) -> None:
        """Observes the requests that have left: after a drop, an answer, or a reset."""
        for request_id in [each for each in self._since_s if self._has_left(each)]:
            self._observe(now_s - self._since_s.pop(request_id))
