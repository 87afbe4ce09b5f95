# mypy: disable-error-code="no-untyped-def"
"""Top-k, top-p and min-p of a row and its draw: filters.py and draw.py to the last bit.

The smallest score that stays is found by bisection over the 32 bits of a score, whose order is that
of integers. Each step adds up what lies above the middle: counts for top-k and min-p, masses for
top-p. A row is listed by its candidates if the cut surely lies among them, otherwise whole.
"""

import triton
import triton.language as tl

from model_server.kernels.sample_chunks import row_top
from model_server.kernels.token_masses import key_of, masses_of, scaled, score_of

# The mass of what is no candidate is below the least candidate's, but for errors of the weights.
_SURELY_LESS = tl.constexpr(0.98)


@triton.jit
def draw_filtered(
    scores, rows, temperatures, uniforms, top_ks, nuclei, min_ps,
    tops, masses, found_scores, found_masses, found_tokens, num_found, drawn, logprobs,
    width, num_chunks, unit, top_k_stride, nucleus_stride, min_p_stride,
    CAPACITY: tl.constexpr, TILE: tl.constexpr, CHUNKS_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (rows of the group): one token, and its log-probability among those that are left."""
    index = tl.program_id(0)
    place = tl.load(rows + index)
    chunks = tl.arange(0, CHUNKS_PAD)
    top = row_top(tops, index, num_chunks, CHUNKS_PAD)
    by_chunk = tl.load(masses + index * num_chunks + chunks, mask=chunks < num_chunks, other=0.0)
    total_of_all = tl.sum(by_chunk, 0)
    if total_of_all != total_of_all:  # NaN: no distribution can be made of the scores
        tl.store(drawn + index, 0)
        tl.store(logprobs + index, total_of_all)
        return

    temperature = tl.load(temperatures + index)
    top_k = tl.load(top_ks + index * top_k_stride)
    nucleus = tl.load(nuclei + index * nucleus_stride)
    least = tl.load(min_ps + index * min_p_stride) * unit
    row = scores + place * width
    candidates = index * CAPACITY
    found_scores, found_masses = found_scores + candidates, found_masses + candidates
    found_tokens += candidates
    found = tl.load(num_found + index)
    enough = _is_enough(
        found_scores, found_masses, found, top_k, nucleus, least, total_of_all, top, TILE
    )
    length = tl.where(enough, found, width)
    low, num_kept_tied = _cut(
        row, temperature, found_scores, found_masses, length, enough, width, top, unit,
        top_k, nucleus, least, total_of_all, TILE,
    )  # fmt: skip

    cut = score_of(low)
    above, each, num_equal = _around(
        row, temperature, found_scores, found_masses, length, enough, width, top, unit, cut, TILE
    )  # fmt: skip
    num_kept_tied = tl.minimum(num_kept_tied, num_equal)
    total = above + each * num_kept_tied.to(tl.float64)
    target = tl.floor(tl.load(uniforms + place) * total)
    at, score = _first_above(
        row, temperature, found_scores, found_masses, length, enough, width, top, unit, cut,
        num_equal - num_kept_tied, target, TILE,
    )  # fmt: skip
    token = at
    if enough:
        token = tl.load(found_tokens + at)
    tl.store(drawn + index, token.to(tl.int64))
    tl.store(logprobs + index, logprob_of(score, top, total, unit))


@triton.jit
def draw_from_all(
    scores, rows, temperatures, uniforms, tops, masses, drawn, logprobs,
    width, num_chunks, unit, CHUNK: tl.constexpr, CHUNKS_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (rows of the group): a token of the whole row, read in the one chunk that has it."""
    index = tl.program_id(0)
    place = tl.load(rows + index)
    chunks = tl.arange(0, CHUNKS_PAD)
    top = row_top(tops, index, num_chunks, CHUNKS_PAD)
    by_chunk = tl.load(masses + index * num_chunks + chunks, mask=chunks < num_chunks, other=0.0)
    total = tl.sum(by_chunk, 0)
    if total != total:
        tl.store(drawn + index, 0)
        tl.store(logprobs + index, total)
        return
    target = tl.floor(tl.load(uniforms + place) * total)
    chunk = tl.sum((tl.cumsum(by_chunk, 0) <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(chunks < chunk, by_chunk, 0.0), 0)
    lanes = tl.arange(0, CHUNK)
    score = scaled(
        scores + place * width, chunk * CHUNK + lanes, width, tl.load(temperatures + index)
    )
    mass = masses_of(score, top, unit).to(tl.float64)
    within = tl.sum((before + tl.cumsum(mass, 0) <= target).to(tl.int32), 0)
    tl.store(drawn + index, (chunk * CHUNK + within).to(tl.int64))
    own = tl.sum(tl.where(lanes == within, score, 0.0), 0)
    tl.store(logprobs + index, logprob_of(own, top, total, unit))


@triton.jit
def take_best(tops, bests, sums, drawn, logprobs, num_chunks, CHUNKS_PAD: tl.constexpr):
    """Grid (rows of the group): the first of the largest scores."""
    index = tl.program_id(0)
    chunks = tl.arange(0, CHUNKS_PAD)
    at, inside = index * num_chunks + chunks, chunks < num_chunks
    tops_of = tl.load(tops + at, mask=inside, other=float("-inf"))
    top = tl.max(tops_of, 0)
    firsts = tl.load(bests + at, mask=inside & (tops_of == top), other=2**31 - 1)
    # Beside a largest score of +inf or -inf a difference is NaN, and so the sum.
    shares = tl.exp((tops_of - top).to(tl.float64))
    total = tl.sum(tl.load(sums + at, mask=inside, other=0.0) * shares, 0)
    tl.store(drawn + index, tl.min(firsts, 0).to(tl.int64))
    tl.store(logprobs + index, (-tl.log(total)).to(tl.float32).to(tl.float64))


@triton.jit
def logprob_of(score, top, total, unit):
    """Rounded to float32, in float64. Masses are rounded: one that is all can seem to be more."""
    log_total = tl.log(total / unit)
    logprob = ((score - top).to(tl.float64) - log_total).to(tl.float32)
    return tl.minimum(logprob, 0.0).to(tl.float64)


@triton.jit
def _listed(
    row, temperature, found_scores, found_masses, at, length, enough, width, top, unit
):  # fmt: skip
    """Scores and masses of the tokens at some places of the list, -inf and 0 beyond its end."""
    if enough:
        inside = at < length
        score = tl.load(found_scores + at, mask=inside, other=float("-inf"))
        mass = tl.load(found_masses + at, mask=inside, other=0.0)
    else:
        score = scaled(row, at, width, temperature)
        mass = masses_of(score, top, unit)
    return score, mass


@triton.jit
def _is_enough(
    found_scores, found_masses, found, top_k, nucleus, least, total_of_all, top,
    TILE: tl.constexpr,
):  # fmt: skip
    """Whether the cut surely lies among the candidates, which are the largest scores."""
    lanes = tl.arange(0, TILE)
    have = tl.zeros((), tl.float64)
    smallest = least * 0.0 + float("inf")
    for start in range(0, found, TILE):
        inside = start + lanes < found
        mass = tl.load(found_masses + start + lanes, mask=inside, other=float("inf"))
        smallest = tl.minimum(smallest, tl.min(mass, 0))
        have += tl.sum(tl.where(inside, mass, 0.0).to(tl.float64), 0)
    is_enough = smallest < least * _SURELY_LESS
    if nucleus < 1.0:
        is_enough = have >= total_of_all * nucleus
    if top_k > 0:
        is_enough = found >= top_k
    # What is no candidate has no mass, and does not count.
    return (found > 0) & (is_enough | (have == total_of_all))


@triton.jit
def _cut(
    row, temperature, found_scores, found_masses, length, enough, width, top, unit,
    top_k, nucleus, least, total_of_all, TILE: tl.constexpr,
):  # fmt: skip
    """The key of the smallest score that stays, and how many of those equal to it stay."""
    lowest, highest = key_of(top * 0.0 + float("-inf")), key_of(top)
    all_tied = tl.zeros((), tl.int32) + 2147483647
    low, num_kept_tied = lowest, all_tied
    if top_k > 0:
        low = _search(
            row, temperature, found_scores, found_masses, length, enough, width, top, unit,
            lowest, highest, top_k.to(tl.float64), TILE, BY_MASS=False,
        )  # fmt: skip
    if nucleus < 1.0:
        total = total_of_all
        if top_k > 0:
            above, each, num_equal = _around(
                row, temperature, found_scores, found_masses, length, enough, width, top, unit,
                score_of(low), TILE,
            )  # fmt: skip
            total = above + each * num_equal.to(tl.float64)
        target = total * nucleus
        low = _search(
            row, temperature, found_scores, found_masses, length, enough, width, top, unit,
            low, highest, target, TILE, BY_MASS=True,
        )  # fmt: skip
        above, each, num_equal = _around(
            row, temperature, found_scores, found_masses, length, enough, width, top, unit,
            score_of(low), TILE,
        )  # fmt: skip
        # The first number that completes the target; the quotient may be off by a rounding.
        needed = tl.ceil((target - above) / each)
        needed = tl.where(above + each * (needed - 1.0) >= target, needed - 1.0, needed)
        needed = tl.where(above + each * needed < target, needed + 1.0, needed)
        num_kept_tied = tl.maximum(needed, 1.0).to(tl.int32)
    if least > 0.0:
        lanes = tl.arange(0, TILE)
        num_kept = tl.zeros((), tl.int32)
        for start in range(0, length, TILE):
            _, mass = _listed(
                row, temperature, found_scores, found_masses, start + lanes, length, enough,
                width, top, unit,
            )  # fmt: skip
            num_kept += tl.sum((mass >= least).to(tl.int32), 0)
        last = _search(
            row, temperature, found_scores, found_masses, length, enough, width, top, unit,
            lowest, highest, tl.maximum(num_kept, 1).to(tl.float64), TILE, BY_MASS=False,
        )  # fmt: skip
        num_kept_tied = tl.where(last > low, all_tied, num_kept_tied)
        low = tl.maximum(low, last)
    return low, num_kept_tied


@triton.jit
def _search(
    row, temperature, found_scores, found_masses, length, enough, width, top, unit,
    low, high, target, TILE: tl.constexpr, BY_MASS: tl.constexpr,
):  # fmt: skip
    """The lowest key above which there is less than the target, of masses or of tokens."""
    lanes = tl.arange(0, TILE)
    while low < high:
        middle = (low + high) >> 1
        bound = score_of(middle)
        above = tl.zeros((), tl.float64)
        for start in range(0, length, TILE):
            score, mass = _listed(
                row, temperature, found_scores, found_masses, start + lanes, length, enough,
                width, top, unit,
            )  # fmt: skip
            if not BY_MASS:
                mass = mass * 0.0 + 1.0
            above += tl.sum(tl.where(score > bound, mass, 0.0).to(tl.float64), 0)
        fits = above < target
        low = tl.where(fits, low, middle + 1)
        high = tl.where(fits, middle, high)
    return low


@triton.jit
def _around(
    row, temperature, found_scores, found_masses, length, enough, width, top, unit, cut,
    TILE: tl.constexpr,
):  # fmt: skip
    """The mass above a score, that of each token of this score, and how many there are."""
    lanes = tl.arange(0, TILE)
    above, each = tl.zeros((), tl.float64), tl.zeros((), tl.float32)
    num_equal = tl.zeros((), tl.int32)
    for start in range(0, length, TILE):
        score, mass = _listed(
            row, temperature, found_scores, found_masses, start + lanes, length, enough,
            width, top, unit,
        )  # fmt: skip
        above += tl.sum(tl.where(score > cut, mass, 0.0).to(tl.float64), 0)
        is_equal = score == cut
        each = tl.maximum(each, tl.max(tl.where(is_equal, mass, 0.0), 0))
        num_equal += tl.sum(is_equal.to(tl.int32), 0)
    return above, each.to(tl.float64), num_equal


@triton.jit
def _first_above(
    row, temperature, found_scores, found_masses, length, enough, width, top, unit, cut,
    num_going, target, TILE: tl.constexpr,
):  # fmt: skip
    """The first place up to which the masses that stay exceed the target, and its score.

    Of the tokens equal to the cut the first `num_going` go.
    """
    lanes = tl.arange(0, TILE)
    at = tl.full((), -1, tl.int32)
    own = tl.zeros((), tl.float32)
    start = tl.full((), 0, tl.int32)
    while (at < 0) & (start < length):
        score, mass = _listed(
            row, temperature, found_scores, found_masses, start + lanes, length, enough,
            width, top, unit,
        )  # fmt: skip
        is_equal = score == cut
        rank = tl.cumsum(is_equal.to(tl.int32), 0)
        stays = (score > cut) | (is_equal & (rank > num_going))
        kept = tl.where(stays, mass, 0.0).to(tl.float64)
        within = tl.sum((tl.cumsum(kept, 0) <= target).to(tl.int32), 0)
        own = tl.sum(tl.where(lanes == within, score, 0.0), 0)
        at = tl.where(within < TILE, start + within, -1)
        target -= tl.sum(kept, 0)
        num_going -= tl.sum(is_equal.to(tl.int32), 0)
        start += TILE
    return tl.maximum(at, 0), own
