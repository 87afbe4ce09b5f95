"""The queue of one socket's messages, in order, and the task that sends them.

TOKENs that wait together go out in one frame: with many streams a step's tokens are one message. A
stream whose client reads too slowly waits here, and its sequence is paused.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from router.http.lmtp.frames import write_frame

_GATHERED = frozenset({"TOKEN"})
_MAX_FRAME_LEN = 1 << 16

SendText = Callable[[str], Awaitable[None]]


class Outbox:
    """One socket's queue. `put` waits while more than `max_waiting_len` characters are queued."""

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
        """Queues objects, once there is room. Does nothing after `close`."""
        while not self._has_room.is_set():
            await self._has_room.wait()
        for each in objects:
            self.push(command, each)

    def push(self, command: str, fields: str) -> None:
        """Queues one object without waiting for room: for rare messages."""
        if self._is_closed:
            return
        self._waiting.append((command, fields))
        self._waiting_len += len(fields)
        if self._waiting_len > self._max_waiting_len:
            self._has_room.clear()
        self._is_empty.clear()
        self._has_work.set()

    async def run(self, send: SendText) -> None:
        """Sends until closed. Raises what `send` does, and wakes all that wait then, too."""
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
        """Waits until all messages are sent, or the outbox is closed."""
        await self._is_empty.wait()

    def close(self) -> None:
        """Drops all queued messages."""
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
