"""Rank 0's part of a step: forward, masks, sampling. Others take the tokens that it chose.

A step may be launched behind one whose results nobody has read:

    device:  | forward n | sample n | forward n + 1        | sample n + 1 | forward n + 2 ...
    host:      launch forward n + 1 | read n, make masks, launch sample n + 1 | answer n ...

Its forward takes the tokens of the step before on the device. Its sampling is launched once that
step's results are read, so masks and penalties know what came before; they are made while the
device computes. What turns out to have ended was computed for nobody, and a constrained row whose
token was drawn again samples a step later. A step with drafts is not launched behind another one.

Samples behind draft tokens, as long as these are what is sampled in their places.

    chunk:    | last token | draft 1 | draft 2 | draft 3 |
    sampled:     = draft 1   = draft 2   another            three tokens, two drafts accepted

Each position is sampled with the sampler's own state after the tokens before it, so penalties,
least lengths and the draws of a seed are those of a step for each token.

The device's half of a step: what comes of it, and the ranks that only take it.

It reads the plans of a step and changes no sequence. Rank 0's part is in `first_rank.py`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from model_server.engine import memory
from model_server.engine.distributed import FAILED, LATE, Drawn, World
from model_server.engine.sequences import (
    PlannedChunk,
    SequenceState,
    StepScores,
    failed_scores,
    score_prompts,
)
from model_server.errors import OutOfMemory, RanksDiverged
from model_server.executor.executor import PagedModel
from model_server.masking.guided_output import Advance
from model_server.masking.mask_scheduler import MaskScheduler, StepMasks
from model_server.sampling.choosing import PromptScore
from model_server.sampling.sampler import LaunchedSample, SampledRows, Sampler
from model_server.staging import PinnedStaging
from model_server.step import StepInputs
from proto.contract import FinishReason, Generation, SampledToken


def sample_behind_drafts(
    sampler: Sampler,
    drafts: Mapping[int, Sequence[int]],
    first_token_ids: Mapping[int, int],
    rows_of: Callable[[Sequence[int], int], Tensor],
) -> dict[int, tuple[SampledToken, ...]]:
    """By request, the tokens behind its accepted drafts: one for each of these.

    drafts, first_token_ids: of each request with drafts, and what it sampled before them
    rows_of: the logits behind the drafts of that number of these requests, from 1 on

    A request that fails there has sampled nothing: its draft is not accepted, and a later step that
    computes the token again says why.
    """
    behind: dict[int, tuple[SampledToken, ...]] = {}
    place = 0
    sampled: Mapping[int, int] = first_token_ids
    while True:
        going_on = [
            request_id
            for request_id, token_id in sampled.items()
            if place < len(drafts[request_id]) and drafts[request_id][place] == token_id
        ]
        if not going_on:
            return behind
        place += 1
        rows = sampler.sample(going_on, rows_of(going_on, place))
        sampled = {
            request_id: rows.token_ids[row]
            for row, request_id in enumerate(going_on)
            if row not in rows.errors
        }
        for row, request_id in enumerate(going_on):
            if row not in rows.errors:
                token = SampledToken(rows.token_ids[row], rows.logprobs[row], rows.top_tokens[row])
                behind[request_id] = (*behind.get(request_id, ()), token)


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """The results of a step, before they are applied. All but `drawn` and times is rank 0's alone.

    drawn:    one entry per chunk with logits. For a chunk that scored its prompt and sampled no
              token, it matters only if it failed.
    rows:     one row per chunk that sampled
    advances: the consequences for constraints, by request
    behind:   the tokens sampled behind accepted drafts, by request: one for each of these
    errors:   the reasons of failed requests, by request
    late:     requests that were to sample, and sample in a later step
    redrawn:  requests whose token is not the one that the step after this was launched with
    mask_wait_ns: the time that sampling waited for masks

    On CUDA the forward's kernels run on while it returns, and are waited for by sampling: the sum
    of the two times holds.
    """

    drawn: tuple[Drawn, ...] = ()
    rows: SampledRows | None = None
    masks: StepMasks | None = None
    advances: Mapping[int, Advance] = field(default_factory=dict)
    behind: Mapping[int, tuple[SampledToken, ...]] = field(default_factory=dict)
    scores: StepScores = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    late: frozenset[int] = frozenset()
    redrawn: frozenset[int] = frozenset()
    forward_ns: int = 0
    sample_ns: int = 0
    mask_wait_ns: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether nothing came of it but a token for each row that sampled."""
        return not (self.scores or self.errors or self.advances or self.behind or self.late)

    @property
    def refused(self) -> frozenset[int]:
        """Of `errors` those that are the request's own: see `StepMasks.refused`."""
        return frozenset() if self.masks is None else self.masks.refused

    def generation(
        self,
        sequence: SequenceState,
        row: int | None,
        finish_reason: FinishReason | None,
        scores: Sequence[PromptScore],
    ) -> Generation:
        """The answer for one sequence on rank 0; `row` None: it was not sampled."""
        request_id = sequence.request_id
        error = self.errors.get(request_id)
        if error is not None:
            return Generation(
                request_id,
                (),
                finish_reason,
                error,
                constraint_satisfied=False if sequence.is_constrained else None,
                is_refused=request_id in self.refused,
            )
        tokens: tuple[SampledToken, ...] = ()
        if self.rows is not None and row is not None:
            rows = self.rows
            chosen = (rows.token_ids[row], rows.logprobs[row], rows.top_tokens[row])
            tokens = (SampledToken(*chosen, rows.mask_effects.get(row)),)
            tokens += self.behind.get(request_id, ())
        advance = self.advances.get(request_id, _NO_ADVANCE)
        is_late = request_id in self.late
        if not scores and advance is _NO_ADVANCE:
            return Generation(request_id, tokens, finish_reason, is_late=is_late)
        has_rivals = sequence.logprobs.num_top_tokens > 0
        return Generation(
            request_id,
            tokens + tuple(SampledToken(token_id, 0.0) for token_id in advance.forced),
            finish_reason,
            prompt_logprobs=tuple(score.logprob for score in scores),
            prompt_top_tokens=tuple(score.top_tokens for score in scores) if has_rivals else (),
            num_forced=len(advance.forced),
            constraint_satisfied=advance.is_satisfied,
            is_late=is_late,
        )


