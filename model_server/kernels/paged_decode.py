# mypy: disable-error-code="no-untyped-def"
"""Attention of sequences with one query each over a paged pool, by splits of their keys.

    a sequence's keys:  | split 0 | split 1 | split 2 ... |     256 tokens each
                        one program a split and key head; then they are merged in rising order

A split is as long whatever the batch is, so a row's bits depend on its own sequence alone. All
query heads of a key head are one tile, which reads the keys once (Flash-Decoding, Dao et al.,
2023). Sequences with more queries, or none, are left alone.
"""

import torch
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
    """Grid (key heads, programs, sequences); a program has every so-many-th split."""
    head, seq = tl.program_id(0), tl.program_id(2).to(tl.int64)
    num_kv_heads = tl.num_programs(0)
    row = tl.load(cu_query_lens + seq).to(tl.int64)
    is_decode = tl.load(cu_query_lens + seq + 1) - row == 1
    context_len = tl.where(is_decode, tl.load(context_lens + seq), 0)
    first = first_key(context_len - 1, window_len, chunk_len)
    rows, dims = tl.arange(0, GROUP_PADDED), tl.arange(0, DIM_PADDED)
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
    head, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
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
        top, total = tl.load(sinks + head).to(tl.float32) * LOG2E, total + 1.0
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
        *(query, cache.keys, cache.values, step.block_tables),
        *(step.device_context_lens, step.cu_query_lens, partial, logs),
        *(options.scale, options.softcap or 1.0, *bounds, max_blocks, max_splits),
        GROUP=group,
        GROUP_PADDED=padded(group, _MIN_ROWS),
        **{"DIM": head_dim, "DIM_PADDED": padded(head_dim, _MIN_ROWS), **values},
        BLOCK_SIZE=block_size,
        SPLIT=SPLIT_LEN,
        HAS_SOFTCAP=options.softcap is not None,
        **_tiles(head_dim),
    )
    launch(
        merge_splits,
        (num_heads, num_seqs),
        *(partial, logs, step.device_context_lens, step.cu_query_lens),
        *(logs if options.sinks is None else options.sinks, output, *bounds, max_splits),
        **values,
        SPLIT=SPLIT_LEN,
        WIDTH=_NUM_MERGED,
        num_warps=4,
        HAS_SINKS=options.sinks is not None,
    )


def _tiles(head_dim: int) -> dict[str, int]:
    """Keys are two loads behind their block table, so that three stages hold one tile of them."""
    return {"TILE": 32 if head_dim > 128 else 64, "STAGES": 3, "num_warps": 4}
