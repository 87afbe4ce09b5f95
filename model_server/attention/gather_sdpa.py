"""Paged attention on any GPU by gather and SDPA, until a kernel of our own replaces it.

All decodes of a step are one padded batch, since kernel launches dominate there; prompt chunks are
computed one by one. Nothing here is specific to CUDA, so tests run it on a CPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_server.attention.base import DEFAULT_BLOCK_SIZE, LayerOptions, TokenMajorLayout, scatter
from model_server.attention.sdpa import (
    StepPlans,
    Tile,
    attend_tile,
    plan_tiles,
    soft_capped,
    softmax_with_sinks,
)
from model_server.engine.kv_cache import LayerCache
from model_server.engine.step import StepInputs


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
    """Gather and SDPA with every feature, on whatever device the cache is."""

    name = "cuda"

    def __init__(self, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        super().__init__(block_size)
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
        plan = self._plans.get(step, options)
        output = query.new_empty((*query.shape[:2], value.shape[-1]))
        if plan.decodes is not None:
            output[plan.decodes.rows] = _attend_decodes(query, cache, plan.decodes, options)
        for tile in plan.tiles:
            output[tile.rows] = attend_tile(query[tile.rows], cache, tile, options)
        return output

    def _plan(self, step: StepInputs, options: LayerOptions) -> AttentionPlan:
        decodes = [seq for seq, query_len in enumerate(step.query_lens) if query_len == 1]
        chunks = [seq for seq, query_len in enumerate(step.query_lens) if query_len > 1]
        return AttentionPlan(
            decodes=_plan_decodes(step, decodes, options, self.block_size) if decodes else None,
            tiles=plan_tiles(step, chunks, options, self.block_size),
        )


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
