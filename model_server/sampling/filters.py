"""Top-k, top-p, min-p and typical sampling: the tokens that rows may draw from, with their weights.

No vocabulary is sorted as a whole. Rows are searched among so many candidates as their filters make
likely to suffice. Rows where that fails are `short`: their result means nothing, and they are asked
again with the whole vocabulary. It knows scores and filters, neither requests nor uniform numbers.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model_server.sampling.masses import exp_weights, mass_bits, whole_masses

# Tokens in a chunk: the unit in which wide rows are first reduced, then looked into.
CHUNK_LEN = 64

# Up to here torch.topk, which uses all threads, beats numpy's partition, which uses one.
_MAX_TOPK = 64


def in_chunks(rows: Tensor) -> Tensor:
    """[n, width] -> [n, width / CHUNK_LEN, CHUNK_LEN], a view."""
    return rows.view(rows.shape[0], -1, CHUNK_LEN)


def chunk_at(chunks: Tensor, indices: Tensor) -> Tensor:
    """The chunks of each row that `indices` [n, k] name: [n, k, CHUNK_LEN]."""
    return chunks.gather(1, indices.unsqueeze(-1).expand(-1, -1, CHUNK_LEN))


def largest(scores: Tensor, count: int) -> Tensor:
    """Indices of `count` largest elements of each row, in rising order: [n, count].

    Of equal elements at the boundary any may be taken. NaN counts as largest.
    """
    if scores.device.type == "cpu" and count > _MAX_TOPK:
        boundary = scores.shape[-1] - count
        return torch.from_numpy(
            np.sort(np.argpartition(scores.numpy(), boundary, axis=-1)[:, boundary:], axis=-1)
        )
    return scores.topk(count, sorted=False).indices.sort(-1).values


def descending(values: Tensor) -> Tensor:
    """Each row's values sorted, largest (NaN before all) first."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values


