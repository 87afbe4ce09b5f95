"""A request's use of a loaded model, and the queues of requests that wait for one."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fleet.names import Model
from fleet.servers import Server


class Lease:
    """One request's use of a loaded model, which is not unloaded before `release`."""

    def __init__(
        self, model: Model, server: Server, server_id: int, on_release: Callable[[], None]
    ) -> None:
        self.model = model
        self.server_id = server_id
        self._server = server
        self._on_release: Callable[[], None] | None = on_release

    @property
    def socket(self) -> Path:
        """The unix socket of the model's server."""
        return self._server.socket

    def release(self) -> None:
        """End the use; a second call does nothing."""
        if self._on_release is not None:
            on_release, self._on_release = self._on_release, None
            on_release()

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
class WaitingRequest:
    """A request that waits for a model."""

    model: Model
    granted: "asyncio.Future[Lease]"


class WaitingQueues:
    """The waiting requests of each model, in order of arrival."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[WaitingRequest]] = {}

    def append(self, model: Model) -> WaitingRequest:
        """Queue another request."""
        request = WaitingRequest(model, asyncio.get_running_loop().create_future())
        self._queues.setdefault(model.name, deque()).append(request)
        return request

    def remove(self, request: WaitingRequest) -> bool:
        """Remove a request; False: it was queued no longer."""
        name = request.model.name
        if request not in self._queues.get(name, ()):
            return False
        self._queues[name].remove(request)
        self._drop_if_empty(name)
        request.granted.cancel()
        return True

    def names(self) -> list[str]:
        """The models with waiting requests."""
        return list(self._queues)

    def pop(self, name: str) -> WaitingRequest | None:
        """Take the first request of a model's queue."""
        if name not in self._queues:
            return None
        request = self._queues[name].popleft()
        self._drop_if_empty(name)
        return request

    def pop_all(self, name: str) -> list[WaitingRequest]:
        """Take all requests of a model's queue."""
        return list(self._queues.pop(name, ()))

    def _drop_if_empty(self, name: str) -> None:
        if not self._queues[name]:
            del self._queues[name]
