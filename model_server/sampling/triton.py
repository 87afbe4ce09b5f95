"""Sampling on CUDA by Triton kernels: edits of scores, and the choice of tokens.

    edits:     one launch each for masks, biases and penalties
    greedy:    chunk_bests -> take_best
    plain:     chunk_tops -> chunk_masses -> draw_from_all
    filtered:  chunk_tops -> chunk_masses -> gather_candidates -> draw_filtered

They make the scores, masses and tokens of edits.py, filters.py and choosing.py to the last bit, and
log-probabilities by the same rule: of weights in float64, summed up without the largest one (the
"rest"). They never wait for the device. So whoever launches them must do so with
enable_fp_fusion=False: a fused multiplication and addition rounds once where torch rounds twice.

Grids of `chunk_...` and `gather_...` are (chunks, rows of the group): what each chunk of a row
contributes. Those of the others are (rows of the group).

    score of a row:      top ......................... -inf
    depth below top:     | 0 | 1 | 2 | ... buckets of 1/8 | beyond: never a candidate
    candidates:          |----------->  the first buckets that hold the number wanted
"""

# mypy: disable-error-code="no-untyped-def"

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from model_server.sampling import filters
from model_server.sampling.choosing import Choice, choose_by_torch
from model_server.sampling.edits import DeviceMasks, Ints, known_tokens
from model_server.sampling.filters import Filters, mass_bits
from model_server.sampling.plan import WIDE, Bias, Group, Kind, Penalties
from model_server.staging import PinnedStaging
from model_server.triton_launch import Launch, launch, padded

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


_CHUNK = 4096  # of a row: what one program edits


_BLOCK = 256


_MIN_SLOTS = 4


