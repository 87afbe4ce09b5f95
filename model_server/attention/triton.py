"""Paged attention by Triton kernels, on CUDA: nothing is gathered, padded or read on the host.

    sequences with one query:      decode_splits -> merge_splits
    sequences with several:        prefill
    both leave the other's alone

The softmax goes tile of keys by tile of keys (Milakov and Gimelshein, 2018), with

    top:    the largest score so far, as a logarithm to the base of 2
    total:  the sum of the weights, relative to `top`
    sums:   of values by their weights, relative to `top`

The order of the sums is that of the tiles, which depends on the sequence alone: a row's bits do not
depend on its batch, nor on how its prompt was cut.
"""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from model_server.attention.base import (
    DEFAULT_BLOCK_SIZE,
    LayerCache,
    LayerGeometry,
    LayerOptions,
    TokenMajorLayout,
    scatter,
)
from model_server.step import StepInputs
from model_server.triton_launch import Launch, launch, padded

# numpy has no bfloat16, so Triton's interpreter cannot multiply matrices of it.
_WIDENS = tl.constexpr(triton.knobs.runtime.interpret)


LOG2E = tl.constexpr(1.4426950408889634)


MASKED = tl.constexpr(-1.0e30)  # finite: the difference of two of them is 0, not NaN


UNBOUNDED = 1 << 30  # a window or a chunk longer than any sequence


@triton.jit
def multiply_add(left, right, sums):
    """`sums` and the product of two tiles, in float32."""
    if _WIDENS:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, sums, input_precision="ieee")


