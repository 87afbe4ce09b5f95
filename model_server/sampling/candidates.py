"""The tokens that a group of rows may draw from, with their weights, found without a full sort.

Rows are searched among so many candidates as their filters make likely to suffice. Rows where that
fails are `short`: their result means nothing, and they are asked again with the whole vocabulary.
It knows scores and filters, neither requests nor uniform numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model_server.sampling.filters import (
    Filters,
    cut_prefix,
    descending,
    in_chunks,
    keep_prefix,
    keep_typical,
    largest,
    typical_bound,
)

_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The tokens of each row that its filters keep, in the order of token ids."""

    token_ids: Tensor | None  # [n, width] rising; None: the whole vocabulary
    log_weights: Tensor  # [n, width] float32, log-probabilities up to a constant of the row, <= 0
    kept: Tensor  # [n, width] bool
    short: Tensor  # [n] bool


def prefix_candidates(
    scores: Tensor, temperature: Tensor, filters: Filters, num_candidates: int
) -> Candidates:
    """Candidates of rows that have at least one of top-k, top-p and min-p.

    scores: [n, width], before temperature [n, 1]. num_candidates >= width: the whole vocabulary.

    Candidates may be chosen before temperature is applied, for it does not change their order; two
    scores that it makes equal are caught as ties at the cut are.
    """
    normaliser = token_ids = None
    if filters.top_p_of_all:
        scores = scores / temperature
        normaliser = 1.0 / torch.softmax(scores, -1).amax(-1, keepdim=True).double()
    if num_candidates < scores.shape[-1]:
        token_ids = largest(scores, num_candidates)
        scores = scores.gather(-1, token_ids)
    scaled = scores if filters.top_p_of_all else scores / temperature
    ordered = descending(scaled)
    cut = cut_prefix(ordered, filters, normaliser)
    kept = keep_prefix(scaled, cut)
    log_weights = scaled - ordered[:, :1]
    if filters.typical_p is not None:
        kept = keep_typical(kept, log_weights, filters.typical_p)
    smallest = ordered[:, -1:]
    short = (cut.reach <= smallest) & (smallest > -torch.inf)
    return Candidates(token_ids, log_weights, kept, _unless_all(short, token_ids))


def typical_candidates(
    scores: Tensor, temperature: Tensor, typical_p: Tensor, num_candidates: int
) -> Candidates:
    """Candidates of rows that have typical decoding alone: the tokens of the smallest surprise.

    Arguments as for `prefix_candidates`; typical_p: [n] float64.
    """
    scaled = scores / temperature
    probabilities = torch.softmax(scaled, -1)
    largest_share = probabilities.amax(-1, keepdim=True)
    log_probabilities = (scaled - scaled.amax(-1, keepdim=True)) + largest_share.log()
    # By chunks first: torch adds up a whole row in another order when it is alone.
    information = in_chunks(probabilities * log_probabilities.clamp(min=_LOWEST))
    entropy = -information.sum(-1).sum(-1, keepdim=True)
    surprise = (entropy + log_probabilities).abs()
    token_ids = None
    if num_candidates < scores.shape[-1]:
        token_ids = largest(-surprise, num_candidates)
        surprise = surprise.gather(-1, token_ids)
        probabilities = probabilities.gather(-1, token_ids)
        log_probabilities = log_probabilities.gather(-1, token_ids)
    bound = typical_bound(surprise, probabilities, typical_p)
    kept = (surprise <= bound) & (surprise < torch.inf)
    largest_surprise = surprise.amax(-1, keepdim=True)
    short = (bound >= largest_surprise) & (largest_surprise < torch.inf)
    return Candidates(token_ids, log_probabilities, kept, _unless_all(short, token_ids))


def _unless_all(short: Tensor, token_ids: Tensor | None) -> Tensor:
    """The whole vocabulary is never short."""
    return (torch.zeros_like(short) if token_ids is None else short).squeeze(-1)