class UsedTokens:
    """The table that penalties read, what each sequence has used: [num_slots, vocab_size] int32.

        used[slot][token]:  | 31 ............ 1 | 0 |      0: never used
                              count in the output   1: used before the slot was opened

    It grows by doubling, beyond what was reserved. Its size does not depend on the lengths of
    sequences.
    """

    def __init__(
        self, vocab_size: int, device: torch.device, staging: PinnedStaging, launch: Launch
    ) -> None:
        self._vocab_size = vocab_size
        self._staging = staging
        self._launch = launch
        self.table = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._free: list[int] = []

    def open(self, token_ids: Sequence[int], prompt_len: int) -> int:
        """See History.open."""
        tokens = np.asarray(token_ids, dtype=np.int64)
        known = known_tokens(tokens, self._vocab_size)
        output = tokens[prompt_len:]
        counts = np.bincount(output[output < self._vocab_size], minlength=self._vocab_size)
        entries = (counts << 1).astype(np.int32)
        entries[known] |= 1
        if not self._free:
            self.reserve(max(2 * len(self.table), _MIN_SLOTS))
        slot = self._free.pop()
        row, entries_of_row = self._staging.to_device_all((np.array([slot]), entries[None]))
        self.table.index_copy_(0, row, entries_of_row)
        return slot

    def close(self, slot: int) -> None:
        """See History.close."""
        self._free.append(slot)

    def append(self, slots: Ints, positions: Ints, token_ids: Ints) -> None:
        """See History.append."""
        self._count(slots, token_ids, np.ones(len(slots), dtype=np.int64))

    def extend(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """See History.extend."""
        tokens, counts = np.unique(np.asarray(token_ids, dtype=np.int64), return_counts=True)
        self._count(np.full(len(tokens), slot), tokens, counts)

    def reserve(self, num_slots: int, max_len: int = 0) -> None:
        """See History.reserve."""
        num_held = len(self.table)
        if num_slots > num_held:
            more = self.table.new_zeros(num_slots - num_held, self._vocab_size)
            self.table = torch.cat((self.table, more))
            self._free.extend(range(num_held, num_slots))

    def _count(self, slots: Ints, token_ids: Ints, counts: Ints) -> None:
        columns = self._staging.to_device_all((slots, token_ids, counts))
        self._launch(
            count_output,
            (-(-len(slots) // _BLOCK),),
            self.table,
            *columns,
            self._vocab_size,
            len(slots),
            BLOCK=_BLOCK,
        )


class TritonEdits:
    """See Edits.

    max_rows: of a step; more are taken, at the cost of an allocation
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        max_rows: int,
        *,
        staging: PinnedStaging | None = None,
        launch: Launch = launch,
    ) -> None:
        self._vocab_size = vocab_size
        self._launch = launch
        self.history = UsedTokens(vocab_size, device, staging or PinnedStaging(device), launch)
        self._places = torch.arange(max_rows, device=device)
        self._off = torch.zeros(1, device=device)

    def mask(self, scores: Tensor, masks: DeviceMasks) -> None:
        """See Edits.mask."""
        num_rows, num_words = masks.words.shape
        rows = masks.rows
        if rows is None:
            rows = self._first(num_rows)
        self._run(
            mask_scores,
            self._chunks(scores, num_rows),
            scores,
            masks.words,
            rows,
            scores.shape[-1],
            num_words,
            CHUNK=_CHUNK,
        )

    def add_bias(self, scores: Tensor, bias: Bias) -> None:
        """See Edits.add_bias."""
        num_places = len(bias.rows)
        self._run(
            add_biases,
            (-(-num_places // _BLOCK),),
            scores,
            bias.rows,
            bias.token_ids,
            bias.values,
            scores.shape[-1],
            num_places,
            BLOCK=_BLOCK,
        )

    def penalise(self, scores: Tensor, penalties: Penalties, used_len: int) -> None:
        """See Edits.penalise."""
        num_rows = len(penalties.rows)
        off = self._off.expand(num_rows)
        presence = off if penalties.presence is None else penalties.presence
        frequency = off if penalties.frequency is None else penalties.frequency
        self._run(
            penalise_used,
            self._chunks(scores, num_rows),
            scores,
            self.history.table,
            penalties.rows,
            penalties.slots,
            penalties.repetition,
            presence,
            frequency,
            scores.shape[-1],
            self._vocab_size,
            presence.stride(0),
            frequency.stride(0),
            CHUNK=_CHUNK,
        )

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        # A fused multiplication and addition rounds once where torch rounds twice.
        self._launch(kernel, grid, *arguments, enable_fp_fusion=False, **constants)

    @staticmethod
    def _chunks(scores: Tensor, num_rows: int) -> tuple[int, int]:
        return -(-scores.shape[-1] // _CHUNK), num_rows

    def _first(self, num_rows: int) -> Tensor:
        """The places of all rows of a step."""
        if num_rows > len(self._places):
            self._places = torch.arange(num_rows, device=self._places.device)
        return self._places[:num_rows]


_LOWEST = tl.constexpr(filters.LOWEST)


_ROUND = tl.constexpr(filters.ROUND)


_C0, _C1, _C2, _C3, _C4, _C5 = map(tl.constexpr, filters.COEFFICIENTS)


_WHOLE = tl.constexpr(2.0**23)  # float32 of at least this are whole


_LOWER_BITS = tl.constexpr(0x7FFFFFFF)


@triton.jit
def scaled(scores, tokens, width, temperature):
    """The scores of some tokens of a row; NaN becomes +inf, which fails the row as well.

    scores: of the row; tokens: [n], -inf from `width` on; temperature: None for 1
    """
    score = tl.load(scores + tokens, mask=tokens < width, other=float("-inf"))
    if temperature is not None:
        score = tl.div_rn(score, temperature)
    return tl.where(score == score, score, float("inf"))


@triton.jit
def weights_of(log_weights):
    """e^x for x <= 0, as `exp_weights`; NaN stays."""
    is_low = log_weights < _LOWEST
    in_range = tl.where(is_low, _LOWEST, log_weights)
    shifted = in_range * 1.44269504 + _ROUND
    n = shifted - _ROUND
    r = (in_range - n * 0.693359375) + n * 2.12194440e-4
    p = r * _C0 + _C1
    p = p * r + _C2
    p = p * r + _C3
    p = p * r + _C4
    p = p * r + _C5
    p = p * (r * r) + (r + 1.0)
    power = ((shifted.to(tl.int32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(is_low, 0.0, p * power)


@triton.jit
def masses_of(score, top, unit):
    """Whole numbers in float32: weights in `unit`, rounded to the nearest, ties to even."""
    mass = weights_of(score - top) * unit
    return tl.where(mass < _WHOLE, (mass + _WHOLE) - _WHOLE, mass)


@triton.jit
def rest_below(score, top):
    """The weights of scores below the largest one, and those of all but one that equal it."""
    weight = tl.exp(score.to(tl.float64) - top.to(tl.float64))
    is_top = score == top
    below = tl.sum(tl.where(is_top, 0.0, weight), 0)
    return below + tl.maximum(tl.sum(is_top.to(tl.int32), 0) - 1, 0).to(tl.float64)


@triton.jit
def key_of(score):
    """An int64 that orders a score among others, none of them NaN."""
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ _LOWER_BITS).to(tl.int64)


@triton.jit
def score_of(key):
    """The score of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ _LOWER_BITS).to(tl.float32, bitcast=True)


NO_TOKEN = tl.constexpr(2**31 - 1)


_PER_UNIT = tl.constexpr(8)  # buckets of a score's unit


@triton.jit
def chunk_bests(scores, rows, tops, bests, rests, width, CHUNK: tl.constexpr):
    """Of rows without a draw: the largest score, its first token, and the rest.

    rests: [rows, chunks] float64, relative to the chunk's own largest score
    """
    chunk = tl.program_id(0)
    index = tl.program_id(1)
    row = scores + tl.load(rows + index) * width
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    score = scaled(row, tokens, width, None)
    top = tl.max(score, 0)
    base = tl.where(top > float("-inf"), top, 0.0)
    out = index * tl.num_programs(0) + chunk
    tl.store(tops + out, top)
    tl.store(bests + out, tl.min(tl.where(score == top, tokens, NO_TOKEN), 0))
    tl.store(rests + out, rest_below(score, base))


@triton.jit
def chunk_tops(scores, rows, temperatures, tops, width, CHUNK: tl.constexpr):
    """The largest score after temperature."""
    chunk = tl.program_id(0)
    index = tl.program_id(1)
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
    scores, rows, temperatures, tops, masses, rests, counts, width, num_chunks, unit,
    CHUNK: tl.constexpr, CHUNKS_PAD: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """The mass; with BUCKETS also how many scores lie in each bucket, and without them the rest.

    masses, rests: [rows, chunks] float64; counts: [rows, chunks, BUCKETS] int32
    """
    chunk = tl.program_id(0)
    index = tl.program_id(1)
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
    else:
        tl.store(rests + out, rest_below(score, top))


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
    chunk = tl.program_id(0)
    index = tl.program_id(1)
    chunks = tl.arange(0, CHUNKS_PAD)
    buckets = tl.arange(0, BUCKETS)
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


@triton.jit
def take_best(tops, bests, rests, drawn, logprobs, num_chunks, CHUNKS_PAD: tl.constexpr):
    """The first of the largest scores."""
    index = tl.program_id(0)
    chunks = tl.arange(0, CHUNKS_PAD)
    at = index * num_chunks + chunks
    inside = chunks < num_chunks
    tops_of = tl.load(tops + at, mask=inside, other=float("-inf"))
    top = tl.max(tops_of, 0)
    firsts = tl.load(bests + at, mask=inside & (tops_of == top), other=NO_TOKEN)
    # Beside a largest score of +inf or -inf a difference is NaN, and so the sum.
    shares = tl.exp(tops_of.to(tl.float64) - top.to(tl.float64))
    rest = tl.sum(tl.load(rests + at, mask=inside, other=0.0) * shares, 0)
    tl.store(drawn + index, tl.min(firsts, 0).to(tl.int64))
    tl.store(logprobs + index, logprob_of(top, top, rest + rest_below(tops_of, top)))


@triton.jit
def draw_from_all(
    scores, rows, temperatures, uniforms, tops, masses, rests, drawn, logprobs,
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
    at = index * num_chunks + chunks
    inside = chunks < num_chunks
    rest = tl.sum(tl.load(rests + at, mask=inside, other=0.0), 0)
    tops_of = tl.load(tops + at, mask=inside, other=float("-inf"))
    num_tops = tl.sum((tops_of == top).to(tl.int32), 0)
    tl.store(logprobs + index, logprob_of(own, top, rest + (num_tops - 1).to(tl.float64)))


@triton.jit
def logprob_of(score, top, rest):
    """Rounded to float32, in float64."""
    # log(1 + rest), with what the sum loses of the rest.
    total = 1.0 + rest
    log_total = tl.log(total) + (rest - (total - 1.0)) / total
    logprob = (score.to(tl.float64) - top.to(tl.float64)) - log_total
    return (logprob.to(tl.float32) + 0.0).to(tl.float64)  # no -0


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
    """Grid (rows of the group): one token, and its log-probability among those that are left.

    The smallest score that stays is found by bisection over the 32 bits of a score, whose order is
    that of integers. Each step adds up what lies above the middle: counts for top-k and min-p,
    masses for top-p. A row is listed by its candidates if the cut surely lies among them, otherwise
    whole.

        tokens      what is listed: _listed's arguments from `row` to `unit`
        candidates  scores, masses and token ids, [CAPACITY] each, of which the first `found` count
    """
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
    place = tl.load(rows + index)
    top = row_top(tops, index, num_chunks, CHUNKS_PAD)
    found = tl.load(num_found + index)
    found_scores = found_scores + index * CAPACITY
    found_masses = found_masses + index * CAPACITY
    enough = _is_enough(found_masses, found, filters, total, TILE)
    row = scores + place * width
    temperature = tl.load(temperatures + index)
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
    rest = _rest_above(tokens, cut, TILE)
    rest += tl.exp(cut.to(tl.float64) - top.to(tl.float64)) * num_tied.to(tl.float64)
    tl.store(logprobs + index, logprob_of(score, top, rest))


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
    low = tl.zeros((), tl.int64) + _LOWEST_KEY
    num_tied = tl.zeros((), tl.int32) + _ALL_TIED
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
    above = tl.zeros((), tl.float64)
    each = tl.zeros((), tl.float32)
    num_equal = tl.zeros((), tl.int32)
    for start in range(0, tokens[4], TILE):
        score, mass = _listed(tokens, start + tl.arange(0, TILE))
        above += tl.sum(tl.where(score > cut, mass, 0.0).to(tl.float64), 0)
        is_equal = score == cut
        each = tl.maximum(each, tl.max(tl.where(is_equal, mass, 0.0), 0))
        num_equal += tl.sum(is_equal.to(tl.int32), 0)
    return above, each.to(tl.float64), num_equal


@triton.jit
def _rest_above(tokens, cut, TILE: tl.constexpr):
    """The weights above a score, without the 1 of a largest one, in float64.

    Where the largest score is the cut itself it is taken from those that are as large: -1.
    """
    top = tokens[7]
    rest = tl.zeros((), tl.float64)
    num_tops = tl.zeros((), tl.int32)
    for start in range(0, tokens[4], TILE // 4):  # doubles take more registers
        score, _ = _listed(tokens, start + tl.arange(0, TILE // 4))
        weight = tl.exp(score.to(tl.float64) - top.to(tl.float64))
        rest += tl.sum(tl.where((score > cut) & (score < top), weight, 0.0), 0)
        num_tops += tl.sum(((score > cut) & (score == top)).to(tl.int32), 0)
    return rest + (num_tops - 1).to(tl.float64)


@triton.jit
def _first_above(tokens, cut, num_going, target, TILE: tl.constexpr):
    """The first place up to which the masses that stay exceed the target, and its score.

    Of the tokens equal to the cut the first `num_going` go.
    """
    lanes = tl.arange(0, TILE)
    at = tl.full((), -1, tl.int32)
    start = tl.full((), 0, tl.int32)
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


# Of a row: what one program reads at a time, in the passes over chunks and in the search.
_TILE = 2048


_NUM_WARPS = 8


_BUCKETS = 128


# Candidates of a row, at most. A row whose filters keep more is searched whole.
_CAPACITY = 4096


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What all launches for one group share."""

    scores: Tensor  # [num_rows, width], of the step
    rows: Tensor  # [n] int64, of the group
    temperature: Tensor  # [n]

    @property
    def width(self) -> int:
        return self.scores.shape[-1]

    @property
    def num_chunks(self) -> int:
        return -(-self.width // _CHUNK)

    @property
    def unit(self) -> float:
        """The mass of the weight 1."""
        return 2.0 ** mass_bits(self.width)

    @property
    def grid(self) -> tuple[int, int]:
        return self.num_chunks, len(self.rows)

    def scratch(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory for each row of the group."""
        return self.scores.new_empty((len(self.rows), *shape), dtype=dtype)


class TritonChooser:
    """Chooses the tokens that `choose_by_torch` does.

    max_rows: of a step; more are taken, at the cost of an allocation
    """

    def __init__(self, device: torch.device, max_rows: int, launch: Launch = launch) -> None:
        self._launch = launch
        self._places = torch.arange(max_rows, device=device)
        # Filters that are off, for the rows of any group.
        self._off = (
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.ones(1, dtype=torch.float64, device=device),
            torch.zeros(1, dtype=torch.float32, device=device),
        )

    def __call__(self, group: Group, scores: Tensor, uniforms: Tensor) -> Choice:
        """See `Choose`."""
        if group.top is not None or group.filters.typical_p is not None:
            return choose_by_torch(group, scores, uniforms)
        call = _Call(scores, self._rows_of(group), group.temperature)
        tokens = call.scratch(dtype=torch.int64)
        logprobs = call.scratch(dtype=torch.float64)
        if group.kind is Kind.GREEDY:
            self._take_best(call, tokens, logprobs)
        elif group.kind is Kind.PLAIN:
            self._draw_from_all(call, uniforms, tokens, logprobs)
        else:
            self._draw_filtered(call, group.filters, uniforms, tokens, logprobs)
        return Choice(tokens, logprobs, None, None)

    def _take_best(self, call: _Call, tokens: Tensor, logprobs: Tensor) -> None:
        tops = call.scratch(call.num_chunks)
        bests = call.scratch(call.num_chunks, dtype=torch.int32)
        rests = call.scratch(call.num_chunks, dtype=torch.float64)
        self._run(
            chunk_bests,
            call.grid,
            call.scores,
            call.rows,
            tops,
            bests,
            rests,
            call.width,
            CHUNK=_CHUNK,
        )
        self._run(
            take_best,
            (len(call.rows),),
            tops,
            bests,
            rests,
            tokens,
            logprobs,
            call.num_chunks,
            CHUNKS_PAD=padded(call.num_chunks),
        )

    def _draw_from_all(
        self, call: _Call, uniforms: Tensor, tokens: Tensor, logprobs: Tensor
    ) -> None:
        tops, masses, rests, _ = self._weigh(call, num_buckets=0)
        self._run(
            draw_from_all,
            (len(call.rows),),
            call.scores,
            call.rows,
            call.temperature,
            uniforms,
            tops,
            masses,
            rests,
            tokens,
            logprobs,
            call.width,
            call.num_chunks,
            call.unit,
            CHUNK=_CHUNK,
            CHUNKS_PAD=padded(call.num_chunks),
        )

    def _draw_filtered(
        self, call: _Call, filters: Filters, uniforms: Tensor, tokens: Tensor, logprobs: Tensor
    ) -> None:
        tops, masses, _, counts = self._weigh(call, num_buckets=_BUCKETS)
        num_rows = len(call.rows)
        num_chunks = call.num_chunks
        unit = call.unit
        columns = [
            off.expand(num_rows) if values is None else values
            for values, off in zip(filters.of_prefixes, self._off, strict=True)
        ]
        strides = [column.stride(0) for column in columns]
        found = (
            call.scratch(_CAPACITY),
            call.scratch(_CAPACITY),
            call.scratch(_CAPACITY, dtype=torch.int32),
            call.scratch(dtype=torch.int32),
        )
        self._run(
            gather_candidates,
            call.grid,
            call.scores,
            call.rows,
            call.temperature,
            columns[0],
            tops,
            counts,
            *found,
            call.width,
            num_chunks,
            unit,
            strides[0],
            WANTED=WIDE,
            CAPACITY=_CAPACITY,
            CHUNK=_CHUNK,
            CHUNKS_PAD=padded(num_chunks),
            BUCKETS=_BUCKETS,
        )
        self._run(
            draw_filtered,
            (num_rows,),
            call.scores,
            call.rows,
            call.temperature,
            uniforms,
            *columns,
            tops,
            masses,
            *found,
            tokens,
            logprobs,
            call.width,
            num_chunks,
            unit,
            *strides,
            CAPACITY=_CAPACITY,
            TILE=_TILE,
            CHUNKS_PAD=padded(num_chunks),
        )

    def _weigh(self, call: _Call, num_buckets: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Each chunk's largest score, mass, rest and counts, see `chunk_masses`."""
        tops = call.scratch(call.num_chunks)
        masses = call.scratch(call.num_chunks, dtype=torch.float64)
        rests = call.scratch(call.num_chunks, dtype=torch.float64)
        counts = call.scratch(call.num_chunks, num_buckets, dtype=torch.int32)
        self._run(
            chunk_tops,
            call.grid,
            call.scores,
            call.rows,
            call.temperature,
            tops,
            call.width,
            CHUNK=_CHUNK,
        )
        self._run(
            chunk_masses,
            call.grid,
            call.scores,
            call.rows,
            call.temperature,
            tops,
            masses,
            rests,
            counts,
            call.width,
            call.num_chunks,
            call.unit,
            CHUNK=_CHUNK,
            CHUNKS_PAD=padded(call.num_chunks),
            BUCKETS=num_buckets,
        )
        return tops, masses, rests, counts

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        # A fused multiplication and addition rounds once where torch rounds twice.
        self._launch(
            kernel, grid, *arguments, enable_fp_fusion=False, num_warps=_NUM_WARPS, **constants
        )

    def _rows_of(self, group: Group) -> Tensor:
        if group.rows is not None:
            return group.rows
        num_rows = len(group.places)
        if num_rows > len(self._places):
            self._places = torch.arange(num_rows, device=self._places.device)
        return self._places[:num_rows]
