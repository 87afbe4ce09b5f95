"""Log-probabilities to report: of the sampled tokens, and of the most likely ones.

It knows logits, not how a token was chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from model_server.sampling.filters import CHUNK_LEN, top_ids
from proto.contract import TopToken

# Prompt rows scored at once: 64 rows of 128 000 tokens are 33 MB in float32.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Those of the scored tokens, in order. NaN where the model's logits hold NaN or +inf."""

    logprobs: tuple[float, ...]
    top_tokens: tuple[tuple[TopToken, ...], ...]  # one empty tuple a token if none were asked for


def padded_width(vocab_size: int) -> int:
    """Columns of a row of scores: the vocabulary, rounded up to whole chunks."""
    return -(-vocab_size // CHUNK_LEN) * CHUNK_LEN


def pad_rows(rows: Tensor) -> Tensor:
    """[n, vocab_size] with -inf up to whole chunks."""
    missing = padded_width(rows.shape[-1]) - rows.shape[-1]
    return functional.pad(rows, (0, missing), value=-torch.inf) if missing else rows


def top_logprobs(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities of the `count` best of each row, by logprob, then by id.

    logprobs: [n, width], width a multiple of CHUNK_LEN, -inf beyond the vocabulary. Filtered
    tokens have -inf too, and come last when fewer than `count` were left. Both [n, count].
    """
    ids = top_ids(logprobs, count)
    return ids, logprobs.gather(-1, ids)


def score_tokens(logits: Tensor, token_ids: Sequence[int], num_top_tokens: int = 0) -> PromptScores:
    """Log-probability of token_ids[i] in row i of the model's logits, [num_tokens, vocab_size].

    num_top_tokens: alternatives to report beside each token, at most the vocabulary.
    """
    logprobs: list[float] = []
    tops: list[tuple[TopToken, ...]] = []
    count = min(num_top_tokens, logits.shape[-1])
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        rows = logits[start : start + _ROWS_AT_ONCE]
        tokens = torch.tensor(token_ids[start : start + _ROWS_AT_ONCE], device=logits.device)
        scored = torch.log_softmax(rows, -1, dtype=torch.float32)
        logprobs += scored.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).tolist()
        if count == 0:
            tops += [()] * len(tokens)
            continue
        ids, values = top_logprobs(pad_rows(scored), count)
        tops += [
            tuple(map(TopToken, *row)) for row in zip(ids.tolist(), values.tolist(), strict=True)
        ]
    return PromptScores(tuple(logprobs), tuple(tops))
