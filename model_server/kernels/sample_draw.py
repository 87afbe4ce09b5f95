# mypy: disable-error-code="no-untyped-def"
"""The token of a row without filters: the best, or one drawn from the whole vocabulary.

Grids are (rows of the group), after those of sample_chunks.py.
"""

import triton
import triton.language as tl

from model_server.kernels.sample_chunks import NO_TOKEN, row_top
from model_server.kernels.token_masses import masses_of, scaled


@triton.jit
def take_best(tops, bests, sums, drawn, logprobs, num_chunks, CHUNKS_PAD: tl.constexpr):
    """The first of the largest scores."""
    index = tl.program_id(0)
    chunks = tl.arange(0, CHUNKS_PAD)
    at, inside = index * num_chunks + chunks, chunks < num_chunks
    tops_of = tl.load(tops + at, mask=inside, other=float("-inf"))
    top = tl.max(tops_of, 0)
    firsts = tl.load(bests + at, mask=inside & (tops_of == top), other=NO_TOKEN)
    # Beside a largest score of +inf or -inf a difference is NaN, and so the sum.
    shares = tl.exp((tops_of - top).to(tl.float64))
    total = tl.sum(tl.load(sums + at, mask=inside, other=0.0) * shares, 0)
    tl.store(drawn + index, tl.min(firsts, 0).to(tl.int64))
    tl.store(logprobs + index, (-tl.log(total)).to(tl.float32).to(tl.float64))


@triton.jit
def draw_from_all(
    scores, rows, temperatures, uniforms, tops, masses, drawn, logprobs,
    width, num_chunks, unit, CHUNK: tl.constexpr, CHUNKS_PAD: tl.constexpr,
):  # fmt: skip
    """A token of the whole row, which is read in the one chunk that has it."""
    index = tl.program_id(0)
    place = tl.load(rows + index)
    chunks = tl.arange(0, CHUNKS_PAD)
    top = row_top(tops, index, num_chunks, CHUNKS_PAD)
    by_chunk = tl.load(masses + index * num_chunks + chunks, mask=chunks < num_chunks, other=0.0)
    total = tl.sum(by_chunk, 0)
    if total != total:  # NaN: no distribution can be made of the scores
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
def logprob_of(score, top, total, unit):
    """Rounded to float32, in float64. Masses are rounded: one that is all can seem to be more."""
    log_total = tl.log(total / unit)
    logprob = ((score - top).to(tl.float64) - log_total).to(tl.float32)
    return tl.minimum(logprob, 0.0).to(tl.float64)
