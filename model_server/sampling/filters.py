"""The tokens that rows may draw from, by top-k, top-p, min-p and typical decoding, and the draw.

    score -> weight = e^(score - largest score), of additions and multiplications alone
          -> mass   = the weight in units of 2**-bits, rounded
          -> token  = the first whose cumulative mass exceeds the target

    masses:      | 3 | 0 | 5 | 1 |      total 9
    cumulative:    3   3   8   9        target = floor(uniform * total) in 0..8

Masses are whole numbers whose sums are exact in any order. So a token is the same on any device,
for any width of the row, beside any rows and on any number of threads; one of mass 0 is never
drawn. `native/sample.cpp` and `sampling/triton.py` make the same masses: change all or none.

No vocabulary is sorted as a whole. Rows are searched among so many candidates as their filters make
likely to suffice. Rows where that fails are `short`: their result means nothing, and they are asked
again with the whole vocabulary.

Uniform numbers depend on (seed, position) alone, by Philox 4x32-10, a counter-based generator that
keeps no state: a token's draw is the same alone, in a batch, after a preemption and after a
restart. They are made by numpy on the host, where seeds and positions are known before the logits.
(Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.)

It knows scores and filters, no requests.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Doubles hold whole numbers exactly up to here.
EXACT_BITS = 53


LOWEST = -87.3  # below it the result would be subnormal, and is 0


ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the integer in the low bits


# Of Cephes' expf.
COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def mass_bits(width: int) -> int:
    """The bits of a mass of 1 such that a row of `width` masses has a sum below 2**EXACT_BITS."""
    return EXACT_BITS - width.bit_length()


def whole_masses(weights: Tensor, bits: int) -> Tensor:
    """Weights of at most 1 in units of 2**-bits, rounded. Their dtype stays.

    The row's sum must stay below 2**(53 - bits). float32 holds the result exactly, for rounding
    leaves at most its 24 bits.
    """
    return (weights * 2.0**bits).round_()


def exp_weights(log_weights: Tensor) -> Tensor:
    """e^x for float32 x <= 0, to 2 ulp and exactly 1 at 0: `exp_of` of native/vectors.h."""
    in_range = log_weights.clamp(min=LOWEST)
    shifted = in_range * 1.44269504 + ROUND
    n = shifted - ROUND
    r = (in_range - n * 0.693359375) + n * 2.12194440e-4
    p = r * COEFFICIENTS[0] + COEFFICIENTS[1]
    for coefficient in COEFFICIENTS[2:]:
        p = p.mul_(r).add_(coefficient)
    p = p.mul_(r * r).add_(r + 1.0)
    power = shifted.view(torch.int32).add_(127).bitwise_left_shift_(23).view(torch.float32)
    return p.mul_(power).masked_fill_(log_weights < LOWEST, 0.0)


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
    kth = torch.full_like(ordered[:, :1], -torch.inf)
    num_tied = None
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
    scores: Tensor  # [n, width] float32, after temperature
    log_weights: Tensor  # [n, width] float32, the same up to a constant of the row, <= 0
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
    return Candidates(token_ids, scaled, log_weights, kept, _unless_all(short, token_ids))


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
        scaled = scaled.gather(-1, token_ids)
        surprise = surprise.gather(-1, token_ids)
        probabilities = probabilities.gather(-1, token_ids)
        log_probabilities = log_probabilities.gather(-1, token_ids)
    bound = typical_bound(surprise, probabilities, typical_p)
    kept = (surprise <= bound) & (surprise < torch.inf)
    largest_surprise = surprise.amax(-1, keepdim=True)
    short = (bound >= largest_surprise) & (largest_surprise < torch.inf)
    return Candidates(token_ids, scaled, log_probabilities, kept, _unless_all(short, token_ids))


def _unless_all(short: Tensor, token_ids: Tensor | None) -> Tensor:
    """The whole vocabulary is never short."""
    return (torch.zeros_like(short) if token_ids is None else short).squeeze(-1)


_ROUNDS = 10


_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))


_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


_LOW_WORD = np.uint64(0xFFFFFFFF)


_WORD_BITS = np.uint64(32)


Words = npt.NDArray[np.uint64]


def philox4x32(counter: npt.ArrayLike, key: npt.ArrayLike) -> Words:
    """Ten rounds over each counter. Every word is 32 bits wide, held in 64.

    counter: [..., 4], key: [..., 2] of the same leading shape. Returns [..., 4].
    """
    counters = np.asarray(counter, dtype=np.uint64)
    keys = np.asarray(key, dtype=np.uint64)
    c0, c1, c2, c3 = (counters[..., word] for word in range(4))
    k0 = keys[..., 0]
    k1 = keys[..., 1]
    for _ in range(_ROUNDS):
        left = _MULTIPLIERS[0] * c0
        right = _MULTIPLIERS[1] * c2
        c0 = (right >> _WORD_BITS) ^ c1 ^ k0
        c2 = (left >> _WORD_BITS) ^ c3 ^ k1
        c1 = right & _LOW_WORD
        c3 = left & _LOW_WORD
        k0 = (k0 + _WEYL[0]) & _LOW_WORD
        k1 = (k1 + _WEYL[1]) & _LOW_WORD
    return np.stack((c0, c1, c2, c3), axis=-1)


def uniforms(seeds: npt.NDArray[np.uint64], positions: Words) -> npt.NDArray[np.float64]:
    """One number in [0, 1) of 53 random bits for each (seed, position), two 64-bit words.

    counter = (position low, position high, 0, 0), key = (seed low, seed high). The first two words
    of the block give the number. `seeds` and `positions` broadcast; the result has their shape.
    """
    seeds, positions = np.broadcast_arrays(seeds, positions)
    zero = np.zeros_like(positions)
    counter = np.stack((positions & _LOW_WORD, positions >> _WORD_BITS, zero, zero), axis=-1)
    key = np.stack((seeds & _LOW_WORD, seeds >> _WORD_BITS), axis=-1)
    words = philox4x32(counter, key)
    high = words[..., 0] >> np.uint64(5)
    low = words[..., 1] >> np.uint64(6)
    return (high * np.float64(2**26) + low) * np.float64(2.0**-53)


def draw(masses: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The index drawn from each row [n], and the row's total mass [n] in float64.

    masses:   [n, width] whole, row sums below 2**53; width a multiple of CHUNK_LEN
    uniforms: [n] float64 in [0, 1)
    A row of NaN, or without any mass, gives a meaningless index, within the row.
    """
    if masses.shape[-1] == CHUNK_LEN:
        cumulative = masses.cumsum(-1, dtype=torch.float64)
        totals = cumulative[:, -1:]
        return _first_above(cumulative, _target(uniforms, totals)).squeeze(-1), totals.squeeze(-1)
    chunks = in_chunks(masses)
    cumulative = chunks.sum(-1, dtype=torch.float64).cumsum(-1)  # [n, num_chunks]
    totals = cumulative[:, -1:]
    target = _target(uniforms, totals)
    chunk = _first_above(cumulative, target)
    before = cumulative.gather(1, (chunk - 1).clamp_(min=0)).masked_fill_(chunk == 0, 0.0)
    inner = chunk_at(chunks, chunk).squeeze(1).cumsum(-1, dtype=torch.float64)
    within = _first_above(inner, target - before)
    return (chunk * CHUNK_LEN + within).squeeze(-1), totals.squeeze(-1)


def _target(uniforms: Tensor, totals: Tensor) -> Tensor:
    """[n, 1], below the total: its product with a double below 1 never rounds up to itself."""
    return (uniforms.unsqueeze(-1) * totals).floor_()


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """Index of each row's first element above its target [n, 1]; the last one if none is."""
    return (cumulative <= target).sum(-1, keepdim=True).clamp(max=cumulative.shape[-1] - 1)
