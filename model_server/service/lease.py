"""The router's lease on what a shard holds for it: it ends when the router says nothing for long.

A router asks for a sign of life every second, so one that is silent is gone or stands still. What
it had is freed; the weights stay, and the next router, or the same one, begins a new epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic


class Lease:
    """Renewed by each call, at its begin and its end; a call under way keeps it."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._renewed_s = monotonic()
        self._num_calls = 0
        self._is_over = True

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of the router is under way."""
        self._num_calls += 1
        self._is_over = False
        try:
            yield
        finally:
            self._num_calls -= 1
            self._renewed_s = monotonic()

    async def run(self, release: Callable[[], Awaitable[None]]) -> None:
        """Calls `release` each time that the lease ends, until cancelled."""
        while True:
            left_s = self._renewed_s + self._length_s - monotonic()
            if self._is_over or self._num_calls or left_s > 0.0:
                await asyncio.sleep(max(left_s, self._length_s / 10))
                continue
            self._is_over = True
            await release()
