"""Streams that one client's request submits one after the other, in slots that it keeps between.

    open -> submit -> all streams have ended -> advance: submit -> ... -> close

A group's owner decides between two steps what it asks for next, before the next step is scheduled:
so its sequences miss no step, and what they gave back is there for them. It knows no scheduler; the
batcher calls `advance`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from router.engine.output_text import OutputText
from router.engine.stream import Stream
from router.request.errors import RouterError
from router.request.request import GenerateRequest

# Of each request, where it is known.
Texts: TypeAlias = Sequence[OutputText | None] | None
Accept: TypeAlias = Callable[[Sequence[GenerateRequest], Texts], list[Stream]]


class StreamGroup:
    """`num_slots` that are taken as long as the group is open.

    `advance` is called each time that all of its streams have ended; it must not raise.
    """

    __slots__ = ("advance", "is_settled", "num_slots", "open_ids")

    def __init__(self, num_slots: int, advance: Callable[[], None]) -> None:
        self.num_slots = num_slots
        self.advance = advance
        self.open_ids: set[int] = set()
        self.is_settled = False


class StreamGroups:
    """All open groups. Owner of their slots.

    `accept` makes streams of requests that have their slots, and of their texts if these are known.
    """

    def __init__(self, accept: Accept) -> None:
        self._accept = accept
        self._open: dict[StreamGroup, None] = {}
        self._of_stream: dict[int, StreamGroup] = {}
        self._closed = asyncio.Event()
        self._stopped: RouterError | None = None

    @property
    def num_idle_slots(self) -> int:
        """Slots that are taken, beside the open streams in them."""
        num_slots = sum(group.num_slots for group in self._open)
        return num_slots - sum(len(group.open_ids) for group in self._open)

    def open(self, num_slots: int, advance: Callable[[], None]) -> StreamGroup:
        """A group that has so many slots from now on."""
        group = StreamGroup(num_slots, advance)
        self._open[group] = None
        return group

    def submit(
        self, group: StreamGroup, requests: Sequence[GenerateRequest], texts: Texts = None
    ) -> list[Stream]:
        """At most as many as the group has free slots. `texts`: of each, as of a Stream.

        Raises InvalidRequest for a request that could never run, ServerStopped behind the end.
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

    def close(self, group: StreamGroup) -> bool:
        """Its streams have ended, and its slots are free. False: it was closed before."""
        assert not group.open_ids, "streams are open in a group that closes"
        if group not in self._open:
            return False
        del self._open[group]
        if not self._open:
            self._closed.set()
        return True

    def left(self, request_id: int) -> bool:
        """A stream has ended; whether it was one of a group's."""
        group = self._of_stream.pop(request_id, None)
        if group is None:
            return False
        group.open_ids.discard(request_id)
        group.is_settled = not group.open_ids
        return True

    def advance(self) -> None:
        """Lets the groups go on whose streams have ended."""
        for group in [group for group in self._open if group.is_settled]:
            group.is_settled = False
            group.advance()

    def stop(self, error: RouterError) -> None:
        """Nothing is taken any more."""
        self._stopped = error
        self.advance()

    async def until_empty(self) -> None:
        """Until the last is closed."""
        while self._open:
            self._closed.clear()
            await self._closed.wait()
