"""The steps of a shard: the only mutator of its sequences, of its pool and of its sampler.

    decide: the call's plain ints -> PlannedChunk per sequence -> StepInputs   (raises InvalidStep)
    compute: forward on every rank, sampling on rank 0, token ids broadcast
    apply:  append tokens, advance lengths, remove ended sequences -> StepOutput

A call that breaks the contract is refused before anything changes. An exception further on leaves
the step's sequences in their batches as they were, for `clear` to remove. It knows no RPC and no
text.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from model_server.engine import memory
from model_server.engine.computation import (
    NOTHING,
    Computation,
    Computed,
    FirstRank,
    Follower,
)
from model_server.engine.distributed import Drawn, World
from model_server.engine.sequences import Batches, PlannedChunk, SequenceState, take_scores
from model_server.engine.step import SequenceStep, StepInputs, StepOutput
from model_server.engine.warmup import blocks_that_fit, try_largest_steps
from model_server.errors import InvalidStep
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.model.model import PagedModel
from model_server.sampling.rehearsal import rehearse
from model_server.sampling.sampler import Sampler
from proto.contract import FinishReason, Generation, NewSequence, PoolLimits, RunningUpdate

_log = logging.getLogger(__name__)


def _nothing() -> None:
    """For callers who need not know that a forward begins."""


class Runner:
    """Runs steps, one at a time and from one thread.

    `sampler` and `guides` exist on rank 0 alone; without `guides` constraints are refused.
    `num_blocks` fixes the pool's size; otherwise warm-up measures it, on CUDA within
    `memory_fraction` of the device.
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
    ) -> None:
        if (sampler is not None) != world.is_first:
            raise ValueError(f"rank {world.rank} and its sampler contradict each other")
        self._computation: Computation = (
            Follower(model, world) if sampler is None else FirstRank(model, sampler, guides, world)
        )
        self._model = model
        self._sampler = sampler
        self._guides = guides
        self._takes_constraints = guides is not None or not world.is_first
        self._world = world
        self._num_blocks = num_blocks
        self._memory_fraction = memory_fraction
        self._batches = Batches()
        # A step that was sent before a batch's last sequence ended may still name the batch.
        self._ended_batch_id: int | None = None
        self._max_total_len: int | None = None

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
        self._max_total_len = None
        model = self._model
        total_len = min(model.max_position_embeddings, max_total_len or 1 << 62)
        if self._sampler is not None:
            self._sampler.reserve(max_batch_size, total_len)
            if model.device.type == "cuda":
                rehearse(self._sampler, model.vocab_size, model.device, max_batch_size)
        peak_bytes = try_largest_steps(model, max_step_tokens, max_batch_size, total_len)
        num_blocks = num_blocks or self._num_blocks
        if num_blocks is None:
            num_blocks = blocks_that_fit(
                model,
                self._world,
                peak_bytes=peak_bytes,
                memory_fraction=self._memory_fraction,
                max_batch_size=max_batch_size,
                max_total_len=total_len,
            )
        num_blocks = self._world.smallest(num_blocks)
        memory.require_room(model.device, (num_blocks + 1) * model.bytes_per_block)
        model.allocate(num_blocks)
        self._max_total_len = min(total_len, num_blocks * model.block_size)
        model.prepare(max_batch_size, self._max_total_len)
        _log.info(
            "pool of %d blocks of %d tokens, %.1f MiB",
            num_blocks,
            model.block_size,
            num_blocks * model.bytes_per_block / 2**20,
        )
        return PoolLimits(num_blocks, model.block_size, self._max_total_len)

    def prefill(
        self,
        batch_id: int,
        new: Sequence[NewSequence],
        cached_batch_id: int | None,
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int] = (),
        begun: Callable[[], None] = _nothing,
    ) -> StepOutput:
        """One step for new sequences and, with `cached_batch_id`, for that batch's as well.

        The result is the cached batch, if there is one, otherwise a new batch of id `batch_id`.
        `dropped_ids` leave the cached batch before the step; `begun` is called when the forward
        begins, if there is one. Raises InvalidStep, UnknownBatch.
        """
        started_ns = time.perf_counter_ns()
        request_ids = [sequence.request_id for sequence in new]
        running: list[SequenceState] = []
        if cached_batch_id is None:
            self._batches.require_new(batch_id, request_ids)
        else:
            running = self._running((cached_batch_id,), dropped_ids)
            self._batches.require_new_requests(request_ids)
            batch_id = cached_batch_id
        self._require_servable(new)
        chunks = self._plan(running, updates)
        chunks += [
            PlannedChunk.first(SequenceState.of(one), one.chunk_len, (), self._model.block_size)
            for one in new
        ]
        return self._step(started_ns, (batch_id,), chunks, new, dropped_ids, begun)

    def decode(
        self,
        batch_ids: Sequence[int],
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int] = (),
        begun: Callable[[], None] = _nothing,
    ) -> StepOutput:
        """One step for these batches without `dropped_ids`; they become one under the first id.

        Raises InvalidStep, UnknownBatch.
        """
        started_ns = time.perf_counter_ns()
        if not batch_ids or len(set(batch_ids)) != len(batch_ids):
            raise InvalidStep(f"batches to decode must be named, each once: {list(batch_ids)}")
        running = self._running(batch_ids, dropped_ids)
        chunks = self._plan(running, updates)
        return self._step(started_ns, batch_ids, chunks, (), dropped_ids, begun)

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
        kept = set(request_ids)
        self._remove(batch_id, [held for held in self._batches.of(batch_id) if held not in kept])
        return self._batches.request_ids(batch_id)

    def clear(self, batch_id: int | None) -> None:
        """Remove one batch, or all. Raises UnknownBatch."""
        if batch_id is not None:
            self._batches.of(batch_id)
        for each_id in self._batches.batch_ids() if batch_id is None else (batch_id,):
            self._remove(each_id, self._batches.request_ids(each_id))
        self._ended_batch_id = None

    def _running(self, batch_ids: Sequence[int], dropped_ids: Sequence[int]) -> list[SequenceState]:
        """The sequences of these batches that stay in them. Raises UnknownBatch."""
        dropped = frozenset(dropped_ids)
        return [
            sequence
            for batch_id in batch_ids
            if batch_id != self._ended_batch_id
            for sequence in self._batches.of(batch_id).values()
            if sequence.request_id not in dropped
        ]

    def _plan(
        self, running: Iterable[SequenceState], updates: Sequence[RunningUpdate]
    ) -> list[PlannedChunk]:
        changes = {change.request_id: change for change in updates}
        if len(changes) != len(updates):
            raise InvalidStep("updates name a request twice")
        block_size = self._model.block_size
        return [
            PlannedChunk.of(sequence, changes.get(sequence.request_id), block_size)
            for sequence in running
        ]

    def _require_servable(self, new: Sequence[NewSequence]) -> None:
        if self._max_total_len is None:
            raise InvalidStep("there is no KV pool yet: Warmup comes first")
        vocab_size = self._model.vocab_size
        for one in new:
            if one.constraint is not None and not self._takes_constraints:
                raise InvalidStep(f"request {one.request_id}: constraints are not served here")
            total_len = one.prompt_len + one.stop.max_new_tokens
            if total_len > self._max_total_len:
                raise InvalidStep(
                    f"request {one.request_id}: prompt_len {one.prompt_len} + max_new_tokens"
                    f" {one.stop.max_new_tokens} exceeds {self._max_total_len}"
                )
            if not 0 <= min(one.token_ids) <= max(one.token_ids) < vocab_size:
                raise InvalidStep(
                    f"request {one.request_id}: a token id is not in 0..{vocab_size - 1}"
                )

    def _step(
        self,
        started_ns: int,
        batch_ids: Sequence[int],
        chunks: Sequence[PlannedChunk],
        new: Sequence[NewSequence],
        dropped_ids: Sequence[int],
        begun: Callable[[], None],
    ) -> StepOutput:
        """Compute chunks of these batches, which become one; the last chunks are the new ones'."""
        active = [chunk for chunk in chunks if chunk.chunk_len]
        inputs = self._inputs([chunk.step() for chunk in active]) if active else None
        batch_id = batch_ids[0]
        # The chunks may have blocks of what is dropped: no step before this one writes them later.
        if dropped_ids:
            self._drop(batch_ids, frozenset(dropped_ids))
        self._enter(new)
        for chunk in chunks:
            chunk.sequence.block_ids = chunk.block_ids
        self._batches.merge(batch_ids)
        self._batches.add(batch_id, [chunk.sequence for chunk in chunks[len(chunks) - len(new) :]])

        computed = NOTHING if inputs is None else self._computation.run(inputs, active, begun)
        generations = self._apply(batch_id, active, computed)
        request_ids = self._batches.request_ids(batch_id)
        self._ended_batch_id = None if request_ids else batch_id
        masks = computed.masks
        return StepOutput(
            generations=generations,
            batch_id=batch_id if request_ids else None,
            request_ids=request_ids,
            forward_ns=computed.forward_ns,
            sample_ns=computed.sample_ns,
            total_ns=time.perf_counter_ns() - started_ns,
            mask_ns=0 if masks is None else masks.mask_ns,
            num_masked_rows=0 if masks is None else len(masks.outputs),
            mask_wait_ns=computed.mask_wait_ns,
        )

    def _inputs(self, sequences: Sequence[SequenceStep]) -> StepInputs:
        model = self._model
        return StepInputs.build(
            sequences,
            block_size=model.block_size,
            scratch_block_id=model.scratch_block_id,
            device=model.device,
            min_tokens=model.min_step_tokens,
        )

    def _enter(self, new: Sequence[NewSequence]) -> None:
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

    def _apply(
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
                if finish_reason is not None:
                    ended.append(sequence.request_id)
            if self._sampler is not None and (samples or scores or finish_reason is not None):
                has_row = samples and sequence.request_id not in computed.late
                generations.append(
                    computed.generation(sequence, row if has_row else None, finish_reason, scores)
                )
                row += has_row
        self._remove(batch_id, ended)
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
        return sequence.finish_reason(self._model.eos_token_ids, is_over=drawn.is_over)

    def _drop(self, batch_ids: Sequence[int], dropped: frozenset[int]) -> None:
        for batch_id in batch_ids:
            held = self._batches.request_ids(batch_id)
            self._remove(batch_id, [each for each in held if each in dropped])

    def _remove(self, batch_id: int, request_ids: Sequence[int]) -> None:
        if request_ids:
            self._release(request_ids)
            self._batches.remove(batch_id, request_ids)

    def _release(self, request_ids: Sequence[int]) -> None:
        """Remove the sampler rows and the guides of these."""
        if self._sampler is not None:
            for request_id in request_ids:
                self._sampler.remove(request_id)
        if self._guides is not None:
            for request_id in request_ids:
                self._guides.close(request_id)
