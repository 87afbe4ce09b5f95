"""Attention by torch's scaled_dot_product_attention over gathered keys and values, tile by tile.

    a tile's keys:  | before every window: not gathered | gathered, masked per query | (later) |
                    0                                   first_key                    end

Heads that share a key head are packed as query rows, [kv_heads, query_len * group, dim], so that
keys and values are never repeated. SDPA has neither softcap nor sinks: they take a float32 softmax
of our own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_server.attention.base import (
    DEFAULT_BLOCK_SIZE,
    LayerOptions,
    TokenMajorLayout,
    gather,
    scatter,
)
from model_server.engine.kv_cache import LayerCache
from model_server.engine.step import StepInputs

# Scores, or mask bits, of a tile per head, where they are written out: 4 MiB of float32.
MAX_TILE_SCORES = 1 << 20

T = TypeVar("T")


class StepPlans(Generic[T]):
    """The plans of a step, made once and used by each of its layers.

    Layers differ in the keys that they see and in whether SDPA computes them, so a step has a plan
    for each such kind. Keeps the plans of the last step only; used by one thread.
    """

    def __init__(self, make: Callable[[StepInputs, LayerOptions], T]) -> None:
        self._make = make
        self._step: StepInputs | None = None
        self._plans: dict[tuple[int | None, int | None, bool], T] = {}

    def get(self, step: StepInputs, options: LayerOptions) -> T:
        """The plan of this step for layers of this kind."""
        if step is not self._step:
            self._step, self._plans = step, {}
        kind = (options.window_len, options.chunk_len, options.is_plain)
        if kind not in self._plans:
            self._plans[kind] = self._make(step, options)
        return self._plans[kind]


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Consecutive queries of one sequence and the keys that any of them sees."""

    rows: slice  # of the step
    blocks: Tensor  # [num_blocks] int32, those that hold the keys
    keys: slice  # of the tokens in `blocks`
    mask: Tensor | None  # [query_len, num_keys] bool; None when all is seen, or is_causal
    is_causal: bool  # as many keys as queries, each query sees those up to itself


def visible(queries: range, keys: range, options: LayerOptions, device: torch.device) -> Tensor:
    """Which keys each query sees: [len(queries), len(keys)] bool, both ranges being positions."""
    query = torch.arange(queries.start, queries.stop, device=device)[:, None]
    key = torch.arange(keys.start, keys.stop, device=device)
    mask = key <= query
    if options.window_len is not None:
        mask &= key > query - options.window_len
    if options.chunk_len is not None:
        mask &= key // options.chunk_len == query // options.chunk_len
    return mask