def ascending_order(values: Tensor) -> Tensor:
    """Indices that sort each row, smallest first; equal values in any order."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.argsort(values.numpy(), axis=-1))
    return values.argsort(dim=-1)


def _ordered_keys(scores: Tensor) -> Tensor:
    """Distinct int64 keys that order [n, k] by score, then by the earlier place in the row.

    Read as integers, floats of one sign are ordered as their values are; flipping the lower bits of
    the negative ones turns their order round. Adding zero makes -0.0 and 0.0 equal.
    """
    bits = (scores + 0.0).view(torch.int32)
    monotone = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    places = torch.arange(scores.shape[-1], 0, -1, device=scores.device)
    return (monotone.to(torch.int64) << 32) + places


def top_ids(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of each row, by score, then by index: [n, count].

    Chunks are ranked by their maximum, equal ones by place, so that the `count` best elements lie
    in the `count` best chunks; only those are looked into.
    """
    chunks = in_chunks(scores)
    num_chunks = min(count, chunks.shape[1])
    best = _ordered_keys(chunks.amax(-1)).topk(num_chunks).indices.sort(-1).values
    candidates = chunk_at(chunks, best).flatten(1)
    places = _ordered_keys(candidates).topk(count).indices
    return best.gather(1, places // CHUNK_LEN) * CHUNK_LEN + places % CHUNK_LEN


# More than any row is wide: all of the tokens at the cut stay.
_ALL_TIED = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """The filters of a group of rows. None: no row of the group has it."""

    top_k: Tensor | None = None  # [n] int64; 0: off
    # [n] float64, from `rows.nucleus_share`; 1: off
    nucleus: Tensor | None = None
    # A row has top-p and no top-k: its shares are those of the whole vocabulary.
    top_p_of_all: bool = False
    min_p: Tensor | None = None  # [n] float32; 0: off
    typical_p: Tensor | None = None  # [n] float64; 1: off

    @property
    def of_prefixes(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those that keep the most likely tokens, in the order in which they cut."""
        return self.top_k, self.nucleus, self.min_p


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Where the kept tokens of each row end."""

    score: Tensor  # [n, 1], the smallest that stays
    num_tied: Tensor | None  # [n, 1] int64, how many of that score stay; None: all
    # [n, 1], the smallest score that counted: what top-k leaves decides how top-p goes on.
    reach: Tensor


def cut_prefix(ordered: Tensor, filters: Filters, bits: int, total: Tensor | None) -> Cut:
    """The cut of top-k, top-p and min-p, in this order.

    ordered: [n, width] the row's largest scores after temperature, in falling order
    bits:    of masses
    total:   [n, 1] float64, the mass of the vocabulary; needed when a row has top-p and no top-k,
             so that nothing is cut before top-p

    Tokens equal to the k-th stay, as in TopKLogitsWarper.
    """
    kth, num_tied = torch.full_like(ordered[:, :1], -torch.inf), None
    if filters.top_k is not None:
        kth = _cut_top_k(ordered, filters.top_k.unsqueeze(-1))
    score = kth
    if filters.nucleus is not None or filters.min_p is not None:
        masses = whole_masses(exp_weights(ordered - ordered[:, :1]), bits)
        if filters.nucleus is not None:
            score, num_tied = _cut_top_p(ordered, masses, kth, filters, total)
        if filters.min_p is not None:
            least = filters.min_p.unsqueeze(-1) * 2.0**bits
            score, num_tied = _cut_min_p(ordered, masses, score, num_tied, least)
    return Cut(score, num_tied, reach=torch.where(kth > -torch.inf, kth, score))


def _cut_top_k(ordered: Tensor, top_k: Tensor) -> Tensor:
    """The score of the k-th token; -inf where top-k is off or asks for more than there are."""
    kth = ordered.gather(-1, (top_k - 1).clamp_(min=0, max=ordered.shape[-1] - 1))
    return kth.masked_fill_(top_k == 0, -torch.inf)


def _cut_top_p(
    ordered: Tensor, masses: Tensor, kth: Tensor, filters: Filters, total_of_all: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A token stays while those above it have less than the nucleus's share of the total.

    Of equal tokens at the end some go; TopPLogitsWarper leaves to its sort which, here the first.
    """
    assert filters.nucleus is not None
    nucleus = filters.nucleus.unsqueeze(-1)
    cumulative = masses.cumsum(-1, dtype=torch.float64)
    num_staying = torch.full_like(kth, ordered.shape[-1], dtype=torch.int64)
    total = cumulative[:, -1:]
    if filters.top_k is not None:
        num_staying = (ordered >= kth).sum(-1, keepdim=True).clamp_(min=1)
        total = cumulative.gather(-1, num_staying - 1)
    if total_of_all is not None:
        has_top_k = None if filters.top_k is None else filters.top_k.unsqueeze(-1) > 0
        total = total_of_all if has_top_k is None else torch.where(has_top_k, total, total_of_all)
    num_kept = torch.searchsorted(cumulative, total * nucleus) + 1
    num_kept = torch.minimum(num_kept, num_staying)
    last = ordered.gather(-1, num_kept - 1)
    num_tied = num_kept - (ordered > last).sum(-1, keepdim=True)
    off = nucleus >= 1.0
    return torch.where(off, kth, last), num_tied.masked_fill_(off, _ALL_TIED)


def _cut_min_p(
    ordered: Tensor, masses: Tensor, score: Tensor, num_tied: Tensor | None, least: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Tokens of at least min_p times the largest probability stay; `least` is min_p as a mass."""
    num_kept = (masses >= least).sum(-1, keepdim=True).clamp_(min=1)
    last = ordered.gather(-1, num_kept - 1)
    higher = (least > 0.0) & (last > score)
    if num_tied is not None:
        num_tied = num_tied.masked_fill(higher, _ALL_TIED)
    return torch.where(higher, last, score), num_tied


def keep_prefix(scores: Tensor, cut: Cut) -> Tensor:
    """Which tokens the cut leaves, [n, width] bool. scores: likewise, in order of token id.

    A cut of -inf leaves those of -inf too; their weight is 0 all the same.
    """
    kept = scores >= cut.score
    if cut.num_tied is not None:
        tied = scores == cut.score
        place = tied.cumsum(-1, dtype=torch.int32)
        kept &= ~tied.logical_and_(place <= place[:, -1:] - cut.num_tied)
    return kept


def keep_typical(kept: Tensor, log_weights: Tensor, typical_p: Tensor) -> Tensor:
    """Which of the kept tokens are typical among themselves, [n, width] bool.

    log_weights: [n, width], log-probabilities up to a constant of the row
    typical_p:   [n] float64
    """
    kept = kept & (log_weights > -torch.inf)
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
    total = token_ids = None
    bits = mass_bits(scores.shape[-1])
    if filters.top_p_of_all:
        scores = scores / temperature
        masses = whole_masses(exp_weights(scores - scores.amax(-1, keepdim=True)), bits)
        total = masses.sum(-1, keepdim=True, dtype=torch.float64)
    if num_candidates < scores.shape[-1]:
        token_ids = largest(scores, num_candidates)
        scores = scores.gather(-1, token_ids)
    scaled = scores if filters.top_p_of_all else scores / temperature
    ordered = descending(scaled)
    cut = cut_prefix(ordered, filters, bits, total)
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
