"""The device's half of a step: forward on every rank, sampling on rank 0, one choice for all.

It reads the plans of a step and changes no books; the sampler's rows are the sampler's.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model_server.distributed import World
from model_server.errors import OutOfMemory
from model_server.model import PagedModel
from model_server.prompt_scores import StepScores, score_prompts
from model_server.request import FinishReason, Generation, SampledToken
from model_server.sampling.sampler import SampledRows, Sampler
from model_server.sequences import PlannedChunk, PromptScore, SequenceState
from model_server.step import StepInputs


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What a step brought, before it is applied. `rows` and `scores` are rank 0's alone.

    `token_ids` has one entry per sampled row; None is a row that failed. On CUDA the forward's
    kernels run on while it returns, and are waited for by sampling: the sum of the two times holds.
    """

    token_ids: tuple[int | None, ...] = ()
    rows: SampledRows | None = None
    scores: StepScores = field(default_factory=dict)
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
        tokens: tuple[SampledToken, ...] = ()
        error = None
        if self.rows is not None and row is not None:
            error = self.rows.errors.get(row)
            if error is None:
                rows = self.rows
                tokens = (
                    SampledToken(rows.token_ids[row], rows.logprobs[row], rows.top_tokens[row]),
                )
        if not scores:
            return Generation(sequence.request_id, tokens, finish_reason, error)
        has_rivals = sequence.logprobs.num_top_tokens > 0
        return Generation(
            sequence.request_id,
            tokens,
            finish_reason,
            error,
            prompt_logprobs=tuple(score.logprob for score in scores),
            prompt_top_tokens=tuple(score.top_tokens for score in scores) if has_rivals else (),
        )


NOTHING = Computed()


class Computation:
    """Computes steps. `sampler` is there on rank 0 alone."""

    def __init__(self, model: PagedModel, sampler: Sampler | None, world: World) -> None:
        self._model = model
        self._sampler = sampler
        self._world = world

    def run(self, inputs: StepInputs, chunks: Sequence[PlannedChunk]) -> Computed:
        """One step of these chunks, in the order in which `inputs` has them.

        Raises OutOfMemory, RanksDiverged.
        """
        started_ns = time.perf_counter_ns()
        logits = self._forward(inputs)
        forward_end_ns = time.perf_counter_ns()
        sampling = [chunk for chunk in chunks if chunk.samples]
        rows: SampledRows | None = None
        scores: StepScores = {}
        if self._sampler is not None:
            try:
                scores = score_prompts(logits, chunks)
                rows = self._sample(self._sampler, logits, chunks, sampling)
            except BaseException:
                if sampling:
                    self._world.abandon(len(sampling))
                raise
        token_ids = self._agree(rows, len(sampling))
        end_ns = time.perf_counter_ns()
        return Computed(
            token_ids, rows, scores, forward_end_ns - started_ns, end_ns - forward_end_ns
        )

    def _forward(self, inputs: StepInputs) -> Tensor:
        try:
            return self._model.forward(inputs)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(f"a step of {inputs.num_tokens} tokens does not fit") from error

    def _sample(
        self,
        sampler: Sampler,
        logits: Tensor,
        chunks: Sequence[PlannedChunk],
        sampling: Sequence[PlannedChunk],
    ) -> SampledRows | None:
        if not sampling:
            return None
        if len(sampling) != len(logits):
            # Rows that score a prompt lie between those that sample, each its sequence's last.
            ends = torch.tensor([chunk.num_logits for chunk in chunks]).cumsum(0) - 1
            is_sampling = torch.tensor([chunk.samples for chunk in chunks])
            logits = logits[ends[is_sampling].to(logits.device)]
        return sampler.sample([chunk.sequence.request_id for chunk in sampling], logits)

    def _agree(self, rows: SampledRows | None, num_rows: int) -> tuple[int | None, ...]:
        """The same token of each sampled row on every rank; None for a row that failed."""
        if num_rows == 0:
            return ()
        chosen: tuple[int | None, ...] | None = None
        if rows is not None:
            chosen = rows.token_ids
            if rows.errors:
                chosen = tuple(
                    None if row in rows.errors else token_id
                    for row, token_id in enumerate(rows.token_ids)
                )
        return self._world.broadcast_tokens(chosen, num_rows)
