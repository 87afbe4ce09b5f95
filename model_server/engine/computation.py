"""The device's half of a step: what comes of it, and the ranks that only take it.

It reads the plans of a step and changes no sequence. Rank 0's part is in `first_rank.py`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from model_server.engine import memory
from model_server.engine.distributed import FAILED, LATE, Drawn, World
from model_server.engine.sequences import (
    PlannedChunk,
    SequenceState,
    StepScores,
)
from model_server.engine.step import StepInputs
from model_server.errors import OutOfMemory, RanksDiverged
from model_server.masking.guided_output import Advance
from model_server.masking.mask_scheduler import StepMasks
from model_server.model.paged_model import PagedModel
from model_server.sampling.choosing import PromptScore
from model_server.sampling.sampled_rows import SampledRows
from proto.contract import FinishReason, Generation, SampledToken


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
