"""The steps of a shard: the only mutator of its requests, of its pool and of its sampler.

    begin:  the call's plain ints -> PlannedChunk per sequence -> StepInputs   (raises InvalidStep);
            new requests enter, dropped ones leave
    launch: forward on every rank, sampling on rank 0
    finish: token ids broadcast, tokens appended, lengths advanced, ended sequences removed
            -> StepOutput

A call that breaks the contract is refused before anything changes. An exception further on leaves
the step's sequences as they were, for `clear` to remove. It knows no RPC and no text.

A step is finished when it was launched; but where steps run ahead, it stays in flight until the
next one begins. If the next one only decodes what is in that step, it is planned by what the books
will be if nothing ends, and its forward is launched before the step in flight is read; see
`first_rank.py`. Else the step in flight is finished first.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from model_server.engine import memory
from model_server.engine.adapters import AdapterBook
from model_server.engine.distributed import Drawn, World
from model_server.engine.first_rank import FirstRank, Follower, Rank, StepInFlight
from model_server.engine.sequences import DraftRules, PlannedChunk, SequenceState, take_scores
from model_server.engine.states import StateBook
from model_server.engine.warmup import Largest, StepRoom, warm_up
from model_server.errors import ImageRefused, InvalidStep, NoBatch, OutOfMemory, RanksDiverged
from model_server.executor.executor import PagedModel, ReadAdapter
from model_server.images import Gallery, SequenceImages
from model_server.masking.guided_output import Advance
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.sampling.choosing import PromptScore
from model_server.sampling.sampler import Sampler
from model_server.step import BlockTables, PlainTokens, StepInputs, StepOutput
from proto.contract import (
    FinishReason,
    Generation,
    Image,
    NewSequence,
    PoolLimits,
    RunningUpdate,
    SampledToken,
)

_log = logging.getLogger(__name__)

# Requests of one step that fail for want of memory, one after the other, before the step does.
_MAX_FAILED = 4
_NO_ADVANCE = Advance()


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
        self._rank: Rank = first or Follower(model, world)
        self._model = model
        self._sampler = sampler
        self._guides = guides
        self._world = world
        self._num_blocks = num_blocks
        self._memory_fraction = memory_fraction
        self._held = HeldRequests(sampler, guides, model.eos_token_ids)
        self._states = StateBook()
        self._tables = BlockTables(scratch_block_id=0)
        self._adapters = AdapterBook(model.max_loras)
        # None: the model does not see.
        self._gallery = None if model.sight is None else Gallery(model.sight.eyes)
        self._takes_constraints = guides is not None or not world.is_first
        self._room = StepRoom(world, model.device, bytes_per_token=0)
        # Of a sequence; None before warm-up.
        self._max_total_len: int | None = None
        if runs_ahead is None:
            runs_ahead = model.device.type == "cuda"
        # None: each step ends before the next one begins.
        self._ahead = first if runs_ahead and world.world_size == 1 else None
        self._in_flight: StepInFlight | None = None
        self._finished_ns = 0

    def warmup(
        self,
        max_step_tokens: int,
        max_batch_size: int,
        max_total_len: int | None,
        num_blocks: int | None,
        num_states: int | None = None,
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
        self.clear()
        self._max_total_len = None
        limits, self._room = warm_up(
            self._model,
            self._sampler,
            self._world,
            Largest(max_step_tokens, max_batch_size, max_total_len),
            num_blocks=num_blocks or self._num_blocks,
            num_states=num_states,
            memory_fraction=self._memory_fraction,
            num_adapters=self._adapters.num_free,
        )
        self._states = StateBook(limits.num_states, can_keep=self._model.keeps_states)
        self._tables = BlockTables(self._model.scratch_block_id)
        self._max_total_len = limits.max_total_len
        return limits

    def begin(
        self,
        new: Sequence[NewSequence] = (),
        updates: Sequence[RunningUpdate] = (),
        dropped_ids: Sequence[int] = (),
    ) -> StepInFlight:
        """Begin a step of new sequences and those that run, without `dropped_ids`.

        When this returns, the step before has been finished. The step is to be launched next.
        Raises InvalidStep; NoBatch for a step without new sequences before there were any.
        """
        if not new and not self._held.has_begun:
            raise NoBatch("no batch is held here: nothing was prefilled since it was cleared")
        if self._in_flight is not None and not new:
            behind = self._begin_behind(self._in_flight, updates, dropped_ids)
            if behind is not None:
                return behind
        self.settle()
        started_ns = time.perf_counter_ns()
        running = self._held.without(dropped_ids)
        self._require_servable(new)
        entering = [
            SequenceState.of(one, self._states.open(one), self._images_of(one)) for one in new
        ]
        block_size = self._model.block_size
        rules = DraftRules.of_rows(len(running), self._model.eos_token_ids)
        changes = _by_request(updates)
        chunks = [
            PlannedChunk.of(sequence, changes.get(sequence.request_id), block_size, rules)
            for sequence in running
        ]
        for sequence, one in zip(entering, new, strict=True):
            first = RunningUpdate(one.request_id, (), one.chunk_len)
            chunks.append(PlannedChunk.of(sequence, first, block_size, rules))
        step = StepInFlight([chunk for chunk in chunks if chunk.chunk_len], None, started_ns)
        if step.chunks:
            step.inputs = self._inputs(step.chunks)
        # The chunks may have blocks of what is dropped: no step before this one writes them later.
        self._held.drop(dropped_ids)
        self._held.enter(new, entering)
        for sequence in entering:
            if sequence.states is not None:
                self._states.enter(sequence.states)
        for chunk in chunks:
            chunk.sequence.block_ids = chunk.block_ids
        self._rank.begin(step)
        return step

    def launch(self, step: StepInFlight) -> None:
        """Launch a step that was begun; if it does not fit, without its largest chunk, which fails.

        Raises OutOfMemory when that does not help either.
        """
        num_failed = 0
        if step.logits is None and self._gallery is not None:
            self._look(step, self._gallery)
        while step.inputs is not None:
            try:
                if step.logits is None:
                    self._room.require(step.inputs.num_tokens)
                    self._rank.forward(step)
                self._rank.sample(step)
                if self._ahead is not None and step.is_plain:
                    self._in_flight = step
                    return
                self._rank.collect(step)
                break
            except OutOfMemory as error:
                step.logits = None
                step.late = frozenset()
                if step.is_behind:
                    # The step before is read by now: all of it is computed anew.
                    step.is_behind = False
                elif num_failed == _MAX_FAILED:
                    raise
                else:
                    largest = max(step.chunks, key=lambda chunk: (chunk.chunk_len, chunk.start))
                    step.chunks = [chunk for chunk in step.chunks if chunk is not largest]
                    step.failed += self._held.fail(largest.sequence, str(error))
                    num_failed += 1
            memory.release(self._model.device)
            step.inputs = self._inputs(step.chunks) if step.chunks else None
        step.output = self._apply(step)

    def finish(self, step: StepInFlight) -> StepOutput:
        """Wait for a step that was launched. As often as asked; raises what went wrong in it."""
        if self._in_flight is step:
            self._in_flight = None
            try:
                self._rank.collect(step)
                step.output = self._apply(step)
            except Exception as error:
                step.error = error
                raise
        if step.error is not None:
            raise step.error
        assert step.output is not None, "it was not launched"
        return step.output

    def step(
        self,
        new: Sequence[NewSequence] = (),
        updates: Sequence[RunningUpdate] = (),
        dropped_ids: Sequence[int] = (),
    ) -> StepOutput:
        """A step from its begin to its end."""
        step = self.begin(new, updates, dropped_ids)
        self.launch(step)
        return self.finish(step)

    def settle(self) -> None:
        """Finish the step in flight, if there is one. Raises what went wrong in it."""
        if self._in_flight is not None:
            self.finish(self._in_flight)

    @property
    def holds_requests(self) -> bool:
        """Whether any request runs."""
        return bool(self._held.sequences)

    @property
    def is_warm(self) -> bool:
        """Whether there is a pool, made by warm-up."""
        return self._max_total_len is not None

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has nothing to do."""
        return self._guides is None or not self._guides.has_quick

    def prepare(self) -> None:
        """Make, between two steps, the masks for the next one that take microseconds."""
        if self._guides is not None:
            self._guides.make_quick()

    def filter(self, request_ids: Collection[int]) -> tuple[int, ...]:
        """Keep the named requests and remove the others; returns what is left.

        Named requests that ended are passed over. Raises NoBatch, as `begin`.
        """
        if not self._held.has_begun:
            raise NoBatch("no batch is held here: nothing was prefilled since it was cleared")
        self.settle()
        self._held.drop([each for each in self._held.sequences if each not in request_ids])
        return tuple(self._held.sequences)

    def clear(self) -> None:
        """Remove all requests."""
        # Whatever went wrong in the step in flight has been answered, or nobody waits for it.
        with suppress(Exception):
            self.settle()
        self._held.clear()
        self._states.clear()

    def look_ahead(self, image: Image, span_ids: Sequence[int]) -> None:
        """Look at an image before a request brings it. On any thread, beside steps.

        Raises ImageRefused, and OutOfMemory.
        """
        if self._gallery is None:
            raise ImageRefused("images are not served here")
        try:
            self._gallery.sight(image, span_ids)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemory(f"there is no memory to look at an image: {error}") from error

    def read_adapter(self, adapter_id: int, folder: Path) -> ReadAdapter:
        """Read an adapter and make it ready. On any thread, beside steps.

        Raises AdapterRefused, and OutOfMemory where it does not fit or all places are taken.
        """
        self._adapters.require_room(adapter_id)
        return self._model.read_adapter(folder)

    def load_adapter(self, adapter_id: int, adapter: ReadAdapter) -> None:
        """Let sequences name it from here on. Raises as `read_adapter`."""
        self.settle()
        self._model.set_adapter(self._adapters.enter(adapter_id), adapter)

    def unload_adapter(self, adapter_id: int) -> None:
        """Free it; a sequence that still names it cannot be computed. Raises NoAdapter."""
        self.settle()
        self._model.set_adapter(self._adapters.leave(adapter_id), None)

    def unload_adapters(self) -> None:
        """Free all."""
        self.settle()
        for place in self._adapters.clear():
            self._model.set_adapter(place, None)

    def _begin_behind(
        self,
        before: StepInFlight,
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int],
    ) -> StepInFlight | None:
        """Launch a step's forward behind the one in flight, and finish that.

        None: that one has to end first. A call that breaks the contract is refused when the books
        are known.
        """
        assert self._ahead is not None
        try:
            chunks = self._chunks_behind(before, updates, dropped_ids)
        except InvalidStep:
            return None
        step = StepInFlight(chunks, None, time.perf_counter_ns(), is_behind=True)
        if not chunks or not step.is_plain or any(chunk.is_to_look for chunk in chunks):
            return None
        step.inputs = self._inputs(chunks)
        try:
            self._ahead.forward(step, before)
        except OutOfMemory:
            memory.release(self._model.device)
        finally:
            # Its results are its own, whatever became of this one.
            self.settle()
        step.chunks = [chunk.settled() for chunk in chunks if not chunk.sequence.has_ended]
        # With another token a row is late, and where it may not be the step begins anew.
        if step.logits is None or any(
            chunk.sequence.request_id in before.redrawn and not chunk.may_be_late
            for chunk in step.chunks
        ):
            return None
        step.late = before.redrawn
        for chunk in step.chunks:
            chunk.sequence.block_ids = chunk.block_ids
        self._held.drop(dropped_ids)
        self._ahead.begin(step)
        return step

    def _chunks_behind(
        self,
        before: StepInFlight,
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int],
    ) -> list[PlannedChunk]:
        """The chunks after those in flight, if nothing ends that need not. Raises InvalidStep."""
        changes = _by_request(updates)
        in_flight = {chunk.sequence.request_id: chunk for chunk in before.chunks}
        block_size = self._model.block_size
        chunks: list[PlannedChunk] = []
        for sequence in self._held.without(dropped_ids):
            request_id = sequence.request_id
            last = in_flight.get(request_id)
            is_late = request_id in before.late
            if last is None or is_late or not last.is_last:
                update = changes.get(request_id)
                chunk = PlannedChunk.of(
                    sequence, update, block_size, before=last, before_is_late=is_late
                )
                if chunk.chunk_len:
                    chunks.append(chunk)
        return chunks

    def _require_servable(self, new: Sequence[NewSequence]) -> None:
        """Raises InvalidStep for those that cannot be served; NoAdapter is one."""
        self._held.require_new([one.request_id for one in new])
        if new and self._max_total_len is None:
            raise InvalidStep("there is no KV pool yet: Warmup comes first")
        vocab_size = self._model.vocab_size
        for one in new:
            if one.adapter_id is not None:
                self._adapters.place_of(one.adapter_id)
            if one.constraint is not None and not self._takes_constraints:
                raise InvalidStep(f"request {one.request_id}: constraints are not served here")
            if one.images and self._gallery is None:
                raise InvalidStep(f"request {one.request_id}: images are not served here")
            total_len = one.prompt_len + one.stop.max_new_tokens
            if self._max_total_len is not None and total_len > self._max_total_len:
                raise InvalidStep(
                    f"request {one.request_id}: prompt_len {one.prompt_len} + max_new_tokens"
                    f" {one.stop.max_new_tokens} exceeds {self._max_total_len}"
                )
            if not 0 <= min(one.token_ids) <= max(one.token_ids) < vocab_size:
                raise InvalidStep(
                    f"request {one.request_id}: a token id is not in 0..{vocab_size - 1}"
                )

    def _images_of(self, new: NewSequence) -> SequenceImages | None:
        if not new.images or self._model.sight is None:
            return None
        return SequenceImages(new.images, new.token_ids, self._model.sight.is_turned)

    def _look(self, step: StepInFlight, gallery: Gallery) -> None:
        """Look at the images of which the step computes something. What cannot be seen, or does not
        fit, fails its request alone.
        """
        looking = [chunk for chunk in step.chunks if chunk.is_to_look]
        for chunk in looking:
            try:
                chunk.see(gallery)
            except Exception as error:
                is_exhausted = memory.is_exhausted(error)
                if is_exhausted and self._world.world_size > 1:
                    raise RanksDiverged(
                        f"rank {self._world.rank} has no memory to look at an image: {error}"
                    ) from error
                if not is_exhausted and not isinstance(error, ImageRefused):
                    raise
                step.chunks = [each for each in step.chunks if each is not chunk]
                step.failed += self._held.fail(chunk.sequence, f"its image is not seen: {error}")
        if looking:
            step.inputs = self._inputs(step.chunks) if step.chunks else None

    def _inputs(self, chunks: Sequence[PlannedChunk]) -> StepInputs:
        """The tensors of a step. Raises InvalidStep."""
        model = self._model
        decodes = [chunk for chunk in chunks if chunk.is_decode]
        if len(decodes) == len(chunks) >= model.min_step_tokens:
            starts = [chunk.start for chunk in decodes]
            num_blocks = max(starts) // model.block_size + 1
            return StepInputs.of_decodes(
                [chunk.sequence.token_ids[-1] for chunk in decodes],
                starts,
                self._tables.of([chunk.block_ids for chunk in decodes], num_blocks),
                model.block_size,
                model.device,
            )
        return StepInputs.build(
            [chunk.step(self._adapters) for chunk in chunks],
            block_size=model.block_size,
            scratch_block_id=model.scratch_block_id,
            device=model.device,
            min_tokens=model.min_step_tokens,
        )

    def _apply(self, step: StepInFlight) -> StepOutput:
        others, plain = self._held.apply(step)
        for chunk in step.chunks:
            states = chunk.sequence.states
            if states is not None and chunk.state is not None:
                self._states.end(states, chunk.state, chunk.start + chunk.chunk_len)
            if chunk.sequence.images is not None:
                chunk.sequence.images.forget(chunk.sequence.computed_len)
        # Of a step that was launched behind another one, what it took after that one.
        started_ns = max(step.started_ns, self._finished_ns)
        self._finished_ns = time.perf_counter_ns()
        return StepOutput(
            others=step.failed + others,
            request_ids=tuple(self._held.sequences),
            forward_ns=step.forward_ns,
            sample_ns=step.sample_ns,
            total_ns=self._finished_ns - started_ns,
            mask_ns=step.mask_ns,
            num_masked_rows=step.num_masked_rows,
            mask_wait_ns=step.mask_wait_ns,
            plain=plain,
        )


