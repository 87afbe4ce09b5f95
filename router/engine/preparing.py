"""Has the shards compile constraints ahead, and holds the requests that wait for them.

A constraint is compiled beside the running steps before a request that brings it enters one, so
that no step stands still for it. Requests with the same constraint wait for it together. Quick ones
are not waited for: the first step of their request compiles them beside its forward.

    begin -> rank 0 compiles -> ready: the request may be scheduled
                             -> failed: the shard cannot serve it, or took too long

The last few that were compiled are known, and not sent again: the shard keeps many more. A shard
that does not answer at all is not the constraint's fault: then the request is ready, and waits with
all others for the shards to be reset; its first step compiles what is missing. It knows no
scheduler and no stream.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from constraints.spec import ConstraintSpec
from router.request.errors import ShardFailed
from router.request.request import Constraint, GenerateRequest

# Far fewer than a shard keeps; long texts, of which it keeps fewer, are sent every time.
_MAX_KNOWN, _MAX_KNOWN_CHARS = 64, 65_536


@dataclass(slots=True, eq=False)
class _Compiling:
    task: asyncio.Task[None]
    request_ids: set[int] = field(default_factory=set)


class Preparing:
    """Owner of the calls under way. `ready` and `failed` are the batcher's callbacks.

    `prepare` raises what the request is to fail with, or ShardFailed.
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
        self._compiling: dict[ConstraintSpec, _Compiling] = {}
        self._specs: dict[int, ConstraintSpec] = {}
        # Least recently used first.
        self._known: OrderedDict[ConstraintSpec, None] = OrderedDict()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._specs)

    def is_ready(self, request: GenerateRequest) -> bool:
        """True without a constraint, or with one that the shard has, or compiles quickly."""
        if request.constraint is None or request.constraint.is_quick:
            return True
        spec = request.constraint.spec
        if spec not in self._known:
            return False
        self._known.move_to_end(spec)
        return True

    def forget(self) -> None:
        """The shards were reset, and may have none."""
        self._known.clear()

    def start(self, request_id: int, request: GenerateRequest) -> None:
        """Makes a request wait until its constraint is compiled."""
        assert request.constraint is not None, f"request {request_id} has no constraint"
        spec = request.constraint.spec
        compiling = self._compiling.get(spec)
        if compiling is None:
            task = asyncio.get_running_loop().create_task(self._compile(request.constraint))
            compiling = self._compiling[spec] = _Compiling(task)
        compiling.request_ids.add(request_id)
        self._specs[request_id] = spec

    def remove(self, request_id: int) -> None:
        """A request has ended; a call that no request waits for is cancelled."""
        spec = self._specs.pop(request_id, None)
        if spec is None:
            return
        compiling = self._compiling[spec]
        compiling.request_ids.discard(request_id)
        if not compiling.request_ids:
            del self._compiling[spec]
            compiling.task.cancel()

    async def _compile(self, constraint: Constraint) -> None:
        spec = constraint.spec
        failure: Exception | None = None
        try:
            await self._prepare(constraint)
        except Exception as error:  # noqa: BLE001 (whatever it is, the waiting requests fail with it)
            failure = None if isinstance(error, ShardFailed) else error
        else:
            self._remember(spec)
        for request_id in sorted(self._compiling.pop(spec).request_ids):
            del self._specs[request_id]
            if failure is None:
                self._ready(request_id)
            else:
                self._failed(request_id, failure)

    def _remember(self, spec: ConstraintSpec) -> None:
        if len(spec.text) <= _MAX_KNOWN_CHARS:
            self._known[spec] = None
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
