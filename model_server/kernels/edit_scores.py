# mypy: disable-error-code="no-untyped-def"
"""Changes of scores in place: masks, biases and penalties, as those of logits_processors.py.

Penalties read a table of what each sequence has used:

    used[slot][token]:  | 31 ............ 1 | 0 |      0: never used
                          count in the output   1: used before the slot was opened
"""

import triton
import triton.language as tl

BITS_PER_WORD = tl.constexpr(32)


@triton.jit
def mask_scores(scores, words, rows, width, num_words, CHUNK: tl.constexpr):
    """Grid (chunks, masked rows): add -inf where a bit is 0; nothing else is read or written.

    scores: [.., width] float32; words: [n, num_words] int32; rows: [n] int64
    """
    index = tl.program_id(1)
    tokens = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    word = tl.load(
        words + index * num_words + tokens // BITS_PER_WORD,
        mask=tokens < num_words * BITS_PER_WORD,
        other=-1,
    )
    is_banned = ((word >> (tokens % BITS_PER_WORD)) & 1) == 0
    at = scores + tl.load(rows + index) * width + tokens
    tl.store(at, tl.load(at, mask=is_banned, other=0.0) + float("-inf"), mask=is_banned)


@triton.jit(do_not_specialize=["num_places"])
def add_biases(scores, rows, tokens, values, width, num_places, BLOCK: tl.constexpr):
    """Grid (blocks of places): no place of the scores may come twice."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < num_places
    row = tl.load(rows + places, mask=inside, other=0)
    at = scores + row * width + tl.load(tokens + places, mask=inside, other=0)
    added = tl.load(at, mask=inside, other=0.0) + tl.load(values + places, mask=inside, other=0.0)
    tl.store(at, added, mask=inside)


@triton.jit(do_not_specialize=["presence_stride", "frequency_stride"])
def penalise_used(
    scores, used, rows, slots, repetition, presence, frequency, width, vocab_size,
    presence_stride, frequency_stride, CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, penalised rows); launched with enable_fp_fusion=False."""
    index = tl.program_id(1)
    tokens = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    entry = tl.load(
        used + tl.load(slots + index) * vocab_size + tokens, mask=tokens < vocab_size, other=0
    )
    is_used = entry != 0
    at = scores + tl.load(rows + index) * width + tokens
    score = tl.load(at, mask=is_used, other=0.0)
    factor = tl.load(repetition + index)
    score = tl.where(score < 0.0, score * factor, tl.div_rn(score, factor))
    count = (entry >> 1).to(tl.float32)
    appeared = tl.where(count > 0.0, tl.load(presence + index * presence_stride), 0.0)
    score -= tl.load(frequency + index * frequency_stride) * count + appeared
    tl.store(at, score, mask=is_used)


@triton.jit(do_not_specialize=["num_tokens"])
def count_output(used, slots, tokens, counts, vocab_size, num_tokens, BLOCK: tl.constexpr):
    """Grid (blocks of tokens): add to the counts of output; no place of the table comes twice."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < num_tokens
    slot = tl.load(slots + places, mask=inside, other=0)
    at = used + slot * vocab_size + tl.load(tokens + places, mask=inside, other=0)
    count = tl.load(counts + places, mask=inside, other=0).to(tl.int32)
    entry = tl.load(at, mask=inside, other=0)
    tl.store(at, entry + (count << 1), mask=inside)
