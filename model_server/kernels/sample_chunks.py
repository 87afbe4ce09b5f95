# mypy: disable-error-code="no-untyped-def"
"""What each chunk of a row contributes to the choice of its token: the largest score, the mass, and
the candidates of filters. Grids are (chunks, rows of the group).

    score of a row:      top ......................... -inf
    depth below top:     | 0 | 1 | 2 | ... buckets of 1/8 | beyond: never a candidate
    candidates:          |----------->  the first buckets that hold the number wanted
"""

import triton
import triton.language as tl

from model_server.kernels.token_masses import masses_of, scaled, weights_of

NO_TOKEN = tl.constexpr(2**31 - 1)
_PER_UNIT = tl.constexpr(8)  # buckets of a score's unit


@triton.jit
def chunk_bests(scores, rows, tops, bests, sums, width, CHUNK: tl.constexpr):
    """Of rows without a draw: the largest score, its first token, and the sum of the weights.

    sums: [rows, chunks] float64, relative to the chunk's own largest score
    """
    chunk, index = tl.program_id(0), tl.program_id(1)
    row = scores + tl.load(rows + index) * width
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    score = scaled(row, tokens, width, None)
    top = tl.max(score, 0)
    base = tl.where(top > float("-inf"), top, 0.0)
    out = index * tl.num_programs(0) + chunk
    tl.store(tops + out, top)
    tl.store(bests + out, tl.min(tl.where(score == top, tokens, NO_TOKEN), 0))
    tl.store(sums + out, tl.sum(weights_of(score - base).to(tl.float64), 0))


@triton.jit
def chunk_tops(scores, rows, temperatures, tops, width, CHUNK: tl.constexpr):
    """The largest score after temperature."""
    chunk, index = tl.program_id(0), tl.program_id(1)
    row = scores + tl.load(rows + index) * width
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    score = scaled(row, tokens, width, tl.load(temperatures + index))
    tl.store(tops + index * tl.num_programs(0) + chunk, tl.max(score, 0))


@triton.jit
def row_top(tops, index, num_chunks, CHUNKS_PAD: tl.constexpr):
    """The largest score of a row."""
    chunks = tl.arange(0, CHUNKS_PAD)
    found = tl.load(
        tops + index * num_chunks + chunks, mask=chunks < num_chunks, other=float("-inf")
    )
    return tl.max(found, 0)


@triton.jit
def chunk_masses(
    scores, rows, temperatures, tops, masses, counts, width, num_chunks, unit,
    CHUNK: tl.constexpr, CHUNKS_PAD: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """The mass; with BUCKETS also how many scores lie in each bucket.

    masses: [rows, chunks] float64; counts: [rows, chunks, BUCKETS] int32
    """
    chunk, index = tl.program_id(0), tl.program_id(1)
    row = scores + tl.load(rows + index) * width
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    top = row_top(tops, index, num_chunks, CHUNKS_PAD)
    score = scaled(row, tokens, width, tl.load(temperatures + index))
    out = index * num_chunks + chunk
    tl.store(masses + out, tl.sum(masses_of(score, top, unit).to(tl.float64), 0))
    if BUCKETS > 0:
        depth = (top - score) * _PER_UNIT
        is_near = depth < BUCKETS  # not where it is NaN
        bucket = tl.where(is_near, depth, 0.0).to(tl.int32)
        found = tl.histogram(bucket, BUCKETS, mask=is_near)
        tl.store(counts + out * BUCKETS + tl.arange(0, BUCKETS), found)


@triton.jit(do_not_specialize=["top_k_stride"])
def gather_candidates(
    scores, rows, temperatures, top_ks, tops, counts,
    found_scores, found_masses, found_tokens, num_found,
    width, num_chunks, unit, top_k_stride,
    WANTED: tl.constexpr, CAPACITY: tl.constexpr, CHUNK: tl.constexpr, CHUNKS_PAD: tl.constexpr,
    BUCKETS: tl.constexpr,
):  # fmt: skip
    """The tokens of the first buckets that hold a row's top-k, or else WANTED, by token id.

    num_found: [rows] int32, how many they are, or 0 for more than CAPACITY. The other three are
    [rows, CAPACITY].
    """
    chunk, index = tl.program_id(0), tl.program_id(1)
    chunks, buckets = tl.arange(0, CHUNKS_PAD), tl.arange(0, BUCKETS)
    table = tl.load(
        counts + (index * num_chunks + chunks)[:, None] * BUCKETS + buckets[None, :],
        mask=(chunks < num_chunks)[:, None],
        other=0,
    )
    top_k = tl.load(top_ks + index * top_k_stride)
    wanted = tl.where(top_k > 0, top_k, WANTED)
    so_far = tl.cumsum(tl.sum(table, 0), 0)
    last = tl.minimum(tl.sum((so_far < wanted).to(tl.int32), 0), BUCKETS - 1)
    by_chunk = tl.sum(tl.where(buckets[None, :] <= last, table, 0), 1)
    total = tl.sum(by_chunk, 0)
    if chunk == 0:
        tl.store(num_found + index, tl.where(total <= CAPACITY, total, 0))
    if total > CAPACITY:
        return
    row = scores + tl.load(rows + index) * width
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    top = row_top(tops, index, num_chunks, CHUNKS_PAD)
    score = scaled(row, tokens, width, tl.load(temperatures + index))
    chosen = (top - score) * _PER_UNIT < last + 1
    before = tl.sum(tl.where(chunks < chunk, by_chunk, 0), 0)
    out = index * CAPACITY + before + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(found_scores + out, score, mask=chosen)
    tl.store(found_masses + out, masses_of(score, top, unit), mask=chosen)
    tl.store(found_tokens + out, tokens, mask=chosen)
