"""What waits to be sent over one socket, in order, and the one task that sends it.

Objects of one type that are there together go out in one frame where the type allows it: with many
streams a step's tokens are one message. A stream whose client reads too slowly waits here, and its
sequence is paused (`router/engine/backpressure.py`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from router.http.lmtp.frames import write_frame

_GATHERED = frozenset({"TOKEN"})
_MAX_FRAME_LEN = 1 << 16

SendText = Callable[[str], Awaitable[None]]


class Outbox:
    """One socket's. `max_waiting_len`: characters that may wait before `put` does."""

    def __init__(self, max_waiting_len: int) -> None:
        self._max_waiting_len = max_waiting_len
        self._waiting: deque[tuple[str, str]] = deque()
        self._waiting_len = 0
        self._has_work = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_closed = False

    async def put(self, command: str, *objects: str) -> None:
        """Puts objects behind the others; waits while too much waits. After `close`: nothing."""
        while not self._has_room.is_set():
            await self._has_room.wait()
        for each in objects:
            self.push(command, each)

    def push(self, command: str, fields: str) -> None:
        """Puts one object behind the others, whatever waits: for what comes now and then."""
        if self._is_closed:
            return
        self._waiting.append((command, fields))
        self._waiting_len += len(fields)
        if self._waiting_len > self._max_waiting_len:
            self._has_room.clear()
        self._is_empty.clear()
        self._has_work.set()

    async def run(self, send: SendText) -> None:
        """Sends until closed. Raises what `send` does; then, too, nobody waits any more."""
        try:
            while not self._is_closed:
                await self._has_work.wait()
                while self._waiting:
                    command, objects = self._next()
                    await send(write_frame(command, objects))
                self._has_work.clear()
                self._is_empty.set()
        finally:
            self.close()

    async def until_empty(self) -> None:
        """Until all that was put is sent, or nothing more will be."""
        await self._is_empty.wait()

    def close(self) -> None:
        """What waits is dropped."""
        self._is_closed = True
        self._waiting.clear()
        for event in (self._has_work, self._has_room, self._is_empty):
            event.set()

    def _next(self) -> tuple[str, list[str]]:
        command, first = self._waiting.popleft()
        objects, frame_len = [first], len(first)
        while (
            command in _GATHERED
            and self._waiting
            and self._waiting[0][0] == command
            and frame_len + len(self._waiting[0][1]) <= _MAX_FRAME_LEN
        ):
            objects.append(self._waiting.popleft()[1])
            frame_len += len(objects[-1])
        self._waiting_len -= frame_len
        if self._waiting_len <= self._max_waiting_len:
            self._has_room.set()
        return command, objects