_NO_ADVANCE = Advance()
NOTHING = Computed()

# Of a chunk that scored its prompt well and sampled nothing; nobody reads it.
_NO_TOKEN = Drawn((0,))


class Computation(Protocol):
    """Computes steps of chunks, in the order in which `inputs` has them.

    It calls `begun` when all is ready for the forward.

    Raises OutOfMemory when this rank is alone, and goes on. Where there are others, whatever goes
    wrong raises RanksDiverged: they wait in collectives that this rank will not enter.
    """

    def run(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> Computed: ...


class Follower:
    """A rank that computes its part of the forward, and takes the tokens that rank 0 chose."""

    def __init__(self, model: PagedModel, world: World) -> None:
        self._model = model
        self._world = world

    def run(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> Computed:
        """As `Computation`; without rows, scores and reasons."""
        num_answers = sum([chunk.num_logits > 0 for chunk in chunks])
        with translated_errors(self._world, inputs):
            begun()
            started_ns = time.perf_counter_ns()
            self._model.forward(inputs)
            forwarded_ns = time.perf_counter_ns()
            drawn = self._world.broadcast_drawn(None, num_answers) if num_answers else ()
        times_ns = forwarded_ns - started_ns, time.perf_counter_ns() - forwarded_ns
        return Computed(drawn, forward_ns=times_ns[0], sample_ns=times_ns[1])


@contextmanager
def translated_errors(world: World, inputs: StepInputs) -> Iterator[None]:
    """What goes wrong in a step, as `Computation` says."""
    try:
        yield
    except RanksDiverged:
        raise
    except Exception as error:
        if world.world_size > 1:
            raise RanksDiverged(
                f"rank {world.rank} failed in a step that the others are in:"
                f" {type(error).__name__}: {error}"
            ) from error
        if memory.is_exhausted(error):
            raise OutOfMemory(
                f"a step of {inputs.num_tokens} tokens does not fit: {error}"
            ) from error
        raise


def choose_tokens(answering: Sequence[PlannedChunk], computed: Computed) -> list[Drawn]:
    """The result of each chunk with logits."""
    token_ids = iter(() if computed.rows is None else computed.rows.token_ids)
    # For nearly every step; the same is said below of each chunk by itself.
    if computed.is_plain and all(chunk.samples for chunk in answering):
        return [Drawn((token_id,)) for token_id in token_ids]
    chosen = [_chosen(chunk, token_ids, computed.late) for chunk in answering]
    errors, advances, behind = computed.errors, computed.advances, computed.behind
    if errors or advances or behind:
        for place, chunk in enumerate(answering):
            request_id = chunk.sequence.request_id
            if request_id in errors:
                chosen[place] = FAILED
            elif request_id in advances:
                advance = advances[request_id]
                chosen[place] = Drawn(chosen[place].token_ids + advance.forced, advance.is_over)
            elif request_id in behind:
                more = tuple([token.token_id for token in behind[request_id]])
                chosen[place] = Drawn(chosen[place].token_ids + more)
    return chosen


def _chosen(chunk: PlannedChunk, token_ids: Iterator[int], late: frozenset[int]) -> Drawn:
    """The result of a chunk with logits: its token is the next of `token_ids`."""
    if chunk.sequence.request_id in late:
        return LATE
    return Drawn((next(token_ids),)) if chunk.samples else _NO_TOKEN


_NO_ADVANCES: Mapping[int, Advance] = {}


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedForward:
    """A forward whose rows are not sampled yet. `logits`: [num_logits, vocab_size], on the device.

    Row rows[request_id] is the last one of that request; behind it are those of its drafts.
    """

    inputs: StepInputs
    logits: Tensor
    rows: Mapping[int, int]
    forward_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedChunks:
    """Chunks that are computed. `sample` None: none of them samples; else it is of `sampling`."""

    chunks: Sequence[PlannedChunk]
    sampling: Sequence[int]
    sample: LaunchedSample | None
    masks: StepMasks | None
    late: frozenset[int]
    forward_ns: int
    sampling_since_ns: int
    mask_wait_ns: int

    @property
    def is_ready(self) -> bool:
        """Whether the results have come."""
        return self.sample is None or self.sample.is_ready


def can_launch(chunks: Sequence[PlannedChunk]) -> bool:
    """Whether a step of these chunks may be left unfinished: it scores no prompt."""
    return not any(
        chunk.sequence.logprobs.prompt or chunk.num_logits != chunk.samples for chunk in chunks
    )


class FirstRank:
    """Rank 0: masks, samples, and broadcasts the tokens. Without `guides` no row has a mask."""

    def __init__(
        self, model: PagedModel, sampler: Sampler, guides: MaskScheduler | None, world: World
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._guides = guides
        self._world = world
        self._staging = PinnedStaging(model.device)

    def run(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> Computed:
        """As `Computation`."""
        answering = [chunk for chunk in chunks if chunk.num_logits]
        with translated_errors(self._world, inputs):
            try:
                computed = self._compute(inputs, chunks, begun)
            except Exception as error:
                if answering:
                    self._abandon(len(answering), error)
                raise
            if not answering:
                return computed
            began_ns = time.perf_counter_ns()
            drawn = self._world.broadcast_drawn(choose_tokens(answering, computed), len(answering))
            sample_ns = computed.sample_ns + time.perf_counter_ns() - began_ns
            return replace(computed, drawn=drawn, sample_ns=sample_ns)

    def launch(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> LaunchedChunks:
        """Launch a step that stands behind none. Where this rank is alone. Raises OutOfMemory."""
        with translated_errors(self._world, inputs):
            self._begin_masks(chunks)
            begun()
            return self._sample(self._forward(inputs, chunks), chunks)

    def launch_forward(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], before: LaunchedChunks
    ) -> LaunchedForward:
        """Launch a forward behind a step in flight; what awaits a token takes it from there.

        Where this rank is alone. Raises OutOfMemory.
        """
        with translated_errors(self._world, inputs):
            self._hand_over(inputs, chunks, before)
            return self._forward(inputs, chunks)

    def launch_sampling(
        self,
        forward: LaunchedForward,
        chunks: Sequence[PlannedChunk],
        redrawn: frozenset[int],
        begun: Callable[[], None],
    ) -> LaunchedChunks:
        """Launch the sampling of a forward once the step before it is read.

        chunks:  those of the forward that still count, as they are now
        redrawn: of the step before; those of `chunks` are late

        Raises OutOfMemory.
        """
        with translated_errors(self._world, forward.inputs):
            self._begin_masks(chunks)
            begun()
            return self._sample(forward, chunks, redrawn)

    def collect(self, launched: LaunchedChunks) -> Computed:
        """Wait for what was launched; once."""
        computed = self._collect(launched)
        answering = [chunk for chunk in launched.chunks if chunk.num_logits]
        return replace(computed, drawn=tuple(choose_tokens(answering, computed)))

    def _compute(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> Computed:
        """All but what the ranks agree on."""
        self._begin_masks(chunks)
        begun()
        forward = self._forward(inputs, chunks)
        scores = score_prompts(forward.logits, chunks)
        launched = self._sample(forward, chunks)
        computed = self._collect(launched)
        behind = self._behind_drafts(forward, launched, computed)
        return replace(
            computed,
            scores=scores,
            errors={**failed_scores(scores), **computed.errors},
            behind=behind,
            sample_ns=time.perf_counter_ns() - launched.sampling_since_ns,
        )

    def _behind_drafts(
        self, forward: LaunchedForward, launched: LaunchedChunks, computed: Computed
    ) -> dict[int, tuple[SampledToken, ...]]:
        """What was sampled behind accepted drafts, by request."""
        drafts = {
            chunk.sequence.request_id: chunk.drafts for chunk in launched.chunks if chunk.drafts
        }
        if not drafts or computed.rows is None:
            return {}
        first = {
            request_id: token_id
            for request_id, token_id in zip(launched.sampling, computed.rows.token_ids, strict=True)
            if request_id in drafts and request_id not in computed.errors
        }
        return sample_behind_drafts(self._sampler, drafts, first, partial(self._rows_of, forward))

    def _abandon(self, num_rows: int, cause: Exception) -> None:
        try:
            self._world.abandon(num_rows)
        except RanksDiverged as error:
            raise RanksDiverged(f"{error}, after {type(cause).__name__}: {cause}") from cause

    def _begin_masks(self, chunks: Sequence[PlannedChunk]) -> None:
        if self._guides is not None:
            self._guides.begin([chunk.sequence.request_id for chunk in chunks if chunk.samples])

    def _forward(self, inputs: StepInputs, chunks: Sequence[PlannedChunk]) -> LaunchedForward:
        started_ns = time.perf_counter_ns()
        logits = self._model.forward(inputs)
        forward_ns = time.perf_counter_ns() - started_ns
        rows, end = dict[int, int](), 0
        for chunk in chunks:
            end += chunk.num_logits
            rows[chunk.sequence.request_id] = end - 1 - len(chunk.drafts)
        return LaunchedForward(inputs, logits, rows, forward_ns)

    def _sample(
        self,
        forward: LaunchedForward,
        chunks: Sequence[PlannedChunk],
        redrawn: frozenset[int] = frozenset(),
    ) -> LaunchedChunks:
        since_ns, guides = time.perf_counter_ns(), self._guides
        sampling = [chunk.sequence.request_id for chunk in chunks if chunk.samples]
        late = redrawn.intersection(sampling)
        sampling = [each for each in sampling if each not in late] if late else sampling
        masks: StepMasks | None = None
        if guides is not None:
            late |= guides.wait(sampling)
            sampling = [each for each in sampling if each not in late] if late else sampling
            masks = guides.join(sampling)
        sample = None
        if sampling:
            logits = self._rows_of(forward, sampling)
            sample = self._sampler.launch(sampling, logits, masks)
        return LaunchedChunks(
            chunks=chunks,
            sampling=sampling,
            sample=sample,
            masks=masks,
            late=late,
            forward_ns=forward.forward_ns,
            sampling_since_ns=since_ns,
            mask_wait_ns=0 if guides is None else guides.waited_ns,
        )

    def _rows_of(
        self, forward: LaunchedForward, request_ids: Sequence[int], num_drafts: int = 0
    ) -> Tensor:
        """These requests' logits behind so many drafts; between them lie rows of other use."""
        logits = forward.logits
        if len(request_ids) == len(logits):
            return logits
        rows = np.array([forward.rows[request_id] + num_drafts for request_id in request_ids])
        return logits.index_select(0, self._staging.to_device(rows))

    def _collect(self, launched: LaunchedChunks) -> Computed:
        """All but `drawn` and scores."""
        sampling, masks = launched.sampling, launched.masks
        rows = None if launched.sample is None else launched.sample.collect()
        errors: dict[int, str] = {}
        advances, redrawn = _NO_ADVANCES, frozenset[int]()
        if rows is not None:
            errors = {sampling[row]: reason for row, reason in rows.errors.items()}
            redrawn = frozenset(sampling[row] for row in rows.redrawn)
            if self._guides is not None and masks is not None:
                advances = self._advance(self._guides, sampling, rows, masks)
                errors |= masks.errors()
        return Computed(
            rows=rows,
            masks=masks,
            advances=advances,
            errors=errors,
            late=launched.late,
            redrawn=redrawn,
            forward_ns=launched.forward_ns,
            sample_ns=time.perf_counter_ns() - launched.sampling_since_ns,
            mask_wait_ns=launched.mask_wait_ns,
        )

    def _advance(
        self,
        guides: MaskScheduler,
        sampling: Sequence[int],
        rows: SampledRows,
        masks: StepMasks,
    ) -> Mapping[int, Advance]:
        """Advance the guides by the sampled tokens, and the sampler by the forced ones."""
        drawn = {
            sampling[place]: rows.token_ids[place]
            for place in masks.places.tolist()
            if place not in rows.errors
        }
        advances = guides.advance(masks, drawn)
        for request_id, advance in advances.items():
            if advance.forced:
                self._sampler.extend(request_id, advance.forced)
        return advances

    @torch.inference_mode()
    def _hand_over(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], before: LaunchedChunks
    ) -> None:
        """Write the tokens that the step before draws to the rows that await them."""
        awaiting = [index for index, chunk in enumerate(chunks) if chunk.awaits]
        if before.sample is None or not awaiting:
            return
        places = {request_id: place for place, request_id in enumerate(before.sampling)}
        ends = np.cumsum([chunk.chunk_len for chunk in chunks])
        sources = [places[chunks[index].sequence.request_id] for index in awaiting]
        rows, taken = self._staging.to_device_all(
            (ends[awaiting] - 1, np.array(sources, dtype=np.int64))
        )
        # A row that fails draws any number.
        tokens = before.sample.tokens.index_select(0, taken)
        inputs.token_ids.index_copy_(0, rows, tokens.clamp_(0, self._model.vocab_size - 1))
