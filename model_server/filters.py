"""Which tokens sampling may choose: top-k, top-p, min-p, typical decoding, as in transformers.

It knows scores after temperature, row by row, and no request. The first three keep a prefix of the
tokens in falling order, so all that they decide is a *cut*: the smallest score that stays. A cut
found among the largest candidates of a row is the row's own, provided that it lies above the
smallest of them: then no token outside can reach it, and no equal one was missed.

    scores in falling order:  9 8 8 7 | 5 5 5 | 4 ...
                              kept    | cut   |     top-p may keep some of the equal ones at the cut

Sums are running sums in float64, which zeros in between do not change: the cut is the same, to the
bit, for any number of candidates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model_server.ranking import ascending_order

# More than any row is wide: all of the tokens at the cut stay.
_ALL_TIED = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """The filters of a group of rows. None: no row of the group has it."""

    top_k: Tensor | None = None  # [n] int64; 0: off
    top_p: Tensor | None = None  # [n] float64; 1: off
    # A row has top-p and no top-k: its shares are those of the whole vocabulary.
    top_p_of_all: bool = False
    min_p: Tensor | None = None  # [n] float32; 0: off
    typical_p: Tensor | None = None  # [n] float64; 1: off


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Where the kept tokens of each row end."""

    score: Tensor  # [n, 1], the smallest that stays
    num_tied: Tensor | None  # [n, 1] int64, how many of that score stay; None: all
    # [n, 1], the smallest score that counted: what top-k leaves decides how top-p goes on.
    reach: Tensor


def cut_prefix(ordered: Tensor, filters: Filters, normaliser: Tensor | None) -> Cut:
    """The cut of top-k, top-p and min-p, in this order.

    ordered:    [n, width] the row's largest scores after temperature, in falling order
    normaliser: [n] float64, sum of exp(score - largest score) over the vocabulary; needed when a
                row has top-p and no top-k, so that nothing is cut before top-p

    Tokens equal to the k-th stay, as in TopKLogitsWarper.
    """
    kth, num_tied = torch.full_like(ordered[:, :1], -torch.inf), None
    if filters.top_k is not None:
        kth = _cut_top_k(ordered, filters.top_k.unsqueeze(-1))
    score = kth
    if filters.top_p is not None:
        score, num_tied = _cut_top_p(ordered, kth, filters, normaliser)
    if filters.min_p is not None:
        score, num_tied = _cut_min_p(ordered, score, num_tied, filters.min_p.unsqueeze(-1))
    return Cut(score, num_tied, reach=torch.where(kth > -torch.inf, kth, score))


def _cut_top_k(ordered: Tensor, top_k: Tensor) -> Tensor:
    """The score of the k-th token; -inf where top-k is off or asks for more than there are."""
    kth = ordered.gather(-1, (top_k - 1).clamp(min=0, max=ordered.shape[-1] - 1))
    return kth.masked_fill(top_k == 0, -torch.inf)


def _cut_top_p(
    ordered: Tensor, kth: Tensor, filters: Filters, normaliser: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A token stays unless it and those below have no more than 1 - top_p together.

    TopPLogitsWarper compares in float32, and so does this: a sum that should meet the bound then
    does. Of equal tokens at the end it drops some; which ones is left to its sort, here the first.
    """
    assert filters.top_p is not None
    top_p = filters.top_p.unsqueeze(-1)
    staying = ordered >= kth
    weights = (ordered - ordered[:, :1]).exp().double() * staying
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    if normaliser is not None:
        whole = normaliser.unsqueeze(-1)
        has_top_k = None if filters.top_k is None else filters.top_k.unsqueeze(-1) > 0
        total = whole if has_top_k is None else torch.where(has_top_k, total, whole)
    from_here_down = 1.0 - (cumulative - weights) / total
    dropped = from_here_down.float() <= (1.0 - top_p).float()
    num_kept = (staying & ~dropped).sum(-1, keepdim=True).clamp(min=1)
    last = ordered.gather(-1, num_kept - 1)
    num_tied = num_kept - (ordered > last).sum(-1, keepdim=True)
    off = top_p >= 1.0
    return torch.where(off, kth, last), num_tied.masked_fill(off, _ALL_TIED)


def _cut_min_p(
    ordered: Tensor, score: Tensor, num_tied: Tensor | None, min_p: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Tokens of at least min_p times the largest probability stay."""
    num_kept = ((ordered - ordered[:, :1]).exp() >= min_p).sum(-1, keepdim=True).clamp(min=1)
    last = ordered.gather(-1, num_kept - 1)
    higher = (min_p > 0.0) & (last > score)
    if num_tied is not None:
        num_tied = num_tied.masked_fill(higher, _ALL_TIED)
    return torch.where(higher, last, score), num_tied


def keep_prefix(scores: Tensor, cut: Cut) -> Tensor:
    """Which tokens the cut leaves, [n, width] bool. scores: likewise, in order of token id."""
    kept = (scores >= cut.score) & (scores > -torch.inf)
    if cut.num_tied is not None:
        tied = scores == cut.score
        place = tied.cumsum(-1)
        kept &= ~tied | (place > place[:, -1:] - cut.num_tied)
    return kept


def keep_typical(kept: Tensor, log_weights: Tensor, typical_p: Tensor) -> Tensor:
    """Which of the kept tokens are typical among themselves, [n, width] bool.

    log_weights: [n, width], log-probabilities up to a constant of the row
    typical_p:   [n] float64
    """
    weights = log_weights.double().exp() * kept
    total = weights.cumsum(-1)[:, -1:]
    probabilities = weights / total
    log_probabilities = (log_weights.double() - total.log()).masked_fill(~kept, 0.0)
    entropy = -(probabilities * log_probabilities).cumsum(-1)[:, -1:]
    surprise = (entropy + log_probabilities).abs().float().masked_fill(~kept, torch.inf)
    bound = typical_bound(surprise, probabilities, typical_p)
    return kept & ((surprise <= bound) | (typical_p.unsqueeze(-1) >= 1.0))


def typical_bound(surprise: Tensor, probabilities: Tensor, typical_p: Tensor) -> Tensor:
    """The largest surprise that stays, [n, 1]: that of the token which completes the mass.

    surprise: [n, width], how far a token's information lies from the entropy; tokens of equal
    surprise stay together, as in TypicalLogitsWarper. Without a token that completes the mass it is
    the largest surprise of the row.

    Source: Meister, Pimentel, Wiher, Cotterell, "Locally typical sampling", TACL 2023.
    """
    order = ascending_order(surprise)
    mass = probabilities.gather(-1, order).cumsum(-1, dtype=torch.float64).float()
    num_below = (mass < typical_p.float().unsqueeze(-1)).sum(-1, keepdim=True)
    last = order.gather(-1, num_below.clamp(max=surprise.shape[-1] - 1))
    return surprise.gather(-1, last)
