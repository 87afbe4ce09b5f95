"""The use of a loaded model by one request, and the requests that wait for one."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fleet.names import Model
from fleet.servers import Server


class Lease:
    """One request's use of a loaded model, which stays for as long as it lasts."""

    def __init__(self, model: Model, server: Server, generation: int, end: Callable[[], None]):
        self.model = model
        self.generation = generation
        self._server = server
        self._end: Callable[[], None] | None = end

    @property
    def socket(self) -> Path:
        """Where the model's server answers."""
        return self._server.socket

    def release(self) -> None:
        """Gives it back; once more does nothing."""
        if self._end is not None:
            end, self._end = self._end, None
            end()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits for a model."""

    model: Model
    granted: "asyncio.Future[Lease]"


class WaitingRoom:
    """Who waits for which model, in the order of their coming. Changed by the keeper alone."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Waiting]] = {}

    def enter(self, model: Model) -> Waiting:
        """Another request waits for it."""
        waiting = Waiting(model, asyncio.get_running_loop().create_future())
        self._queues.setdefault(model.name, deque()).append(waiting)
        return waiting

    def leave(self, waiting: Waiting) -> bool:
        """One who waits no more; whether it still did."""
        queue = self._queues.get(waiting.model.name, ())
        if waiting not in queue:
            return False
        self._queues[waiting.model.name].remove(waiting)
        self._forget_empty(waiting.model.name)
        waiting.granted.cancel()
        return True

    def names(self) -> list[str]:
        """The models that somebody waits for."""
        return list(self._queues)

    def next(self, name: str) -> Waiting | None:
        """Who waits longest for a model, and from here on does not."""
        queue = self._queues.get(name)
        if not queue:
            return None
        waiting = queue.popleft()
        self._forget_empty(name)
        return waiting

    def clear(self, name: str) -> list[Waiting]:
        """All who wait for a model, and from here on do not."""
        return list(self._queues.pop(name, ()))

    def _forget_empty(self, name: str) -> None:
        if not self._queues[name]:
            del self._queues[name]
