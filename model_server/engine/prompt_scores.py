"""Log-probabilities of a prompt's tokens, across the chunks in which it is computed.

    chunk:    | start ............................ end |
    logits:   the row of token q scores token q + 1, so the last row scores the next chunk's first
    reported: the first token's score, kept from the chunk before, then those of the others

Before `prompt_from` nothing is scored, and no row of logits computed. The sequence's first chunk
has no score for its first token, also when tokens before it came from the prefix cache.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TypeAlias

from torch import Tensor

from model_server.engine.sequences import PlannedChunk, PromptScore
from model_server.sampling.sampler import Sampler

# By request, of the tokens that follow the chunk's rows.
StepScores: TypeAlias = Mapping[int, Sequence[PromptScore]]


def score_prompts(logits: Tensor, chunks: Sequence[PlannedChunk]) -> StepScores:
    """The prompt scores from a step's logits [num_logits, vocab_size]."""
    scores: dict[int, Sequence[PromptScore]] = {}
    start = 0
    for chunk in chunks:
        sequence = chunk.sequence
        if positions := sequence.scored(chunk.chunk_len):
            scored = Sampler.score_prompt(
                logits[start : start + len(positions)],
                sequence.token_ids[positions.start : positions.stop],
                sequence.logprobs.num_top_tokens,
            )
            scores[sequence.request_id] = [
                PromptScore(*pair) for pair in zip(scored.logprobs, scored.top_tokens, strict=True)
            ]
        start += chunk.num_logits
    return scores


def failed_scores(scores: StepScores) -> dict[int, str]:
    """The reasons why prompts cannot be scored, by request; those rows have failed."""
    return {
        request_id: "the model's logits over its prompt hold NaN or +inf"
        for request_id, found in scores.items()
        if any(isnan(score.logprob) for score in found)
    }


def take_scores(chunk: PlannedChunk, scores: StepScores) -> Sequence[PromptScore]:
    """The scores to report with this chunk; keeps the next chunk's first score with the sequence.

    To be called before the chunk counts as computed.
    """
    sequence = chunk.sequence
    if not sequence.logprobs.prompt:
        return ()
    known = [] if sequence.next_score is None else [sequence.next_score]
    known += scores.get(sequence.request_id, ())
    sequence.next_score = None
    if known and sequence.computed_len + chunk.chunk_len < sequence.prompt_len:
        sequence.next_score = known.pop()
    return known
