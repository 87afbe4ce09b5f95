"""The device's half of a step: forward on every rank, sampling on rank 0, one choice for all.

It reads the plans of a step and changes no sequence.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

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
from model_server.engine.step import StepInputs
from model_server.errors import OutOfMemory, RanksDiverged
from model_server.masking.guided_output import Advance
from model_server.masking.mask_scheduler import MaskScheduler, StepMasks
from model_server.model.model import PagedModel
from model_server.sampling.choosing import PromptScore
from model_server.sampling.sampled_rows import SampledRows
from model_server.sampling.sampler import Sampler
from proto.contract import FinishReason, Generation, SampledToken


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """The results of a step, before they are applied. All but `drawn` and times is rank 0's alone.

    drawn:    one entry per chunk with logits. For a chunk that scored its prompt and sampled no
              token, it matters only if it failed.
    rows:     one row per chunk that sampled
    advances: the consequences for constraints, by request
    errors:   the reasons of failed requests, by request
    late:     requests that were to sample, and sample in a later step
    mask_wait_ns: the time that sampling waited for masks

    On CUDA the forward's kernels run on while it returns, and are waited for by sampling: the sum
    of the two times holds.
    """

    drawn: tuple[Drawn, ...] = ()
    rows: SampledRows | None = None
    masks: StepMasks | None = None
    advances: Mapping[int, Advance] = field(default_factory=dict)
    scores: StepScores = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    late: frozenset[int] = frozenset()
    forward_ns: int = 0
    sample_ns: int = 0
    mask_wait_ns: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether nothing but tokens came of it: no scores, errors, forced tokens or late rows."""
        return not (self.scores or self.errors or self.advances or self.late)

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
            tokens = (SampledToken(rows.token_ids[row], rows.logprobs[row], rows.top_tokens[row]),)
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


class FirstRank:
    """Rank 0: masks, samples, and broadcasts the tokens. Without `guides` no row has a mask."""

    def __init__(
        self, model: PagedModel, sampler: Sampler, guides: MaskScheduler | None, world: World
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._guides = guides
        self._world = world

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

    def _compute(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> Computed:
        """All but what the ranks agree on."""
        guides = self._guides
        sampling = [chunk.sequence.request_id for chunk in chunks if chunk.samples]
        if guides is not None:
            guides.begin(sampling)
        begun()
        started_ns = time.perf_counter_ns()
        logits = self._model.forward(inputs)
        forwarded_ns = time.perf_counter_ns()
        scores = score_prompts(logits, chunks)
        errors = failed_scores(scores)
        late: frozenset[int] = frozenset()
        masks: StepMasks | None = None
        advances: Mapping[int, Advance] = {}
        if guides is not None:
            late = guides.wait(sampling)
            sampling = [each for each in sampling if each not in late] if late else sampling
            masks = guides.join(sampling)
        rows = self._sample(logits, chunks, sampling, masks)
        if rows is not None and rows.errors:
            errors |= {sampling[row]: reason for row, reason in rows.errors.items()}
        if guides is not None and rows is not None and masks is not None:
            advances = self._advance(guides, sampling, rows, masks)
            errors |= masks.errors()
        return Computed(
            rows=rows,
            masks=masks,
            advances=advances,
            scores=scores,
            errors=errors,
            late=late,
            forward_ns=forwarded_ns - started_ns,
            sample_ns=time.perf_counter_ns() - forwarded_ns,
            mask_wait_ns=0 if guides is None else guides.waited_ns,
        )

    def _abandon(self, num_rows: int, cause: Exception) -> None:
        try:
            self._world.abandon(num_rows)
        except RanksDiverged as error:
            raise RanksDiverged(f"{error}, after {type(cause).__name__}: {cause}") from cause

    def _sample(
        self,
        logits: Tensor,
        chunks: Sequence[PlannedChunk],
        sampling: Sequence[int],
        masks: StepMasks | None,
    ) -> SampledRows | None:
        if not sampling:
            return None
        if len(sampling) != len(logits):
            # Rows that score a prompt, or are late, lie between those that sample, each its
            # sequence's last.
            ends = torch.tensor([chunk.num_logits for chunk in chunks]).cumsum(0) - 1
            sampled = frozenset(sampling)
            is_sampling = [chunk.sequence.request_id in sampled for chunk in chunks]
            logits = logits[ends[torch.tensor(is_sampling)].to(logits.device)]
        return self._sampler.sample(sampling, logits, masks)

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
    errors, advances = computed.errors, computed.advances
    if errors or advances:
        for place, chunk in enumerate(answering):
            request_id = chunk.sequence.request_id
            if request_id in errors:
                chosen[place] = FAILED
            elif request_id in advances:
                advance = advances[request_id]
                chosen[place] = Drawn(chosen[place].token_ids + advance.forced, advance.is_over)
    return chosen


def _chosen(chunk: PlannedChunk, token_ids: Iterator[int], late: frozenset[int]) -> Drawn:
    """The result of a chunk with logits: its token is the next of `token_ids`."""
    if chunk.sequence.request_id in late:
        return LATE
    return Drawn((next(token_ids),)) if chunk.samples else _NO_TOKEN
