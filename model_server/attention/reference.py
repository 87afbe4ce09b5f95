"""Paged attention in plain torch: the oracle that every other backend is held against.

One sequence at a time: gather its keys and values, one dense score matrix in float32, a mask, a
softmax. Runs on every device, as clearly as it can and with no regard to speed.
"""

import torch
from torch import Tensor

from model_server.attention.base import LayerOptions
from model_server.attention.token_major import TokenMajorLayout, gather, scatter
from model_server.kv_cache import LayerCache
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
        outputs = []
        for index, queries in enumerate(query.split(list(step.query_lens))):
            keys, values = gather(cache, step.block_tables[index], step.context_lens[index])
            outputs.append(_attend_sequence(queries, keys, values, options))
        return torch.cat(outputs).to(query.dtype)


def visible(
    query_len: int, context_len: int, options: LayerOptions, device: torch.device
) -> Tensor:
    """Which keys each query sees, [query_len, context_len] bool; the last query is the last key."""
    positions = torch.arange(context_len - query_len, context_len, device=device)[:, None]
    keys = torch.arange(context_len, device=device)
    mask = keys <= positions
    if options.window_len is not None:
        mask = mask & (keys > positions - options.window_len)
    if options.chunk_len is not None:
        mask = mask & (keys // options.chunk_len == positions // options.chunk_len)
    return mask


def _attend_sequence(query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
    """query [query_len, heads, dim] over key, value [context_len, kv_heads, dim], in float32."""
    group = query.shape[1] // key.shape[1]
    keys = key.float().repeat_interleave(group, dim=1)  # [context_len, heads, dim]
    values = value.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    mask = visible(query.shape[0], key.shape[0], options, query.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    if options.sinks is not None:
        sinks = options.sinks.float()[:, None, None].expand(-1, query.shape[0], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[0]]
    return torch.einsum("hqk,khd->qhd", weights, values)
