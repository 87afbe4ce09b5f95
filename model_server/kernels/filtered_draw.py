# mypy: disable-error-code="no-untyped-def"
"""Top-k, top-p and min-p of a row and its draw: filters.py and draw.py to the last bit.

The smallest score that stays is found by bisection over the 32 bits of a score, whose order is that
of integers. Each step adds up what lies above the middle: counts for top-k and min-p, masses for
top-p. A row is listed by its candidates if the cut surely lies among them, otherwise whole.

    tokens     what is listed: _listed's arguments from `row` to `unit`
    candidates scores, masses and token ids, [CAPACITY] each, of which the first `found` count
"""

import triton
import triton.language as tl

from model_server.kernels.sample_chunks import row_top
from model_server.kernels.sample_draw import logprob_of
from model_server.kernels.token_masses import key_of, masses_of, scaled, score_of

# The mass of what is no candidate is below the least candidate's, but for errors of the weights.
_SURELY_LESS = tl.constexpr(0.98)
_ALL_TIED = tl.constexpr(2**31 - 1)
_LOWEST_KEY = tl.constexpr(-(2**31) + (2**23 - 1))  # of -inf


@triton.jit(do_not_specialize=["top_k_stride", "nucleus_stride", "min_p_stride"])
def draw_filtered(
    scores, rows, temperatures, uniforms, top_ks, nuclei, min_ps,
    tops, masses, found_scores, found_masses, found_tokens, num_found, drawn, logprobs,
    width, num_chunks, unit, top_k_stride, nucleus_stride, min_p_stride,
    CAPACITY: tl.constexpr, TILE: tl.constexpr, CHUNKS_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (rows of the group): one token, and its log-probability among those that are left."""
    index = tl.program_id(0)
    chunks = tl.arange(0, CHUNKS_PAD)
    by_chunk = tl.load(masses + index * num_chunks + chunks, mask=chunks < num_chunks, other=0.0)
    total = tl.sum(by_chunk, 0)
    if total != total:  # NaN: no distribution can be made of the scores
        tl.store(drawn + index, 0)
        tl.store(logprobs + index, total)
        return
    filters = (
        tl.load(top_ks + index * top_k_stride),
        tl.load(nuclei + index * nucleus_stride),
        tl.load(min_ps + index * min_p_stride) * unit,
    )
    place, top = tl.load(rows + index), row_top(tops, index, num_chunks, CHUNKS_PAD)
    found = tl.load(num_found + index)
    found_scores, found_masses = found_scores + index * CAPACITY, found_masses + index * CAPACITY
    enough = _is_enough(found_masses, found, filters, total, TILE)
    row, temperature = scores + place * width, tl.load(temperatures + index)
    length = tl.where(enough, found, width)
    tokens = (row, temperature, found_scores, found_masses, length, enough, width, top, unit)

    low, num_tied = _cut(tokens, filters, total, key_of(top), TILE)
    cut = score_of(low)
    above, each, num_equal = _around(tokens, cut, TILE)
    num_tied = tl.minimum(num_tied, num_equal)
    left = above + each * num_tied.to(tl.float64)
    target = tl.floor(tl.load(uniforms + place) * left)
    at, score = _first_above(tokens, cut, num_equal - num_tied, target, TILE)
    token = at
    if enough:
        token = tl.load(found_tokens + index * CAPACITY + at)
    tl.store(drawn + index, token.to(tl.int64))
    tl.store(logprobs + index, logprob_of(score, top, left, unit))


@triton.jit
def _listed(tokens, at):
    """Scores and masses of the tokens at some places of the list, -inf and 0 beyond its end."""
    row, temperature, found_scores, found_masses, length, enough, width, top, unit = tokens
    if enough:
        inside = at < length
        score = tl.load(found_scores + at, mask=inside, other=float("-inf"))
        mass = tl.load(found_masses + at, mask=inside, other=0.0)
    else:
        score = scaled(row, at, width, temperature)
        mass = masses_of(score, top, unit)
    return score, mass


@triton.jit
def _is_enough(found_masses, found, filters, total, TILE: tl.constexpr):
    """Whether the cut surely lies among the candidates, which are the largest scores."""
    top_k, nucleus, least = filters
    lanes = tl.arange(0, TILE)
    have = tl.zeros((), tl.float64)
    smallest = tl.zeros((), tl.float32) + float("inf")
    for start in range(0, found, TILE):
        inside = start + lanes < found
        mass = tl.load(found_masses + start + lanes, mask=inside, other=float("inf"))
        smallest = tl.minimum(smallest, tl.min(mass, 0))
        have += tl.sum(tl.where(inside, mass, 0.0).to(tl.float64), 0)
    is_enough = smallest < least * _SURELY_LESS
    if nucleus < 1.0:
        is_enough = have >= total * nucleus
    if top_k > 0:
        is_enough = found >= top_k
    # What is no candidate has no mass, and does not count.
    return (found > 0) & (is_enough | (have == total))


@triton.jit
def _cut(tokens, filters, total, highest, TILE: tl.constexpr):
    """The key of the smallest score that stays, and how many of those equal to it stay."""
    top_k, nucleus, least = filters
    low, num_tied = tl.zeros((), tl.int64) + _LOWEST_KEY, tl.zeros((), tl.int32) + _ALL_TIED
    if top_k > 0:
        low = _search(tokens, low, highest, top_k.to(tl.float64), TILE, BY_MASS=False)
    if nucleus < 1.0:
        if top_k > 0:
            above, each, num_equal = _around(tokens, score_of(low), TILE)
            total = above + each * num_equal.to(tl.float64)
        target = total * nucleus
        low = _search(tokens, low, highest, target, TILE, BY_MASS=True)
        above, each, num_equal = _around(tokens, score_of(low), TILE)
        # The first number that completes the target; the quotient may be off by a rounding.
        needed = tl.ceil((target - above) / each)
        needed = tl.where(above + each * (needed - 1.0) >= target, needed - 1.0, needed)
        needed = tl.where(above + each * needed < target, needed + 1.0, needed)
        num_tied = tl.maximum(needed, 1.0).to(tl.int32)
    if least > 0.0:
        last = _search(
            tokens, tl.zeros((), tl.int64) + _LOWEST_KEY, highest,
            _count_of_mass(tokens, least, TILE), TILE, BY_MASS=False,
        )  # fmt: skip
        num_tied = tl.where(last > low, _ALL_TIED, num_tied)
        low = tl.maximum(low, last)
    return low, num_tied


@triton.jit
def _count_of_mass(tokens, least, TILE: tl.constexpr):
    """How many tokens have at least this mass, and at least 1, in float64."""
    count = tl.zeros((), tl.int32)
    for start in range(0, tokens[4], TILE):
        _, mass = _listed(tokens, start + tl.arange(0, TILE))
        count += tl.sum((mass >= least).to(tl.int32), 0)
    return tl.maximum(count, 1).to(tl.float64)


@triton.jit
def _search(tokens, low, high, target, TILE: tl.constexpr, BY_MASS: tl.constexpr):
    """The lowest key above which there is less than the target, of masses or of tokens."""
    while low < high:
        middle = (low + high) >> 1
        bound = score_of(middle)
        above = tl.zeros((), tl.float64)
        for start in range(0, tokens[4], TILE):
            score, mass = _listed(tokens, start + tl.arange(0, TILE))
            is_above = score > bound
            each = tl.where(is_above, mass, 0.0) if BY_MASS else is_above.to(tl.float32)
            above += tl.sum(each.to(tl.float64), 0)
        fits = above < target
        low = tl.where(fits, low, middle + 1)
        high = tl.where(fits, middle, high)
    return low


@triton.jit
def _around(tokens, cut, TILE: tl.constexpr):
    """The mass above a score, that of each token of this score, and how many there are."""
    above, each = tl.zeros((), tl.float64), tl.zeros((), tl.float32)
    num_equal = tl.zeros((), tl.int32)
    for start in range(0, tokens[4], TILE):
        score, mass = _listed(tokens, start + tl.arange(0, TILE))
        above += tl.sum(tl.where(score > cut, mass, 0.0).to(tl.float64), 0)
        is_equal = score == cut
        each = tl.maximum(each, tl.max(tl.where(is_equal, mass, 0.0), 0))
        num_equal += tl.sum(is_equal.to(tl.int32), 0)
    return above, each.to(tl.float64), num_equal


@triton.jit
def _first_above(tokens, cut, num_going, target, TILE: tl.constexpr):
    """The first place up to which the masses that stay exceed the target, and its score.

    Of the tokens equal to the cut the first `num_going` go.
    """
    lanes = tl.arange(0, TILE)
    at, start = tl.full((), -1, tl.int32), tl.full((), 0, tl.int32)
    own = tl.zeros((), tl.float32)
    while (at < 0) & (start < tokens[4]):
        score, mass = _listed(tokens, start + lanes)
        is_equal = score == cut
        stays = (score > cut) | (is_equal & (tl.cumsum(is_equal.to(tl.int32), 0) > num_going))
        kept = tl.where(stays, mass, 0.0).to(tl.float64)
        within = tl.sum((tl.cumsum(kept, 0) <= target).to(tl.int32), 0)
        own = tl.sum(tl.where(lanes == within, score, 0.0), 0)
        at = tl.where(within < TILE, start + within, -1)
        target -= tl.sum(kept, 0)
        num_going -= tl.sum(is_equal.to(tl.int32), 0)
        start += TILE
    return tl.maximum(at, 0), own
