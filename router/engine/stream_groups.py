"""Groups of streams that submit in turns: the beams of one search.

It knows no scheduler and no shard.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from router.engine.admission import Slots
from router.engine.stream import Stream
from router.request.errors import RouterError
from router.request.request import ApiKey, GenerateRequest
from router.text.output_text import OutputText

# The output's text so far of each request, where it is known.
Texts: TypeAlias = Sequence[OutputText | None] | None
Accept: TypeAlias = Callable[[Sequence[GenerateRequest], Texts], list[Stream]]


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
