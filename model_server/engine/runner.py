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

A step in flight, as its caller holds it.

Whether every rank has the memory for a step, asked before any of them enters its collectives.

A rank that runs out of memory in the middle of a forward leaves the others in a collective that it
will never enter. So ranks agree first, on the host, before each step of more tokens than a decode
has; what a step takes was measured at warm-up, by its tokens.

What each sequence of a step computes, decided from a call's plain ints and the books.

The requests that a shard holds: their batches, sampler rows and guides come and go together.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from model_server.engine import memory
from model_server.engine.distributed import Drawn, World
from model_server.engine.first_rank import (
    NOTHING,
    Computation,
    Computed,
    FirstRank,
    Follower,
    LaunchedChunks,
    can_launch,
)
from model_server.engine.sequences import (
    Batches,
    DraftRules,
    PlannedChunk,
    SequenceState,
    take_scores,
)
from model_server.engine.warmup import Largest, warm_up
from model_server.errors import InvalidStep, OutOfMemory
from model_server.executor.executor import PagedModel
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.sampling.sampler import Sampler
from model_server.step import StepInputs, StepOutput
from proto.contract import FinishReason, Generation, NewSequence, PoolLimits, RunningUpdate


class LaunchedStep:
    """A step in flight, or one that has ended: `finish` says what it gave, as often as asked."""

    def __init__(
        self, finish: Callable[[], StepOutput], is_ready: Callable[[], bool] = lambda: True
    ) -> None:
        self._finish = finish
        self._is_ready = is_ready
        self._output: StepOutput | None = None
        self._error: Exception | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `finish` does not wait for the device."""
        return self._output is not None or self._error is not None or self._is_ready()

    def finish(self) -> StepOutput:
        """Wait for the step. Raises what went wrong in it."""
        if self._output is None and self._error is None:
            try:
                self._output = self._finish()
            except Exception as error:
                self._error = error
                raise
        if self._output is None:
            assert self._error is not None
            raise self._error
        return self._output


class StepRoom:
    """has_room: whether this rank could allocate so many bytes; bytes_per_token: of a step."""

    def __init__(self, world: World, has_room: Callable[[int], bool], bytes_per_token: int) -> None:
        self._world = world
        self._has_room = has_room
        self._bytes_per_token = bytes_per_token

    def require(self, num_tokens: int) -> None:
        """Raise OutOfMemory on all ranks, or on none."""
        if self._world.world_size == 1 or not self._bytes_per_token:
            return
        needed = num_tokens * self._bytes_per_token
        if not self._world.smallest(int(self._has_room(needed))):
            raise OutOfMemory(f"a step of {num_tokens} tokens does not fit on every rank")


class StepPlanner:
    """Reads the batches and changes nothing.

    `max_total_len`, of a sequence: None before warm-up. `ended_batch_id`: a batch whose last
    sequence ended in the last step, which a step that was sent before may still name.
    """

    def __init__(self, model: PagedModel, batches: Batches, *, takes_constraints: bool) -> None:
        self._model = model
        self._batches = batches
        self._takes_constraints = takes_constraints
        self.max_total_len: int | None = None
        self.ended_batch_id: int | None = None

    def running(self, batch_ids: Sequence[int], dropped_ids: Sequence[int]) -> list[SequenceState]:
        """The sequences of these batches that stay in them. Raises UnknownBatch."""
        dropped = frozenset(dropped_ids)
        return [
            sequence
            for batch_id in batch_ids
            if batch_id != self.ended_batch_id
            for sequence in self._batches.of(batch_id).values()
            if sequence.request_id not in dropped
        ]

    def chunks(
        self, running: Collection[SequenceState], updates: Sequence[RunningUpdate]
    ) -> list[PlannedChunk]:
        """The chunks of running sequences. Raises InvalidStep."""
        changes = {change.request_id: change for change in updates}
        if len(changes) != len(updates):
            raise InvalidStep("updates name a request twice")
        block_size = self._model.block_size
        rules = DraftRules.of_rows(len(running), self._model.eos_token_ids)
        return [
            PlannedChunk.of(sequence, changes.get(sequence.request_id), block_size, rules)
            for sequence in running
        ]

    def first_chunks(self, new: Sequence[NewSequence]) -> list[PlannedChunk]:
        """The chunks of new sequences. Raises InvalidStep for those that cannot be served."""
        self._require_servable(new)
        block_size = self._model.block_size
        return [
            PlannedChunk.first(SequenceState.of(one), one.chunk_len, (), block_size) for one in new
        ]

    def chunks_after(
        self,
        batch_id: int,
        in_flight: Sequence[PlannedChunk],
        late: Collection[int],
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int],
    ) -> list[PlannedChunk]:
        """The chunks after those in flight, if nothing ends that need not; none: ask again later.

        late: requests in flight that sample nothing, for want of a mask

        A call that breaks the contract is refused when the books are known.
        """
        changes = {change.request_id: change for change in updates}
        if len(changes) != len(updates):
            return []
        last_chunks = {chunk.sequence.request_id: chunk for chunk in in_flight}
        block_size, chunks = self._model.block_size, list[PlannedChunk]()
        try:
            for sequence in self.running((batch_id,), dropped_ids):
                request_id = sequence.request_id
                last, update = last_chunks.get(request_id), changes.get(request_id)
                is_late = request_id in late
                if last is None:
                    chunks.append(PlannedChunk.of(sequence, update, block_size))
                elif is_late or not last.is_last:
                    chunks.append(last.next(update, block_size, is_late=is_late))
        except InvalidStep:
            return []
        return [chunk for chunk in chunks if chunk.chunk_len]

    def inputs(self, chunks: Sequence[PlannedChunk]) -> StepInputs:
        """The tensors of a step. Raises InvalidStep."""
        model = self._model
        return StepInputs.build(
            [chunk.step() for chunk in chunks],
            block_size=model.block_size,
            scratch_block_id=model.scratch_block_id,
            device=model.device,
            min_tokens=model.min_step_tokens,
        )

    def _require_servable(self, new: Sequence[NewSequence]) -> None:
        if self.max_total_len is None:
            raise InvalidStep("there is no KV pool yet: Warmup comes first")
        vocab_size = self._model.vocab_size
        for one in new:
            if one.constraint is not None and not self._takes_constraints:
                raise InvalidStep(f"request {one.request_id}: constraints are not served here")
            total_len = one.prompt_len + one.stop.max_new_tokens
            if total_len > self.max_total_len:
                raise InvalidStep(
                    f"request {one.request_id}: prompt_len {one.prompt_len} + max_new_tokens"
                    f" {one.stop.max_new_tokens} exceeds {self.max_total_len}"
                )
            if not 0 <= min(one.token_ids) <= max(one.token_ids) < vocab_size:
                raise InvalidStep(
                    f"request {one.request_id}: a token id is not in 0..{vocab_size - 1}"
                )


_log = logging.getLogger(__name__)


class HeldRequests:
    """Owner of `batches`; the runner is its only caller. Rank 0 has a sampler, and maybe guides."""

    def __init__(
        self,
        sampler: Sampler | None,
        guides: MaskScheduler | None,
        eos_token_ids: Collection[int],
    ) -> None:
        self.batches = Batches()
        self._sampler = sampler
        self._guides = guides
        self._eos_token_ids = eos_token_ids

    def enter(self, new: Sequence[NewSequence]) -> None:
        """Give each new sequence its sampler row and its guide: all of them, or none."""
        if self._sampler is None:
            return
        entered: list[int] = []
        try:
            for one in new:
                self._sampler.add(
                    one.request_id,
                    one.sampling,
                    # With a constraint, its guide ensures the minimum length: it may have to end.
                    one.stop if one.constraint is None else replace(one.stop, min_new_tokens=0),
                    one.logprobs,
                    one.token_ids,
                    one.prompt_len,
                )
                entered.append(one.request_id)
                if self._guides is not None:
                    self._guides.open(one)
        except BaseException:
            self._release(entered)
            raise

    def apply(
        self, batch_id: int, chunks: Sequence[PlannedChunk], computed: Computed
    ) -> tuple[Generation, ...]:
        """Apply what was computed to the sequences; returns generations on rank 0 alone."""
        for request_id, reason in computed.errors.items():
            if request_id in computed.refused:
                continue
            fields = {"shard_request_id": request_id}
            _log.error("shard_request_id=%d failed alone: %s", request_id, reason, extra=fields)
        generations: list[Generation] = []
        ended: list[int] = []
        drawn = iter(computed.drawn)
        row = 0
        for chunk in chunks:
            sequence, samples = chunk.sequence, chunk.samples
            scores = take_scores(chunk, computed.scores) if sequence.logprobs.prompt else ()
            sequence.computed_len += chunk.chunk_len
            finish_reason = None
            if chunk.num_logits:
                answer = next(drawn)
                if answer.is_late:
                    sequence.retry_sample(scores)
                else:
                    finish_reason = self._finish_reason(sequence, samples, answer)
                    if chunk.drafts and answer.token_ids:
                        sequence.take_drafts(len(chunk.drafts), len(answer.token_ids) - 1)
                if finish_reason is not None:
                    sequence.has_ended = True
                    ended.append(sequence.request_id)
            if self._sampler is not None and (samples or scores or finish_reason is not None):
                has_row = samples and sequence.request_id not in computed.late
                generation = computed.generation(
                    sequence, row if has_row else None, finish_reason, scores
                )
                if chunk.drafts and generation.tokens:
                    num_accepted = len(generation.tokens) - 1
                    generation = generation._replace(
                        num_drafts=len(chunk.drafts), num_accepted=num_accepted
                    )
                generations.append(generation)
                row += has_row
        self.remove(batch_id, ended)
        return tuple(generations)

    def _finish_reason(
        self, sequence: SequenceState, samples: bool, drawn: Drawn
    ) -> FinishReason | None:
        """Append the tokens, if there are any; returns the finish reason, None if it goes on."""
        if not drawn.token_ids:
            return FinishReason.ERROR
        if not samples:
            return None
        sequence.token_ids += drawn.token_ids
        sequence.is_decoding = True
        return sequence.finish_reason(self._eos_token_ids, is_over=drawn.is_over)

    def drop(self, batch_ids: Sequence[int], dropped: frozenset[int]) -> None:
        """Remove these requests from whichever of the batches holds them."""
        for batch_id in batch_ids:
            held = self.batches.request_ids(batch_id)
            self.remove(batch_id, [each for each in held if each in dropped])

    def remove(self, batch_id: int, request_ids: Sequence[int]) -> None:
        """Remove requests from a batch."""
        if request_ids:
            self._release(request_ids)
            self.batches.remove(batch_id, request_ids)

    def _release(self, request_ids: Sequence[int]) -> None:
        """Remove the sampler rows and the guides of these."""
        if self._sampler is not None:
            for request_id in request_ids:
                self._sampler.remove(request_id)
        if self._guides is not None:
            for request_id in request_ids:
                self._guides.close(request_id)

    def fail(self, batch_id: int, sequence: SequenceState, reason: str) -> tuple[Generation, ...]:
        """Remove one request; returns its answer, on rank 0 alone."""
        request_id = sequence.request_id
        sequence.has_ended = True
        _log.error(
            "shard_request_id=%d failed alone: %s",
            *(request_id, reason),
            extra={"shard_request_id": request_id},
        )
        self.remove(batch_id, (request_id,))
        if self._sampler is None:
            return ()
        computed = Computed(errors={request_id: reason})
        return (computed.generation(sequence, None, FinishReason.ERROR, ()),)

    def clear(self, batch_id: int | None) -> None:
        """Remove one batch, or all. Raises UnknownBatch."""
        if batch_id is not None:
            self.batches.of(batch_id)
        for each_id in self.batches.batch_ids() if batch_id is None else (batch_id,):
            self.remove(each_id, self.batches.request_ids(each_id))


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
