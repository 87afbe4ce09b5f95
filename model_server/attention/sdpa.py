"""Attention by torch's scaled_dot_product_attention over gathered keys and values.

It serves where neither Triton's kernels nor the C++ operator can be compiled, and any GPU. Prompt
chunks are computed tile by tile:

    a tile's keys:  | before every window: not gathered | gathered, masked per query | (later) |
                    0                                   first_key                    end

Heads that share a key head are packed as query rows, [kv_heads, query_len * group, dim], so that
keys and values are never repeated. SDPA has neither softcap nor sinks: they take a float32 softmax
of our own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_server.attention.base import (
    DEFAULT_BLOCK_SIZE,
    LayerCache,
    LayerOptions,
    TokenMajorLayout,
    gather,
    scatter,
)
from model_server.step import StepInputs

# Scores, or mask bits, of a tile per head, where they are written out: 4 MiB of float32.
MAX_TILE_SCORES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Consecutive queries of one sequence and the keys that any of them sees."""

    rows: slice  # of the step
    blocks: Tensor  # [num_blocks] int32, those that hold the keys
    keys: slice  # of the tokens in `blocks`
    mask: Tensor | None  # [query_len, num_keys] bool; None when all is seen, or is_causal
    is_causal: bool  # as many keys as queries, each query sees those up to itself


