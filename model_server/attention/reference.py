"""Paged attention in plain torch: the oracle that every other backend is held against.

One sequence at a time: gather its keys and values, one dense score matrix in float32, a mask, a
softmax. Runs on every device, as clearly as it can and with no regard to speed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model_server.attention.base import (
    LayerCache,
    LayerOptions,
    TokenMajorLayout,
    gather,
    scatter,
)
from model_server.step import StepInputs


class ReferenceAttention(TokenMajorLayout):
    """The definition of attention, in the order of its formula."""

    name = "reference"

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
        outputs = []
        # The device's numbers: of a step that is replayed, the host knows none.
        context_lens = step.device_context_lens.tolist()
        query_lens = list(step.query_lens)
        key_ends: Sequence[Tensor | None] = [None] * len(query_lens)
        if step.key_ends is not None:
            key_ends = step.key_ends.split(query_lens)
        for index, queries in enumerate(query.split(query_lens)):
            context = slice(0, context_lens[index])
            keys, values = gather(cache, step.block_tables[index], context)
            outputs.append(_attend_sequence(queries, keys, values, options, key_ends[index]))
        return torch.cat(outputs).to(query.dtype)


def _attend_sequence(
    query: Tensor, key: Tensor, value: Tensor, options: LayerOptions, key_ends: Tensor | None
) -> Tensor:
    """query [query_len, heads, dim] over key, value [context_len, kv_heads, dim], in float32."""
    group = query.shape[1] // key.shape[1]
    keys = key.float().repeat_interleave(group, dim=1)  # [context_len, heads, dim]
    values = value.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    mask = _visible(query.shape[0], key.shape[0], options, key_ends).to(query.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    if options.sinks is not None:
        sinks = options.sinks.float()[:, None, None].expand(-1, query.shape[0], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[0]]
    return torch.einsum("hqk,khd->qhd", weights, values)


def _visible(
    query_len: int, context_len: int, options: LayerOptions, key_ends: Tensor | None
) -> Tensor:
    """Which keys each query sees, [query_len, context_len] bool; the last query is the last key.

    key_ends: up to which; None: to its own
    """
    positions = range(context_len - query_len, context_len)
    firsts = torch.tensor([options.first_key(position) for position in positions])[:, None]
    keys = torch.arange(context_len)
    ends = torch.tensor(positions) + 1 if key_ends is None else key_ends.cpu()
    return (keys >= firsts) & (keys < ends[:, None])
