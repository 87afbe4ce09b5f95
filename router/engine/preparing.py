"""Constraints that rank 0 compiles beside the running steps, and who waits for them."""

import asyncio
from collections.abc import Awaitable, Callable

from constraints.spec import ConstraintSpec
from router.engine.constraint_memory import ConstraintMemory
from router.request.errors import ShardFailed
from router.request.request import Constraint

# Of those that the shards hold: far fewer than they keep, and none that is long, of which they keep
# fewer.
_MAX_KNOWN, _MAX_KNOWN_CHARS = 64, 8192


class Preparing:
    """Has the shards compile constraints ahead, and holds the requests that wait for them.

        start -> rank 0 compiles -> ready: the request may be scheduled
                                 -> failed: the shard cannot serve it, or took too long

    Requests with the same constraint wait for it together. The last few that were compiled are not
    sent again. A shard that does not answer at all is not the constraint's fault: then the request
    is ready, and waits with all others for the shards to be reset; its first step compiles what is
    missing. `prepare` raises what the request is to fail with, or ShardFailed.
    """

    def __init__(
        self,
        prepare: Callable[[Constraint], Awaitable[None]],
        ready: Callable[[int], None],
        failed: Callable[[int, Exception], None],
    ) -> None:
        self._prepare = prepare
        self._ready = ready
        self._failed = failed
        # The call under way, and the requests that wait for it.
        self._compiling: dict[ConstraintSpec, tuple[asyncio.Task[None], set[int]]] = {}
        self._specs: dict[int, ConstraintSpec] = {}
        self._known: ConstraintMemory[bool] = ConstraintMemory(_MAX_KNOWN)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._specs)

    def is_ready(self, constraint: Constraint) -> bool:
        """True for one that the shard has, or compiles quickly."""
        return constraint.is_quick or self._known.find(constraint.spec, 0.0) is not None

    def forget(self) -> None:
        """The shards were reset, and may have none."""
        self._known = ConstraintMemory(_MAX_KNOWN)

    def start(self, request_id: int, constraint: Constraint) -> None:
        """Makes a request wait until its constraint is compiled."""
        spec = constraint.spec
        if spec not in self._compiling:
            self._compiling[spec] = (asyncio.create_task(self._compile(constraint)), set())
        self._compiling[spec][1].add(request_id)
        self._specs[request_id] = spec

    def remove(self, request_id: int) -> None:
        """A request has ended; a call that no request waits for is cancelled."""
        spec = self._specs.pop(request_id, None)
        if spec is None:
            return
        task, request_ids = self._compiling[spec]
        request_ids.discard(request_id)
        if not request_ids:
            del self._compiling[spec]
            task.cancel()

    async def _compile(self, constraint: Constraint) -> None:
        spec = constraint.spec
        failure: Exception | None = None
        try:
            await self._prepare(constraint)
        except Exception as error:  # noqa: BLE001 (whatever it is, the waiting requests fail with it)
            failure = None if isinstance(error, ShardFailed) else error
        else:
            if len(spec.text) <= _MAX_KNOWN_CHARS:
                self._known.keep(spec, True)
        _, request_ids = self._compiling.pop(spec)
        for request_id in sorted(request_ids):
            del self._specs[request_id]
            if failure is None:
                self._ready(request_id)
            else:
                self._failed(request_id, failure)
