# mypy: disable-error-code="no-untyped-def"
"""Attention of sequences with several queries each over a paged pool.

    a tile's rows:  | query 0: heads of a key head | query 1: heads ... |
    its keys:       from the first that its first query sees to its last query's own

Keys are taken in tiles that begin at multiples of the tile's length, so a row's bits do not depend
on how its prompt was cut. Sequences with one query are left alone: they belong to paged_decode.
"""

import triton
import triton.language as tl
from torch import Tensor

from model_server.attention.base import LayerCache, LayerOptions
from model_server.engine.step import StepInputs
from model_server.kernels.launch import Launch, launch, padded
from model_server.kernels.running_softmax import (
    LOG2E,
    MASKED,
    UNBOUNDED,
    blocks_of,
    first_key,
    load_keys,
    load_values,
    score_tile,
    take_in_tile,
)

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
def _seen(tokens, positions, window_len, chunk_len, IS_BOUNDED: tl.constexpr):
    """Which tokens the queries at these positions see, [positions, tokens]."""
    is_seen = tokens[None, :] <= positions[:, None]
    if IS_BOUNDED:
        firsts = first_key(positions, window_len, chunk_len)
        is_seen = is_seen & (tokens[None, :] >= firsts[:, None])
    return is_seen


@triton.jit(do_not_specialize=["num_seqs", "max_blocks", "window_len", "chunk_len"])
def prefill(
    query, keys, values, block_tables, context_lens, cu_query_lens, sinks, output,
    scale, softcap, window_len, chunk_len, num_seqs, max_blocks,
    GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    IS_BOUNDED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (key heads, num_tokens // QUERIES + num_seqs); tiles that are too many leave at once."""
    QUERIES: tl.constexpr = ROWS // GROUP
    head, tile, num_kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    seq, begin, query_len, first_query = _sequence_of(cu_query_lens, tile, num_seqs, QUERIES)
    if (first_query >= query_len) | (query_len == 1):
        return
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM_PADDED)
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
    top, total = tl.full((ROWS,), MASKED, tl.float32), tl.zeros((ROWS,), tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + places, mask=rows < QUERIES * GROUP, other=0.0).to(tl.float32)
        top, total = sink * LOG2E, total + 1.0
    sums = tl.zeros((ROWS, VALUE_PADDED), tl.float32)
    lowest = first_key(cached_len + first_query, window_len, chunk_len)
    stop = cached_len + tl.minimum(first_query + QUERIES, query_len)
    for offset in tl.range(lowest // TILE * TILE, stop, TILE, num_stages=STAGES):
        tokens = offset + tl.arange(0, TILE)
        # Blocks before the first key may be another sequence's by now.
        is_there = (tokens >= lowest) & (tokens < stop)
        blocks = blocks_of(block_tables + seq * max_blocks, tokens, is_there, BLOCK_SIZE)
        k = load_keys(keys, blocks, tokens, is_there, head, num_kv_heads, dims, DIM, BLOCK_SIZE)
        is_seen = _seen(tokens, cached_len + index, window_len, chunk_len, IS_BOUNDED)
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
    tiles = _tiles(max(head_dim, value_dim))
    launch(
        prefill,
        (num_kv_heads, num_tokens // (tiles["ROWS"] // group) + num_seqs),
        *(query, cache.keys, cache.values, step.block_tables),
        *(step.device_context_lens, step.cu_query_lens),
        *(output if options.sinks is None else options.sinks, output),
        *(options.scale, options.softcap or 1.0),
        *(options.window_len or UNBOUNDED, options.chunk_len or UNBOUNDED, num_seqs, max_blocks),
        GROUP=group,
        DIM=head_dim,
        DIM_PADDED=padded(head_dim, _MIN_DIM),
        VALUE_DIM=value_dim,
        VALUE_PADDED=padded(value_dim, _MIN_DIM),
        BLOCK_SIZE=block_size,
        IS_BOUNDED=options.window_len is not None or options.chunk_len is not None,
        HAS_SOFTCAP=options.softcap is not None,
        HAS_SINKS=options.sinks is not None,
        **tiles,
    )


def _tiles(dim: int) -> dict[str, int]:
    """The largest without spills for sm_80, sm_90 and sm_100; what pads a head takes registers."""
    if dim > 128:
        rows, tile, num_warps = 64, 32, 8
    elif dim != padded(dim):
        rows, tile, num_warps = 128, 32, 8
    elif dim == 128:
        rows, tile, num_warps = 128, 64, 8
    else:
        rows, tile, num_warps = 64, 64, 4
    return {"ROWS": rows, "TILE": tile, "STAGES": 3, "num_warps": num_warps}
