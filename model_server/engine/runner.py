"""The steps of a shard: the only mutator of its sequences, of its pool and of its sampler.

    decide: the call's plain ints -> PlannedChunk per sequence -> StepInputs   (raises InvalidStep)
    compute: forward on every rank, sampling on rank 0, token ids broadcast
    apply:  append tokens, advance lengths, remove ended sequences -> StepOutput

A call that breaks the contract is refused before anything changes. An exception further on leaves
the step's sequences in their batches as they were, for `clear` to remove. It knows no RPC and no
text.

One step may be in flight when the next one begins. If the next one only decodes what is in that
step, it is decided by what the books will be if nothing ends, and its forward is launched before
the step in flight is read; see `first_rank.py`. Else the step in flight is finished first.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from model_server.engine import memory
from model_server.engine.computation import NOTHING, Computation, Computed, Follower
from model_server.engine.distributed import World
from model_server.engine.first_rank import FirstRank, LaunchedChunks, can_launch
from model_server.engine.held_requests import HeldRequests
from model_server.engine.launched_step import LaunchedStep
from model_server.engine.planning import StepPlanner
from model_server.engine.sequences import PlannedChunk, SequenceState
from model_server.engine.step import StepInputs, StepOutput
from model_server.engine.step_room import StepRoom
from model_server.engine.warmup import Largest, warm_up
from model_server.errors import InvalidStep, OutOfMemory
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.model.paged_model import PagedModel
from model_server.sampling.sampler import Sampler
from proto.contract import Generation, NewSequence, PoolLimits, RunningUpdate

# Requests of one step that fail for want of memory, one after the other, before the step does.
_MAX_FAILED = 4


def _nothing() -> None:
    """For callers who need not know that a forward begins."""


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    """A step that nobody has finished."""

    step: LaunchedStep
    batch_id: int
    launched: LaunchedChunks


class Runner:
    """Runs steps, one at a time and from one thread.

    `sampler` and `guides` exist on rank 0 alone; without `guides` constraints are refused.
    `num_blocks` fixes the pool's size; otherwise warm-up measures it, on CUDA within
    `memory_fraction` of the device. `runs_ahead`: whether a step may be in flight when the next one
    begins, on one rank; None: on CUDA.
    """

    def __init__(
        self,
        model: PagedModel,
        sampler: Sampler | None,
        world: World,
        *,
        guides: MaskScheduler | None = None,
        num_blocks: int | None = None,
        memory_fraction: float = 0.9,
        runs_ahead: bool | None = None,
    ) -> None:
        if (sampler is not None) != world.is_first:
            raise ValueError(f"rank {world.rank} and its sampler contradict each other")
        first = None if sampler is None else FirstRank(model, sampler, guides, world)
        self._computation: Computation = first or Follower(model, world)
        self._model = model
        self._sampler = sampler
        self._guides = guides
        self._world = world
        self._num_blocks = num_blocks
        self._memory_fraction = memory_fraction
        self._held = HeldRequests(sampler, guides, model.eos_token_ids)
        takes_constraints = guides is not None or not world.is_first
        self._planner = StepPlanner(model, self._held.batches, takes_constraints=takes_constraints)
        self._room = StepRoom(world, partial(memory.has_room, model.device), 0)
        self._in_flight: _InFlight | None = None
        self._finished_ns = 0
        # Requests whose token in the last step was drawn again.
        self._redrawn: frozenset[int] = frozenset()
        if runs_ahead is None:
            runs_ahead = model.device.type == "cuda"
        # None: each step ends before the next one begins.
        self._launcher = first if runs_ahead and world.world_size == 1 else None

    def warmup(
        self,
        max_step_tokens: int,
        max_batch_size: int,
        max_total_len: int | None,
        num_blocks: int | None,
    ) -> PoolLimits:
        """Run the largest steps once, then allocate the pool: of the requested size, or what fits.

        Removes every sequence. Raises InvalidStep for a step or a batch of nothing, OutOfMemory
        when a step or the pool does not fit.
        """
        if max_step_tokens < 1 or max_batch_size < 1:
            raise InvalidStep(
                f"max_step_tokens {max_step_tokens} and max_batch_size {max_batch_size} must both"
                " be at least 1"
            )
        self.clear(None)
        self._planner.max_total_len = None
        limits, bytes_per_token = warm_up(
            self._model,
            self._sampler,
            self._world,
            Largest(max_step_tokens, max_batch_size, max_total_len),
            num_blocks=num_blocks or self._num_blocks,
            memory_fraction=self._memory_fraction,
        )
        self._planner.max_total_len = limits.max_total_len
        has_room = partial(memory.has_room, self._model.device)
        self._room = StepRoom(self._world, has_room, bytes_per_token)
        return limits

    def begin_prefill(
        self,
        batch_id: int,
        new: Sequence[NewSequence],
        cached_batch_id: int | None,
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int] = (),
        begun: Callable[[], None] = _nothing,
    ) -> LaunchedStep:
        """Begin a step for new sequences and, with `cached_batch_id`, for that batch's as well.

        The result is the cached batch, if there is one, otherwise a new batch of id `batch_id`.
        `dropped_ids` leave the cached batch before the step; `begun` is called when the forward
        begins, if there is one, and the step before has ended. Raises InvalidStep, UnknownBatch.
        """
        self.settle()
        started_ns = time.perf_counter_ns()
        request_ids = [sequence.request_id for sequence in new]
        running: list[SequenceState] = []
        if cached_batch_id is None:
            self._held.batches.require_new(batch_id, request_ids)
        else:
            running = self._planner.running((cached_batch_id,), dropped_ids)
            self._held.batches.require_new_requests(request_ids)
            batch_id = cached_batch_id
        entering = self._planner.first_chunks(new)
        chunks = self._planner.chunks(running, updates) + entering
        return self._begin(started_ns, (batch_id,), chunks, new, dropped_ids, begun)

    def begin_decode(
        self,
        batch_ids: Sequence[int],
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int] = (),
        begun: Callable[[], None] = _nothing,
    ) -> LaunchedStep:
        """Begin a step for these batches without `dropped_ids`; they become one, the first.

        `begun`: as in `begin_prefill`. Raises InvalidStep, UnknownBatch.
        """
        if not batch_ids or len(set(batch_ids)) != len(batch_ids):
            raise InvalidStep(f"batches to decode must be named, each once: {list(batch_ids)}")
        ahead = self._begin_ahead(batch_ids, updates, dropped_ids, begun)
        if ahead is not None:
            return ahead
        self.settle()
        started_ns = time.perf_counter_ns()
        running = self._planner.running(batch_ids, dropped_ids)
        chunks = self._planner.chunks(running, updates)
        return self._begin(started_ns, batch_ids, chunks, (), dropped_ids, begun)

    def prefill(
        self,
        batch_id: int,
        new: Sequence[NewSequence],
        cached_batch_id: int | None,
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int] = (),
    ) -> StepOutput:
        """As `begin_prefill`, to its end."""
        return self.begin_prefill(batch_id, new, cached_batch_id, updates, dropped_ids).finish()

    def decode(
        self,
        batch_ids: Sequence[int],
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int] = (),
    ) -> StepOutput:
        """As `begin_decode`, to its end."""
        return self.begin_decode(batch_ids, updates, dropped_ids).finish()

    def settle(self) -> None:
        """Finish the step in flight, if there is one. Raises what went wrong in it."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            in_flight.step.finish()

    @property
    def holds_requests(self) -> bool:
        """Whether any batch has one."""
        return bool(self._held.batches)

    @property
    def is_warm(self) -> bool:
        """Whether there is a pool, made by warm-up."""
        return self._planner.max_total_len is not None

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has nothing to do."""
        return self._guides is None or not self._guides.has_quick

    def prepare(self) -> None:
        """Make, between two steps, the masks for the next one that take microseconds."""
        if self._guides is not None:
            self._guides.make_quick()

    def filter(self, batch_id: int, request_ids: Sequence[int]) -> tuple[int, ...]:
        """Keep the named requests of a batch and remove its others; returns what is left.

        Named requests that the batch does not hold, since they ended, are ignored. Raises
        UnknownBatch.
        """
        self.settle()
        kept, batches = set(request_ids), self._held.batches
        self._held.remove(batch_id, [held for held in batches.of(batch_id) if held not in kept])
        return batches.request_ids(batch_id)

    def clear(self, batch_id: int | None) -> None:
        """Remove one batch, or all. Raises UnknownBatch."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            # Whatever went wrong in it has been answered, or nobody waits for it.
            with suppress(Exception):
                in_flight.step.finish()
        self._held.clear(batch_id)
        self._planner.ended_batch_id = None

    def _begin(
        self,
        started_ns: int,
        batch_ids: Sequence[int],
        chunks: Sequence[PlannedChunk],
        new: Sequence[NewSequence],
        dropped_ids: Sequence[int],
        begun: Callable[[], None],
    ) -> LaunchedStep:
        """Compute chunks of these batches, which become one; the last chunks are the new ones'."""
        active = [chunk for chunk in chunks if chunk.chunk_len]
        inputs = self._planner.inputs(active) if active else None
        batch_id, held = batch_ids[0], self._held
        # The chunks may have blocks of what is dropped: no step before this one writes them later.
        if dropped_ids:
            held.drop(batch_ids, frozenset(dropped_ids))
        held.enter(new)
        for chunk in chunks:
            chunk.sequence.block_ids = chunk.block_ids
        held.batches.merge(batch_ids)
        held.batches.add(batch_id, [chunk.sequence for chunk in chunks[len(chunks) - len(new) :]])

        return self._compute(batch_id, active, inputs, started_ns, begun)

    def _compute(
        self,
        batch_id: int,
        chunks: Sequence[PlannedChunk],
        inputs: StepInputs | None,
        started_ns: int,
        begun: Callable[[], None],
    ) -> LaunchedStep:
        """Compute a step; if it does not fit, without its largest chunk, which fails alone.

        Raises OutOfMemory when that does not help either.
        """
        failed: tuple[Generation, ...] = ()
        computed, num_failed = NOTHING, 0
        while inputs is not None:
            try:
                self._room.require(inputs.num_tokens)
                if self._launcher is not None and can_launch(chunks):
                    launched = self._launcher.launch(inputs, chunks, begun)
                    return self._put_in_flight(batch_id, launched, started_ns, failed)
                computed = self._computation.run(inputs, chunks, begun)
                break
            except OutOfMemory as error:
                if num_failed == _MAX_FAILED:
                    raise
                largest = max(chunks, key=lambda chunk: (chunk.chunk_len, chunk.start))
                failed += self._held.fail(batch_id, largest.sequence, str(error))
                num_failed += 1
            memory.release(self._model.device)
            chunks = [chunk for chunk in chunks if chunk is not largest]
            inputs = self._planner.inputs(chunks) if chunks else None
        output = self._apply(batch_id, chunks, computed, started_ns, failed)
        return LaunchedStep(lambda: output)

    def _begin_ahead(
        self,
        batch_ids: Sequence[int],
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int],
        begun: Callable[[], None],
    ) -> LaunchedStep | None:
        """Launch a step behind the one in flight, and finish that; None: it has to end first."""
        before, launcher = self._in_flight, self._launcher
        if before is None or launcher is None or tuple(batch_ids) != (before.batch_id,):
            return None
        in_flight = before.launched
        chunks = self._planner.chunks_after(
            before.batch_id, in_flight.chunks, in_flight.late, updates, dropped_ids
        )
        if not chunks or not can_launch(chunks):
            return None
        started_ns = time.perf_counter_ns()
        inputs, forward = self._planner.inputs(chunks), None
        try:
            forward = launcher.launch_forward(inputs, chunks, in_flight)
        except OutOfMemory:
            memory.release(self._model.device)
        finally:
            # Its results are its own, whatever became of this one.
            self.settle()
        chunks = [chunk.settled() for chunk in chunks if not chunk.sequence.has_ended]
        # With another token a row is late, and where it may not be the step begins anew.
        if forward is None or any(
            chunk.sequence.request_id in self._redrawn and not chunk.may_be_late for chunk in chunks
        ):
            return None
        try:
            launched = launcher.launch_sampling(forward, chunks, self._redrawn, begun)
        except OutOfMemory:
            memory.release(self._model.device)
            return None
        for chunk in chunks:
            chunk.sequence.block_ids = chunk.block_ids
        if dropped_ids:
            self._held.drop(batch_ids, frozenset(dropped_ids))
        return self._put_in_flight(before.batch_id, launched, started_ns)

    def _put_in_flight(
        self,
        batch_id: int,
        launched: LaunchedChunks,
        started_ns: int,
        failed: tuple[Generation, ...] = (),
    ) -> LaunchedStep:
        launcher = self._launcher
        assert launcher is not None

        def finish() -> StepOutput:
            if self._in_flight is not None and self._in_flight.step is step:
                self._in_flight = None
            computed = launcher.collect(launched)
            self._redrawn = computed.redrawn
            return self._apply(batch_id, launched.chunks, computed, started_ns, failed)

        step = LaunchedStep(finish, lambda: launched.is_ready)
        self._in_flight = _InFlight(step, batch_id, launched)
        return step

    def _apply(
        self,
        batch_id: int,
        chunks: Sequence[PlannedChunk],
        computed: Computed,
        started_ns: int,
        failed: tuple[Generation, ...],
    ) -> StepOutput:
        generations = failed + self._held.apply(batch_id, chunks, computed)
        request_ids = self._held.batches.request_ids(batch_id)
        self._planner.ended_batch_id = None if request_ids else batch_id
        # Of a step that was launched behind another one, what it took after that one.
        started_ns = max(started_ns, self._finished_ns)
        self._finished_ns = time.perf_counter_ns()
        masks = computed.masks
        return StepOutput(
            generations=generations,
            batch_id=batch_id if request_ids else None,
            request_ids=request_ids,
            forward_ns=computed.forward_ns,
            sample_ns=computed.sample_ns,
            total_ns=self._finished_ns - started_ns,
            mask_ns=0 if masks is None else masks.mask_ns,
            num_masked_rows=0 if masks is None else len(masks.outputs),
            mask_wait_ns=computed.mask_wait_ns,
        )