@triton.jit
def first_key(position, window_len, chunk_len):
    """The first key position that a query at `position` sees; see LayerOptions.first_key."""
    return tl.maximum(tl.maximum(position - window_len + 1, 0), position // chunk_len * chunk_len)


@triton.jit
def blocks_of(block_table, tokens, is_there, BLOCK_SIZE: tl.constexpr):
    """The blocks of a sequence's tokens, [len(tokens)] int64."""
    return tl.load(block_table + tokens // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)


@triton.jit
def load_keys(
    keys, blocks, tokens, is_there, head, num_kv_heads, dims,
    DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Keys of a head, [dims, tokens], of a pool [num_blocks, BLOCK_SIZE, num_kv_heads, DIM]."""
    token_stride = num_kv_heads * DIM
    places = blocks * (BLOCK_SIZE * token_stride) + (tokens % BLOCK_SIZE) * token_stride
    return tl.load(
        keys + head * DIM + places[None, :] + dims[:, None],
        mask=is_there[None, :] & (dims[:, None] < DIM),
        other=0.0,
    )


@triton.jit
def load_values(
    values, blocks, tokens, is_there, head, num_kv_heads, dims,
    DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """As `load_keys`, [tokens, dims]."""
    token_stride = num_kv_heads * DIM
    places = blocks * (BLOCK_SIZE * token_stride) + (tokens % BLOCK_SIZE) * token_stride
    return tl.load(
        values + head * DIM + places[:, None] + dims[None, :],
        mask=is_there[:, None] & (dims[None, :] < DIM),
        other=0.0,
    )


@triton.jit
def score_tile(query, keys, is_seen, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """query [rows, dim] and keys [dim, tile] to scores [rows, tile], as logarithms of weights."""
    scores = (
        multiply_add(query, keys, tl.zeros((query.shape[0], keys.shape[1]), tl.float32)) * scale
    )
    if HAS_SOFTCAP:
        scores = softcap * (
            1.0 - 2.0 / (tl.exp(tl.minimum(2.0 * scores / softcap, 80.0)) + 1.0)
        )  # tanh
    return tl.where(is_seen, scores * LOG2E, MASKED)


@triton.jit
def take_in_tile(scores, values, is_seen, top, total, sums):
    """A tile of scores and of values, [tile, value_dim]."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.where(is_seen, tl.exp2(scores - new_top[:, None]), 0.0)
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, 1)
    sums = multiply_add(weights.to(values.dtype), values, sums * shrink[:, None])
    return new_top, total, sums


SPLIT_LEN = 256


_NUM_MERGED = 8  # splits at once


# A GPU's processors hold some programs each; more of them only wait.
_WANTED_PROGRAMS = 4 * 132


# Matrix instructions take 16 rows at least.
_MIN_ROWS = 16


@triton.jit(do_not_specialize=["max_splits", "max_blocks", "window_len", "chunk_len"])
def decode_splits(
    query, keys, values, block_tables, context_lens, cu_query_lens, partial, partial_logs,
    scale, softcap, window_len, chunk_len, max_blocks, max_splits,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr, TILE: tl.constexpr, HAS_SOFTCAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (key heads, programs, sequences); a program has every so-many-th split.

        a sequence's keys:  | split 0 | split 1 | split 2 ... |     256 tokens each
                            one program a split and key head; then they are merged in rising order

    A split is as long whatever the batch is. All query heads of a key head are one tile, which
    reads the keys once (Flash-Decoding, Dao et al., 2023).
    """
    head = tl.program_id(0)
    seq = tl.program_id(2).to(tl.int64)
    num_kv_heads = tl.num_programs(0)
    row = tl.load(cu_query_lens + seq).to(tl.int64)
    is_decode = tl.load(cu_query_lens + seq + 1) - row == 1
    context_len = tl.where(is_decode, tl.load(context_lens + seq), 0)
    first = first_key(context_len - 1, window_len, chunk_len)
    rows = tl.arange(0, GROUP_PADDED)
    dims = tl.arange(0, DIM_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    places = head * GROUP + rows
    q = tl.load(
        query + (row * num_kv_heads * GROUP + places)[:, None] * DIM + dims[None, :],
        mask=(rows[:, None] < GROUP) & (dims[None, :] < DIM),
        other=0.0,
    )
    split = first // SPLIT + tl.program_id(1)
    while split * SPLIT < context_len:
        top = tl.full((GROUP_PADDED,), MASKED, tl.float32)
        total = tl.zeros((GROUP_PADDED,), tl.float32)
        sums = tl.zeros((GROUP_PADDED, VALUE_PADDED), tl.float32)
        for offset in tl.range(0, SPLIT, TILE, num_stages=STAGES):
            tokens = split * SPLIT + offset + tl.arange(0, TILE)
            is_seen = (tokens < context_len) & (tokens >= first)
            blocks = blocks_of(block_tables + seq * max_blocks, tokens, is_seen, BLOCK_SIZE)
            k = load_keys(
                keys, blocks, tokens, is_seen, head, num_kv_heads, dims, DIM, BLOCK_SIZE
            )  # fmt: skip
            scores = score_tile(q, k, is_seen[None, :], scale, softcap, HAS_SOFTCAP)
            v = load_values(
                values, blocks, tokens, is_seen, head, num_kv_heads, value_dims,
                VALUE_DIM, BLOCK_SIZE,
            )  # fmt: skip
            top, total, sums = take_in_tile(scores, v, is_seen[None, :], top, total, sums)
        out = (seq * num_kv_heads * GROUP + places) * max_splits + split
        tl.store(
            partial + out[:, None] * VALUE_DIM + value_dims[None, :],
            sums / total[:, None],
            mask=(rows[:, None] < GROUP) & (value_dims[None, :] < VALUE_DIM),
        )
        tl.store(partial_logs + out, top + tl.log2(total), mask=rows < GROUP)
        split += tl.num_programs(1)


@triton.jit(do_not_specialize=["max_splits", "window_len", "chunk_len"])
def merge_splits(
    partial, partial_logs, context_lens, cu_query_lens, sinks, output,
    window_len, chunk_len, max_splits,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, SPLIT: tl.constexpr,
    WIDTH: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Grid (query heads, sequences): WIDTH splits of a head at a time."""
    head = tl.program_id(0)
    seq = tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(0)
    row = tl.load(cu_query_lens + seq).to(tl.int64)
    is_decode = tl.load(cu_query_lens + seq + 1) - row == 1
    context_len = tl.load(context_lens + seq)
    first_split = first_key(context_len - 1, window_len, chunk_len) // SPLIT
    num_splits = tl.where(is_decode, (context_len + SPLIT - 1) // SPLIT, 0)
    dims = tl.arange(0, VALUE_PADDED)
    at = (seq * num_heads + head) * max_splits
    top = tl.full((), MASKED, tl.float32)
    total = tl.zeros((), tl.float32)
    if HAS_SINKS:
        top = tl.load(sinks + head).to(tl.float32) * LOG2E
        total = total + 1.0
    sums = tl.zeros((VALUE_PADDED,), tl.float32)
    start = first_split
    while start < num_splits:
        splits = start + tl.arange(0, WIDTH)
        is_there = splits < num_splits
        logs = tl.load(partial_logs + at + splits, mask=is_there, other=MASKED)
        part = tl.load(
            partial + (at + splits)[:, None] * VALUE_DIM + dims[None, :],
            mask=is_there[:, None] & (dims[None, :] < VALUE_DIM),
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(logs, 0))
        weights = tl.where(is_there, tl.exp2(logs - new_top), 0.0)
        shrink = tl.exp2(top - new_top)
        sums = sums * shrink + tl.sum(part * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        top = new_top
        start += WIDTH
    tl.store(
        output + (row * num_heads + head) * VALUE_DIM + dims,
        sums / tl.maximum(total, 1e-30),
        mask=dims < tl.where(is_decode, VALUE_DIM, 0),
    )


def attend_decodes(
    query: Tensor,
    cache: LayerCache,
    step: StepInputs,
    options: LayerOptions,
    output: Tensor,
    launch: Launch = launch,
) -> None:
    """Write the rows of `output` that belong to sequences with one query.

    query [num_tokens, num_heads, head_dim] and output [num_tokens, num_heads, value_dim] are
    contiguous, keys and values as in TokenMajorLayout. A sequence without a key gives zeros.
    """
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = cache.keys.shape[1:3]
    value_dim = cache.values.shape[3]
    num_seqs, max_blocks = step.block_tables.shape
    max_splits = triton.cdiv(max_blocks * block_size, SPLIT_LEN)
    wanted = triton.cdiv(_WANTED_PROGRAMS, num_kv_heads * num_seqs)
    partial = query.new_empty((num_seqs, num_heads, max_splits, value_dim), dtype=torch.float32)
    logs = query.new_empty((num_seqs, num_heads, max_splits), dtype=torch.float32)
    bounds = (options.window_len or UNBOUNDED, options.chunk_len or UNBOUNDED)
    values = {"VALUE_DIM": value_dim, "VALUE_PADDED": padded(value_dim, _MIN_ROWS)}
    group = num_heads // num_kv_heads
    launch(
        decode_splits,
        (num_kv_heads, min(wanted, max_splits), num_seqs),
        query,
        cache.keys,
        cache.values,
        step.block_tables,
        step.device_context_lens,
        step.cu_query_lens,
        partial,
        logs,
        options.scale,
        options.softcap or 1.0,
        *bounds,
        max_blocks,
        max_splits,
        GROUP=group,
        GROUP_PADDED=padded(group, _MIN_ROWS),
        **{"DIM": head_dim, "DIM_PADDED": padded(head_dim, _MIN_ROWS), **values},
        BLOCK_SIZE=block_size,
        SPLIT=SPLIT_LEN,
        HAS_SOFTCAP=options.softcap is not None,
        **_decode_tiles(head_dim),
    )
    launch(
        merge_splits,
        (num_heads, num_seqs),
        partial,
        logs,
        step.device_context_lens,
        step.cu_query_lens,
        logs if options.sinks is None else options.sinks,
        output,
        *bounds,
        max_splits,
        **values,
        SPLIT=SPLIT_LEN,
        WIDTH=_NUM_MERGED,
        num_warps=4,
        HAS_SINKS=options.sinks is not None,
    )


def _decode_tiles(head_dim: int) -> dict[str, int]:
    """Keys are two loads behind their block table, so that three stages hold one tile of them."""
    return {"TILE": 32 if head_dim > 128 else 64, "STAGES": 3, "num_warps": 4}


_MIN_DIM = 16


@triton.jit
def _sequence_of(cu_query_lens, tile, num_seqs, QUERIES: tl.constexpr):
    """A tile's sequence, its first row of the step, its length, and the tile's first query in it.

    Sequence i begins at tile cu_query_lens[i] // QUERIES + i: that leaves each room enough, and the
    host need not know the lengths.
    """
    low = tl.full((), 0, tl.int32)
    high = low + num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_query_lens + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    begin = tl.load(cu_query_lens + low)
    query_len = tl.load(cu_query_lens + low + 1) - begin
    return low.to(tl.int64), begin, query_len, (tile - (begin // QUERIES + low)) * QUERIES


@triton.jit
def _seen(tokens, positions, ends, window_len, chunk_len, IS_BOUNDED: tl.constexpr):
    """Which tokens the queries at these positions see, up to `ends`: [positions, tokens]."""
    is_seen = tokens[None, :] < ends[:, None]
    if IS_BOUNDED:
        firsts = first_key(positions, window_len, chunk_len)
        is_seen = is_seen & (tokens[None, :] >= firsts[:, None])
    return is_seen


@triton.jit(do_not_specialize=["num_seqs", "max_blocks", "window_len", "chunk_len"])
def prefill(
    query, keys, values, block_tables, context_lens, cu_query_lens, key_ends, sinks, output,
    scale, softcap, window_len, chunk_len, num_seqs, max_blocks,
    GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    IS_BOUNDED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_KEY_ENDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (key heads, num_tokens // QUERIES + num_seqs); tiles that are too many leave at once.

        a tile's rows:  | query 0: heads of a key head | query 1: heads ... |
        its keys:       from the first that its first query sees to its last query's own, or
                        to the last that is seen by tokens that see later ones (`key_ends`)

    Keys are taken in tiles that begin at multiples of the tile's length.
    """
    QUERIES: tl.constexpr = ROWS // GROUP
    head = tl.program_id(0)
    tile = tl.program_id(1)
    num_kv_heads = tl.num_programs(0)
    seq, begin, query_len, first_query = _sequence_of(cu_query_lens, tile, num_seqs, QUERIES)
    if (first_query >= query_len) | (query_len == 1):
        return
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    index = first_query + rows // GROUP
    is_row = (rows < QUERIES * GROUP) & (index < query_len)
    places = head * GROUP + rows % GROUP
    at = (begin + index).to(tl.int64) * num_kv_heads * GROUP + places
    q = tl.load(
        query + at[:, None] * DIM + dims[None, :],
        mask=is_row[:, None] & (dims[None, :] < DIM),
        other=0.0,
    )
    cached_len = tl.load(context_lens + seq) - query_len
    top = tl.full((ROWS,), MASKED, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + places, mask=rows < QUERIES * GROUP, other=0.0).to(tl.float32)
        top = sink * LOG2E
        total = total + 1.0
    sums = tl.zeros((ROWS, VALUE_PADDED), tl.float32)
    lowest = first_key(cached_len + first_query, window_len, chunk_len)
    ends = cached_len + index + 1
    stop = cached_len + tl.minimum(first_query + QUERIES, query_len)
    if HAS_KEY_ENDS:
        ends = tl.load(key_ends + begin + index, mask=is_row, other=0)
        stop = tl.max(ends, 0)
    for offset in tl.range(lowest // TILE * TILE, stop, TILE, num_stages=STAGES):
        tokens = offset + tl.arange(0, TILE)
        # Blocks before the first key may be another sequence's by now.
        is_there = (tokens >= lowest) & (tokens < stop)
        blocks = blocks_of(block_tables + seq * max_blocks, tokens, is_there, BLOCK_SIZE)
        k = load_keys(keys, blocks, tokens, is_there, head, num_kv_heads, dims, DIM, BLOCK_SIZE)
        is_seen = _seen(tokens, cached_len + index, ends, window_len, chunk_len, IS_BOUNDED)
        scores = score_tile(q, k, is_seen, scale, softcap, HAS_SOFTCAP)
        v = load_values(
            values, blocks, tokens, is_there, head, num_kv_heads, value_dims, VALUE_DIM, BLOCK_SIZE
        )  # fmt: skip
        top, total, sums = take_in_tile(scores, v, is_seen, top, total, sums)
    tl.store(
        output + at[:, None] * VALUE_DIM + value_dims[None, :],
        sums / tl.maximum(total, 1e-30)[:, None],
        mask=is_row[:, None] & (value_dims[None, :] < VALUE_DIM),
    )


def attend_prompts(
    query: Tensor,
    cache: LayerCache,
    step: StepInputs,
    options: LayerOptions,
    output: Tensor,
    launch: Launch = launch,
) -> None:
    """Write the rows of `output` that belong to sequences with several queries.

    query [num_tokens, num_heads, head_dim] and output [num_tokens, num_heads, value_dim] are
    contiguous, keys and values as in TokenMajorLayout.
    """
    num_tokens, num_heads, head_dim = query.shape
    block_size, num_kv_heads = cache.keys.shape[1:3]
    value_dim = cache.values.shape[3]
    num_seqs, max_blocks = step.block_tables.shape
    group = num_heads // num_kv_heads
    tiles = _prefill_tiles(max(head_dim, value_dim))
    launch(
        prefill,
        (num_kv_heads, num_tokens // (tiles["ROWS"] // group) + num_seqs),
        query,
        cache.keys,
        cache.values,
        step.block_tables,
        step.device_context_lens,
        step.cu_query_lens,
        step.cu_query_lens if step.key_ends is None else step.key_ends,
        output if options.sinks is None else options.sinks,
        output,
        options.scale,
        options.softcap or 1.0,
        options.window_len or UNBOUNDED,
        options.chunk_len or UNBOUNDED,
        num_seqs,
        max_blocks,
        GROUP=group,
        DIM=head_dim,
        DIM_PADDED=padded(head_dim, _MIN_DIM),
        VALUE_DIM=value_dim,
        VALUE_PADDED=padded(value_dim, _MIN_DIM),
        BLOCK_SIZE=block_size,
        IS_BOUNDED=options.window_len is not None or options.chunk_len is not None,
        HAS_SOFTCAP=options.softcap is not None,
        HAS_SINKS=options.sinks is not None,
        HAS_KEY_ENDS=step.key_ends is not None,
        **tiles,
    )


def _prefill_tiles(dim: int) -> dict[str, int]:
    """The largest without spills for sm_80, sm_90 and sm_100; what pads a head takes registers."""
    if dim > 128:
        return {"ROWS": 64, "TILE": 32, "STAGES": 3, "num_warps": 8}
    if dim != padded(dim):
        return {"ROWS": 128, "TILE": 32, "STAGES": 3, "num_warps": 8}
    if dim == 128:
        return {"ROWS": 128, "TILE": 64, "STAGES": 3, "num_warps": 8}
    return {"ROWS": 64, "TILE": 64, "STAGES": 3, "num_warps": 4}


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


_MAX_DIM = 256


class TritonAttention(TokenMajorLayout):
    """Decodes by splits, prompts by tiles. A row's bits depend on its own sequence alone.

    Of a step it reads on the host no more than which sequences have several queries, so a CUDA
    graph may replay its launches over other contents.
    """

    name = "triton"

    def __init__(self, block_size: int = DEFAULT_BLOCK_SIZE, launch: Launch = launch) -> None:
        super().__init__(block_size)
        self._launch = launch

    @staticmethod
    def unfit_reason(geometry: LayerGeometry, dtype: torch.dtype) -> str | None:
        """Why it cannot serve such layers, or None when it can."""
        if dtype not in _DTYPES:
            return f"keys of {dtype}"
        if max(geometry.head_dim, geometry.value_dim) > _MAX_DIM:
            return f"head_dim {max(geometry.head_dim, geometry.value_dim)} exceeds {_MAX_DIM}"
        return None

    def attend(
        self,
        cache: LayerCache,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: StepInputs,
        options: LayerOptions,
    ) -> Tensor:
        """See AttentionBackend.attend."""
        scatter(cache, key, value, step.slot_mapping)
        return self.read(cache, query, step, options)

    def read(
        self, cache: LayerCache, query: Tensor, step: StepInputs, options: LayerOptions
    ) -> Tensor:
        """See TokenMajorAttention.read."""
        query = query.contiguous()
        output = query.new_empty((*query.shape[:2], cache.geometry.value_dim))
        num_decodes = step.query_lens.count(1)
        if num_decodes:
            attend_decodes(query, cache, step, options, output, self._launch)
        if num_decodes < step.num_seqs:
            attend_prompts(query, cache, step, options, output, self._launch)
        return output
