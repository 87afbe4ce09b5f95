"""The open streams: readers to wake, backpressure, cancel latency.

It knows no scheduler and no shard.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from proto.contract import NewSequence
from router.engine.stream import Stream
from router.request.errors import RouterError

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
