"""The device's half of a step: forward on every rank, sampling on rank 0, one choice for all.

It reads the plans of a step and changes no books; the sampler's rows are the sampler's.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model_server import memory
from model_server.distributed import World
from model_server.errors import OutOfMemory, RanksDiverged
from model_server.model import PagedModel
from model_server.prompt_scores import StepScores, failed_scores, score_prompts
from model_server.request import FinishReason, Generation, SampledToken
from model_server.sampling.sampler import SampledRows, Sampler
from model_server.sequences import PlannedChunk, PromptScore, SequenceState
from model_server.step import StepInputs


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What a step brought, before it is applied. All but the token ids and times is rank 0's alone.

    token_ids: one entry per chunk with logits; None: it failed. Means nothing where the chunk
               scored its prompt and sampled no token.
    rows:      one row per chunk that sampled
    errors:    why a request failed, by request

    On CUDA the forward's kernels run on while it returns, and are waited for by sampling: the sum
    of the two times holds.
    """

    token_ids: tuple[int | None, ...] = ()
    rows: SampledRows | None = None
    scores: StepScores = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    forward_ns: int = 0
    sample_ns: int = 0

    def generation(
        self,
        sequence: SequenceState,
        row: int | None,
        finish_reason: FinishReason | None,
        scores: Sequence[PromptScore],
    ) -> Generation:
        """The answer for one sequence on rank 0; `row` None: it was not sampled."""
        error = self.errors.get(sequence.request_id)
        if error is not None:
            return Generation(sequence.request_id, (), finish_reason, error)
        tokens: tuple[SampledToken, ...] = ()
        if self.rows is not None and row is not None:
            rows = self.rows
            tokens = (SampledToken(rows.token_ids[row], rows.logprobs[row], rows.top_tokens[row]),)
        if not scores:
            return Generation(sequence.request_id, tokens, finish_reason)
        has_rivals = sequence.logprobs.num_top_tokens > 0
        return Generation(
            sequence.request_id,
            tokens,
            finish_reason,
            prompt_logprobs=tuple(score.logprob for score in scores),
            prompt_top_tokens=tuple(score.top_tokens for score in scores) if has_rivals else (),
        )


NOTHING = Computed()

# Of a chunk that scored its prompt well and sampled nothing; nobody reads it.
_NO_TOKEN = 0


class Computation:
    """Computes steps. `sampler` is there on rank 0 alone."""

    def __init__(self, model: PagedModel, sampler: Sampler | None, world: World) -> None:
        self._model = model
        self._sampler = sampler
        self._world = world

    def run(self, inputs: StepInputs, chunks: Sequence[PlannedChunk]) -> Computed:
        """One step of these chunks, in the order in which `inputs` has them.

        Raises OutOfMemory when this rank is alone, and goes on. Where there are others, whatever
        goes wrong raises RanksDiverged: they wait in collectives that this rank will not enter.
        """
        try:
            return self._run(inputs, chunks)
        except RanksDiverged:
            raise
        except Exception as error:
            if self._world.world_size > 1:
                raise RanksDiverged(
                    f"rank {self._world.rank} failed in a step that the others are in:"
                    f" {type(error).__name__}: {error}"
                ) from error
            if memory.is_exhausted(error):
                raise OutOfMemory(
                    f"a step of {inputs.num_tokens} tokens does not fit: {error}"
                ) from error
            raise

    def _run(self, inputs: StepInputs, chunks: Sequence[PlannedChunk]) -> Computed:
        started_ns = time.perf_counter_ns()
        answering = [chunk for chunk in chunks if chunk.num_logits]
        rows: SampledRows | None = None
        scores: StepScores = {}
        try:
            logits = self._model.forward(inputs)
            forward_end_ns = time.perf_counter_ns()
            if self._sampler is not None:
                scores = score_prompts(logits, chunks)
                rows = self._sample(self._sampler, logits, chunks)
        except Exception as error:
            if self._world.is_first and answering:
                self._abandon(len(answering), error)
            raise
        errors = _errors(answering, rows, scores)
        token_ids = self._agree(answering, rows, errors)
        end_ns = time.perf_counter_ns()
        return Computed(
            token_ids, rows, scores, errors, forward_end_ns - started_ns, end_ns - forward_end_ns
        )

    def _abandon(self, num_rows: int, cause: Exception) -> None:
        try:
            self._world.abandon(num_rows)
        except RanksDiverged as error:
            raise RanksDiverged(f"{error}, after {type(cause).__name__}: {cause}") from cause

    def _sample(
        self, sampler: Sampler, logits: Tensor, chunks: Sequence[PlannedChunk]
    ) -> SampledRows | None:
        sampling = [chunk for chunk in chunks if chunk.samples]
        if not sampling:
            return None
        if len(sampling) != len(logits):
            # Rows that score a prompt lie between those that sample, each its sequence's last.
            ends = torch.tensor([chunk.num_logits for chunk in chunks]).cumsum(0) - 1
            is_sampling = torch.tensor([chunk.samples for chunk in chunks])
            logits = logits[ends[is_sampling].to(logits.device)]
        return sampler.sample([chunk.sequence.request_id for chunk in sampling], logits)

    def _agree(
        self,
        answering: Sequence[PlannedChunk],
        rows: SampledRows | None,
        errors: Mapping[int, str],
    ) -> tuple[int | None, ...]:
        """The same token of each chunk with logits on every rank; None for one that failed."""
        if not answering:
            return ()
        chosen: list[int | None] | None = None
        if self._sampler is not None:
            drawn = iter(() if rows is None else rows.token_ids)
            chosen = [next(drawn) if chunk.samples else _NO_TOKEN for chunk in answering]
            if errors:
                for place, chunk in enumerate(answering):
                    if chunk.sequence.request_id in errors:
                        chosen[place] = None
        return self._world.broadcast_tokens(chosen, len(answering))


def _errors(
    answering: Sequence[PlannedChunk], rows: SampledRows | None, scores: StepScores
) -> dict[int, str]:
    errors = failed_scores(scores)
    if rows is not None and rows.errors:
        request_ids = [chunk.sequence.request_id for chunk in answering if chunk.samples]
        errors |= {request_ids[row]: reason for row, reason in rows.errors.items()}
    return errors
