"""The plain layout of a block, [num_blocks, block_size, num_kv_heads, dim], and how torch reads it.

Used by the backends that hand gathered keys and values to torch. A token's slot is a row of the
flattened pool, so writing is one indexed copy.
"""

import torch
from torch import Tensor

from model_server.engine.kv_cache import LayerCache, LayerGeometry

DEFAULT_BLOCK_SIZE = 16


class TokenMajorLayout:
    """Storage that keeps a token's heads together."""

    def __init__(self, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be positive, got {block_size}")
        self.block_size = block_size

    def allocate(
        self, num_blocks: int, geometry: LayerGeometry, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See CacheLayout.allocate."""
        shape = (num_blocks, self.block_size, geometry.num_kv_heads)
        return LayerCache(
            geometry,
            torch.zeros((*shape, geometry.head_dim), dtype=dtype, device=device),
            torch.zeros((*shape, geometry.value_dim), dtype=dtype, device=device),
        )

    def bytes_per_block(self, geometry: LayerGeometry, dtype: torch.dtype) -> int:
        """See CacheLayout.bytes_per_block."""
        per_token = geometry.num_kv_heads * (geometry.head_dim + geometry.value_dim)
        return self.block_size * per_token * dtype.itemsize


def scatter(cache: LayerCache, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Write key and value rows [num_tokens, num_kv_heads, dim] to their slots."""
    cache.keys.flatten(0, 1).index_copy_(0, slot_mapping, key)
    cache.values.flatten(0, 1).index_copy_(0, slot_mapping, value)


def gather(cache: LayerCache, blocks: Tensor, tokens: slice) -> tuple[Tensor, Tensor]:
    """The named tokens of the blocks, [num_tokens, num_kv_heads, dim] of keys and of values.

    Nothing else is answered: what lies past a sequence's end in a block that was freed may be
    anything, NaN included.
    """
    keys = cache.keys.index_select(0, blocks).flatten(0, 1)[tokens]
    values = cache.values.index_select(0, blocks).flatten(0, 1)[tokens]
    return keys, values