class HeldRequests:
    """The requests that a shard holds: sequences, sampler rows and guides come and go together.

    `sequences` by request id, in the order in which they came. `has_begun`: there were any since
    `clear`. Rank 0 has a sampler, and maybe guides. The runner is its only caller.
    """

    def __init__(
        self,
        sampler: Sampler | None,
        guides: MaskScheduler | None,
        eos_token_ids: Collection[int],
    ) -> None:
        self.sequences: dict[int, SequenceState] = {}
        self.has_begun = False
        self._sampler = sampler
        self._guides = guides
        self._eos_token_ids = eos_token_ids

    def without(self, dropped_ids: Sequence[int]) -> list[SequenceState]:
        """Those that stay."""
        if not dropped_ids:
            return list(self.sequences.values())
        dropped = frozenset(dropped_ids)
        return [each for each in self.sequences.values() if each.request_id not in dropped]

    def require_new(self, request_ids: Sequence[int]) -> None:
        """Raise InvalidStep when one of the requests is held already, or comes twice."""
        if len(set(request_ids)) != len(request_ids):
            raise InvalidStep(f"a request comes twice among {list(request_ids)}")
        for request_id in request_ids:
            if request_id in self.sequences:
                raise InvalidStep(f"request {request_id} is held already")

    def enter(self, new: Sequence[NewSequence], sequences: Sequence[SequenceState]) -> None:
        """Take new requests with their sampler rows and their guides: all of them, or none."""
        entered: list[int] = []
        try:
            for one in new:
                stop = one.stop
                if one.constraint is not None:
                    # Its guide ensures the minimum length: it may have to end.
                    stop = replace(stop, min_new_tokens=0)
                if self._sampler is not None:
                    self._sampler.add(
                        one.request_id,
                        one.sampling,
                        stop,
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
        self.sequences.update({each.request_id: each for each in sequences})
        self.has_begun = self.has_begun or bool(sequences)

    def drop(self, request_ids: Sequence[int]) -> None:
        """Remove those that are held."""
        held = [each for each in request_ids if each in self.sequences]
        if held:
            self._release(held)
            for request_id in held:
                del self.sequences[request_id]

    def clear(self) -> None:
        """Remove all."""
        self.drop(list(self.sequences))
        self.has_begun = False

    def _release(self, request_ids: Sequence[int]) -> None:
        """Remove the sampler rows and the guides of these."""
        for request_id in request_ids:
            if self._sampler is not None:
                self._sampler.remove(request_id)
            if self._guides is not None:
                self._guides.close(request_id)

    def apply(self, step: StepInFlight) -> tuple[tuple[Generation, ...], PlainTokens]:
        """Apply a step's results to the sequences; returns what they brought, on rank 0 alone."""
        for request_id, reason in step.errors.items():
            if request_id not in step.refused:
                _log_failure(request_id, reason)
        generations: list[Generation] = []
        plain = PlainTokens([], [], [])
        sampled = step.sampled
        is_quiet = not (step.errors or step.advances or step.behind or step.late or step.scores)
        ended: list[int] = []
        drawn = iter(step.drawn)
        row = 0
        for chunk in step.chunks:
            sequence = chunk.sequence
            samples = chunk.samples
            is_plain = samples and not (chunk.drafts or sequence.logprobs.prompt)
            if sampled is not None and is_quiet and is_plain:
                # Nearly every row: of one that goes on no object is made.
                next(drawn)
                token_id = sampled.token_ids[row]
                sequence.computed_len += chunk.chunk_len
                sequence.token_ids.append(token_id)
                sequence.is_decoding = True
                finish_reason = sequence.finish_reason(self._eos_token_ids)
                if finish_reason is None and not sampled.top_tokens[row]:
                    plain.request_ids.append(sequence.request_id)
                    plain.token_ids.append(token_id)
                    plain.logprobs.append(sampled.logprobs[row])
                else:
                    generations.append(_generation(step, chunk, row, finish_reason, ()))
                if finish_reason is not None:
                    sequence.has_ended = True
                    ended.append(sequence.request_id)
                row += 1
                continue
            scores = take_scores(chunk, step.scores) if sequence.logprobs.prompt else ()
            sequence.computed_len += chunk.chunk_len
            finish_reason = None
            if chunk.num_logits:
                answer = next(drawn)
                if answer.is_late:
                    sequence.retry_sample(scores)
                else:
                    finish_reason = self._finish_reason(sequence, samples, answer)
                    if chunk.drafts and answer.token_ids:
                        num_accepted = chunk.num_accepted(answer.token_ids)
                        sequence.take_drafts(len(chunk.drafts), num_accepted)
                if finish_reason is not None:
                    sequence.has_ended = True
                    ended.append(sequence.request_id)
            if self._sampler is not None and (samples or scores or finish_reason is not None):
                has_row = samples and sequence.request_id not in step.late
                generations.append(
                    _generation(step, chunk, row if has_row else None, finish_reason, scores)
                )
                row += has_row
        self.drop(ended)
        return tuple(generations), plain

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

    def fail(self, sequence: SequenceState, reason: str) -> tuple[Generation, ...]:
        """Remove one request; returns its answer, on rank 0 alone."""
        request_id = sequence.request_id
        sequence.has_ended = True
        _log_failure(request_id, reason)
        self.drop((request_id,))
        if self._sampler is None:
            return ()
        return (_failed(sequence, FinishReason.ERROR, reason, is_refused=False),)


def _by_request(updates: Sequence[RunningUpdate]) -> Mapping[int, RunningUpdate]:
    changes = {change.request_id: change for change in updates}
    if len(changes) != len(updates):
        raise InvalidStep("updates name a request twice")
    return changes


def _log_failure(request_id: int, reason: str) -> None:
    fields = {"shard_request_id": request_id}
    _log.error("shard_request_id=%d failed alone: %s", request_id, reason, extra=fields)


def _failed(
    sequence: SequenceState, finish_reason: FinishReason | None, error: str, *, is_refused: bool
) -> Generation:
    return Generation(
        sequence.request_id,
        (),
        finish_reason,
        error,
        constraint_satisfied=False if sequence.is_constrained else None,
        is_refused=is_refused,
    )


def _generation(
    step: StepInFlight,
    chunk: PlannedChunk,
    row: int | None,
    finish_reason: FinishReason | None,
    scores: Sequence[PromptScore],
) -> Generation:
    """The answer for one sequence on rank 0; `row` None: it was not sampled."""
    sequence = chunk.sequence
    request_id = sequence.request_id
    error = step.errors.get(request_id)
    if error is not None:
        return _failed(sequence, finish_reason, error, is_refused=request_id in step.refused)
    tokens: tuple[SampledToken, ...] = ()
    if step.sampled is not None and row is not None:
        tokens = (step.sampled.token(row), *step.behind.get(request_id, ()))
    advance = step.advances.get(request_id, _NO_ADVANCE)
    is_late = request_id in step.late
    if not scores and advance is _NO_ADVANCE and not chunk.drafts:
        return Generation(request_id, tokens, finish_reason, is_late=is_late)
    has_rivals = sequence.logprobs.num_top_tokens > 0
    return Generation(
        request_id,
        tokens,
        finish_reason,
        prompt_logprobs=tuple(score.logprob for score in scores),
        prompt_top_tokens=tuple(score.top_tokens for score in scores) if has_rivals else (),
        num_forced=step.num_forced.get(request_id, 0),
        constraint_satisfied=advance.is_satisfied,
        is_late=is_late,
        num_drafts=len(chunk.drafts) if tokens else 0,
        num_accepted=chunk.num_accepted([token.token_id for token in tokens]),
    )
