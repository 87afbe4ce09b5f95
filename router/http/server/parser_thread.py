"""A thread for long bodies, so that nothing else of the server waits for them."""

from collections.abc import Callable
from typing import TypeVar

from processes.worker_threads import WorkerThreads
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
        self._worker = WorkerThreads(1, "parser")

    def start(self) -> None:
        """Starts the thread now. Raises NoThreads."""
        self._worker.start()

    async def run(self, body_len: int, work: Callable[[], T]) -> T:
        """What `work` on so many bytes returns."""
        if body_len <= _IN_PLACE_LEN:
            return work()
        return await self._worker.run(work)
