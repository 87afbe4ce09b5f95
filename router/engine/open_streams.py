"""The streams that have not ended, and the readers that do not know the latest yet.

It knows no scheduler and no shard; `retire`, called once for each stream at its end, tells those
who do.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from proto.contract import NewSequence
from router.engine.stream import Stream
from router.request.errors import RouterError


class OpenStreams:
    """By request. The batcher is its only mutator."""

    def __init__(self, retire: Callable[[Stream], None]) -> None:
        self._retire = retire
        self._streams: dict[int, Stream] = {}
        # Streams with events of which their readers do not know yet.
        self._untold: list[Stream] = []
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
        """An accepted one."""
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

    def moved(self, stream: Stream) -> None:
        """It has events; if its end is among them, it leaves. The one way out."""
        self._untold.append(stream)
        if stream.end is not None:
            del self._streams[stream.request_id]
            if not self._streams:
                self._emptied.set()
            self._retire(stream)

    def fail(self, stream: Stream, error: RouterError) -> None:
        """The bad end of one."""
        stream.fail(error)
        self.moved(stream)

    def fail_some(self, request_ids: Iterable[int], error: RouterError) -> None:
        """The bad end of these; those that were cancelled during their step are gone already."""
        for request_id in request_ids:
            stream = self._streams.get(request_id)
            if stream is not None:
                self.fail(stream, error)

    def fail_all(self, error: RouterError) -> None:
        """The bad end of all."""
        for stream in list(self._streams.values()):
            self.fail(stream, error)

    def tell(self) -> None:
        """Wakes the readers that have something to read."""
        for stream in self._untold:
            stream.wake()
        self._untold.clear()

    async def until_empty(self) -> None:
        """Until the last has ended."""
        if self._streams:
            await self._emptied.wait()
