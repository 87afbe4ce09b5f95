"""A thread for long bodies, so that nothing else of the server waits for them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.http.server.json_reader import JsonBounds

# Bytes that take about a millisecond.
_IN_PLACE_LEN = 1 << 14

T = TypeVar("T")


class ParserThread:
    """Parses and validates long bodies.

    Two megabytes take a tenth of a second, while which every stream of the server would wait. A
    thread lets the event loop in every few milliseconds; it is one for all, since the loop takes
    turns with each that there is.
    """

    def __init__(self, bounds: JsonBounds) -> None:
        """`bounds` are those of the bodies."""
        self.bounds = bounds
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="parser")

    async def run(self, body_len: int, work: Callable[[], T]) -> T:
        """What `work` on so many bytes returns."""
        if body_len <= _IN_PLACE_LEN:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)