def visible(
    queries: range,
    keys: range,
    options: LayerOptions,
    device: torch.device,
    key_ends: Tensor | None = None,
) -> Tensor:
    """Which keys each query sees: [len(queries), len(keys)] bool, both ranges being positions.

    key_ends: [len(queries)], up to which; None: to its own
    """
    query = torch.arange(queries.start, queries.stop, device=device)[:, None]
    key = torch.arange(keys.start, keys.stop, device=device)
    mask = key <= query if key_ends is None else key < key_ends[:, None]
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
    max_scores: int,
) -> list[Tile]:
    """Cut the named sequences of a step into tiles of at most `max_scores` a head.

    A prompt from its first token is one tile of any size: SDPA needs no mask for it, unless some of
    its tokens see later ones.
    """
    # From the host's numbers: reading the GPU's copy would wait for its queue.
    first_rows = list(accumulate(step.query_lens, initial=0))
    tiles = []
    for seq in seqs:
        end = step.context_lens[seq]
        query_len = step.query_lens[seq]
        positions = range(end - query_len, end)
        is_one_tile = options.is_plain and step.key_ends is None and _is_causal(positions, options)
        tile_len = query_len if is_one_tile else max(1, max_scores // end)
        for start in range(0, query_len, tile_len):
            queries = positions[start : start + tile_len]
            first_row = first_rows[seq] + start
            rows = slice(first_row, first_row + len(queries))
            keys = range(options.first_key(queries[0]), queries.stop)
            key_ends = None
            if step.key_ends is not None:
                keys = range(keys.start, end)
                key_ends = step.key_ends[rows]
            tiles.append(
                _tile(rows, queries, keys, step.block_tables[seq], options, block_size, key_ends)
            )
    return tiles


def _is_causal(queries: range, options: LayerOptions) -> bool:
    """Whether each query sees the keys from the first query's own up to itself, and no others."""
    first_seen = options.first_key(queries[0]), options.first_key(queries[-1])
    return first_seen == (queries[0], queries[0])


def _tile(
    rows: slice,
    queries: range,
    keys: range,
    block_table: Tensor,
    options: LayerOptions,
    block_size: int,
    key_ends: Tensor | None,
) -> Tile:
    is_causal = key_ends is None and len(queries) > 1 and _is_causal(queries, options)
    needs_mask = key_ends is not None or (len(queries) > 1 and not is_causal)
    mask = visible(queries, keys, options, block_table.device, key_ends) if needs_mask else None
    first_block, offset = divmod(keys.start, block_size)
    return Tile(
        rows=rows,
        blocks=block_table[first_block : -(-keys.stop // block_size)],
        keys=slice(offset, offset + len(keys)),
        mask=mask,
        is_causal=is_causal,
    )


def attend_tile(query: Tensor, cache: LayerCache, tile: Tile, options: LayerOptions) -> Tensor:
    """query [query_len, heads, dim] to [query_len, heads, value_dim], in the query's dtype."""
    keys, values = gather(cache, tile.blocks, tile.keys)
    keys = keys.transpose(0, 1)
    values = values.transpose(0, 1)  # [kv_heads, num_keys, dim]
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


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBatch:
    """The step's sequences of one query, padded to the most keys that one of them sees."""

    rows: Tensor  # [num_decodes] int64, rows of the step
    slots: Tensor  # [num_decodes, max_keys] int64; past a sequence's end, its last slot again
    mask: Tensor  # [num_decodes, max_keys] bool


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """The parts of a step: decodes together, chunks in tiles."""

    decodes: DecodeBatch | None
    tiles: list[Tile]


class GatherSdpaAttention(TokenMajorLayout):
    """Gather and SDPA with every feature, on whatever device the cache is.

    All decodes of a step are one padded batch, since kernel launches dominate on a GPU. A step has
    a plan for each kind of layers, by the keys that they see and by whether SDPA computes them; the
    plans of the last step are kept. For one thread.
    """

    name = "sdpa"
    pads_decodes = True

    def __init__(
        self, block_size: int = DEFAULT_BLOCK_SIZE, max_tile_scores: int = MAX_TILE_SCORES
    ) -> None:
        super().__init__(block_size)
        self._max_tile_scores = max_tile_scores
        self._step: StepInputs | None = None
        self._plans: dict[tuple[int | None, int | None, bool], AttentionPlan] = {}

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
        plan = self._plan_of(step, options)
        output = query.new_empty((*query.shape[:2], cache.geometry.value_dim))
        if plan.decodes is not None:
            output[plan.decodes.rows] = _attend_decodes(query, cache, plan.decodes, options)
        for tile in plan.tiles:
            output[tile.rows] = attend_tile(query[tile.rows], cache, tile, options)
        return output

    def _plan_of(self, step: StepInputs, options: LayerOptions) -> AttentionPlan:
        if step is not self._step:
            self._step = step
            self._plans = {}
        kind = (options.window_len, options.chunk_len, options.is_plain)
        if kind not in self._plans:
            self._plans[kind] = self._plan(step, options)
        return self._plans[kind]

    def _plan(self, step: StepInputs, options: LayerOptions) -> AttentionPlan:
        seqs = range(step.num_seqs)
        decodes = [seq for seq in seqs if self.pads_decodes and step.query_lens[seq] == 1]
        tiled = sorted(set(seqs).difference(decodes))
        return AttentionPlan(
            decodes=_plan_decodes(step, decodes, options, self.block_size) if decodes else None,
            tiles=plan_tiles(step, tiled, options, self.block_size, self._max_tile_scores),
        )


class CpuAttention(GatherSdpaAttention):
    """Sequence by sequence, for CPUs without a compiler: padding a batch never pays there.

    Several times faster than the reference and slower than the operator of `cpu_op.py`. A
    sequence's results do not depend on its batch mates, but their last bits may depend on the
    length of its chunks: SDPA sums in another order for another number of queries.
    """

    name = "cpu"
    pads_decodes = False


def _plan_decodes(
    step: StepInputs, seqs: list[int], options: LayerOptions, block_size: int
) -> DecodeBatch:
    device = step.block_tables.device
    ends = torch.tensor([step.context_lens[seq] for seq in seqs])[:, None]
    firsts = torch.tensor([options.first_key(step.context_lens[seq] - 1) for seq in seqs])[:, None]
    keys = firsts + torch.arange(int((ends - firsts).max()))
    mask = (keys < ends).to(device)
    keys = torch.minimum(keys, ends - 1).to(device)
    index = torch.tensor(seqs, device=device)
    blocks = step.block_tables[index].long().gather(1, keys // block_size)
    rows = step.cu_query_lens[index].long()
    return DecodeBatch(rows=rows, slots=blocks * block_size + keys % block_size, mask=mask)


def _attend_decodes(
    query: Tensor, cache: LayerCache, decodes: DecodeBatch, options: LayerOptions
) -> Tensor:
    """[num_decodes, heads, value_dim]; each key head's group of queries is one matrix."""
    num_kv_heads = cache.geometry.num_kv_heads
    num_decodes, max_keys = decodes.slots.shape
    slots = decodes.slots.flatten()
    keys = cache.keys.flatten(0, 1).index_select(0, slots)
    values = cache.values.flatten(0, 1).index_select(0, slots)
    keys = keys.view(num_decodes, max_keys, *keys.shape[1:]).transpose(1, 2)
    values = values.view(num_decodes, max_keys, *values.shape[1:]).transpose(1, 2)
    rows = query.index_select(0, decodes.rows)
    rows = rows.view(num_decodes, num_kv_heads, -1, rows.shape[-1])  # [.., group, dim]
    mask = decodes.mask[:, None, None]
    if options.is_plain:
        attended = scaled_dot_product_attention(
            rows, keys, values, attn_mask=mask, scale=options.scale
        )
    else:
        scores = rows.float() @ keys.float().transpose(2, 3) * options.scale
        scores = soft_capped(scores, options.softcap).masked_fill(~mask, float("-inf"))
        weights = softmax_with_sinks(scores[:, :, None], options.sinks, num_kv_heads)[:, :, 0]
        attended = (weights @ values.float()).to(query.dtype)
    return attended.reshape(num_decodes, query.shape[1], -1)