def plan_tiles(
    step: StepInputs,
    seqs: Iterable[int],
    options: LayerOptions,
    block_size: int,
    max_scores: int = MAX_TILE_SCORES,
) -> list[Tile]:
    """Cut the named sequences of a step into tiles of at most `max_scores` a head.

    A prompt from its first token is one tile of any size: SDPA needs no mask for it.
    """
    # From the host's numbers: reading the GPU's copy would wait for its queue.
    first_rows = list(accumulate(step.query_lens, initial=0))
    tiles = []
    for seq in seqs:
        end, query_len = step.context_lens[seq], step.query_lens[seq]
        positions = range(end - query_len, end)
        is_one_tile = options.is_plain and _is_causal(positions, options)
        tile_len = query_len if is_one_tile else max(1, max_scores // end)
        for start in range(0, query_len, tile_len):
            queries = positions[start : start + tile_len]
            first_row = first_rows[seq] + start
            rows = slice(first_row, first_row + len(queries))
            tiles.append(_tile(rows, queries, step.block_tables[seq], options, block_size))
    return tiles


def _is_causal(queries: range, options: LayerOptions) -> bool:
    """Whether each query sees the keys from the first query's own up to itself, and no others."""
    first_seen = options.first_key(queries[0]), options.first_key(queries[-1])
    return first_seen == (queries[0], queries[0])


def _tile(
    rows: slice, queries: range, block_table: Tensor, options: LayerOptions, block_size: int
) -> Tile:
    keys = range(options.first_key(queries[0]), queries.stop)
    is_causal = len(queries) > 1 and _is_causal(queries, options)
    needs_mask = len(queries) > 1 and not is_causal
    first_block, offset = divmod(keys.start, block_size)
    return Tile(
        rows=rows,
        blocks=block_table[first_block : -(-keys.stop // block_size)],
        keys=slice(offset, offset + len(keys)),
        mask=visible(queries, keys, options, block_table.device) if needs_mask else None,
        is_causal=is_causal,
    )


def attend_tile(query: Tensor, cache: LayerCache, tile: Tile, options: LayerOptions) -> Tensor:
    """query [query_len, heads, dim] to [query_len, heads, value_dim], in the query's dtype."""
    keys, values = gather(cache, tile.blocks, tile.keys)
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)  # [kv_heads, num_keys, dim]
    if not options.is_plain:
        return _attend_explicitly(query, keys, values, tile, options)
    if tile.is_causal:
        heads_first = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys[None],
            values[None],
            is_causal=True,
            scale=options.scale,
            enable_gqa=query.shape[1] != keys.shape[0],
        )
        return heads_first[0].transpose(0, 1)
    group = query.shape[1] // keys.shape[0]
    mask = tile.mask
    if mask is not None and group > 1:
        mask = mask.repeat_interleave(group, dim=0)
    packed = scaled_dot_product_attention(
        pack(query, keys.shape[0])[None],
        keys[None],
        values[None],
        attn_mask=mask,
        scale=options.scale,
    )
    return unpack(packed[0], query.shape[0])


def pack(query: Tensor, num_kv_heads: int) -> Tensor:
    """[query_len, heads, dim] to [kv_heads, query_len * group, dim]; a view when query_len is 1."""
    query_len, num_heads, dim = query.shape
    grouped = query.reshape(query_len, num_kv_heads, num_heads // num_kv_heads, dim)
    return grouped.transpose(0, 1).reshape(num_kv_heads, -1, dim)


def unpack(packed: Tensor, query_len: int) -> Tensor:
    """[kv_heads, query_len * group, dim] back to [query_len, heads, dim]."""
    num_kv_heads, _, dim = packed.shape
    return packed.view(num_kv_heads, query_len, -1, dim).transpose(0, 1).reshape(query_len, -1, dim)


def _attend_explicitly(
    query: Tensor, keys: Tensor, values: Tensor, tile: Tile, options: LayerOptions
) -> Tensor:
    query_len = query.shape[0]
    num_kv_heads, num_keys, _ = keys.shape
    packed = pack(query, num_kv_heads).float()
    scores = (packed @ keys.float().transpose(1, 2)).view(num_kv_heads, query_len, -1, num_keys)
    scores = soft_capped(scores * options.scale, options.softcap)
    mask = tile.mask
    if tile.is_causal:
        mask = torch.ones(query_len, num_keys, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
    weights = softmax_with_sinks(scores, options.sinks, num_kv_heads)
    packed = weights.flatten(1, 2) @ values.float()
    return unpack(packed, query_len).to(query.dtype)


def soft_capped(scores: Tensor, softcap: float | None) -> Tensor:
    """softcap * tanh(scores / softcap), or the scores as they are."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None, num_kv_heads: int) -> Tensor:
    """Softmax over the last axis of [.., kv_heads, queries, group, keys]; sinks [heads] join it."""
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.float().view(num_kv_heads, 1, -1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]


class CpuAttention(TokenMajorLayout):
    """Packed SDPA sequence by sequence, for CPUs without a compiler: padding a batch never pays.

    Several times faster than the reference and slower than the operator of `cpu_op.py`. A
    sequence's results do not depend on its batch mates, but their last bits may depend on the
    length of its chunks: SDPA sums in another order for another number of queries.
    """

    name = "cpu"

    def __init__(
        self, block_size: int = DEFAULT_BLOCK_SIZE, max_tile_scores: int = MAX_TILE_SCORES
    ) -> None:
        super().__init__(block_size)
        self._max_tile_scores = max_tile_scores
        self._plans = StepPlans(self._plan)

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
        tiles = self._plans.get(step, options)
        return torch.cat([attend_tile(query[tile.rows], cache, tile, options) for tile in tiles])

    def _plan(self, step: StepInputs, options: LayerOptions) -> list[Tile]:
        seqs = range(step.num_seqs)
        return plan_tiles(step, seqs, options, self.block_size, self._max_tile_scores)
