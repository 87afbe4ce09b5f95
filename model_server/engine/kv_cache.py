"""The KV pool of a shard: one paged cache per layer, all of the same blocks.

    pool:  | block 0 | block 1 | ... | block num_blocks - 1 | scratch block |
             the router numbers these and nobody else         padding rows write here

How keys and values lie inside a block is the attention backend's own affair: this file asks it
for storage and for sizes. It knows neither sequences nor which block belongs to whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The shape of a layer's keys and values on this rank.

    Layers of one model may differ (Gemma), and so may the two sizes (DeepSeek's MLA). Under tensor
    parallelism the head count is the local one, read from tensors and never from a config.

    Raises ValueError when a number is not positive.
    """

    num_kv_heads: int
    head_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        for name in ("num_kv_heads", "head_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """One layer's storage. Only the backend that allocated it knows the tensors' layout."""

    geometry: LayerGeometry
    keys: Tensor
    values: Tensor


class CacheLayout(Protocol):
    """The part of an attention backend that the pool uses."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    def allocate(
        self, num_blocks: int, geometry: LayerGeometry, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Zero-initialised storage of `num_blocks` blocks; the count includes the scratch block."""

    def bytes_per_block(self, geometry: LayerGeometry, dtype: torch.dtype) -> int:
        """Bytes that one block of one such layer takes."""


class KVCache:
    """Owner of the pool's tensors: allocates them once and frees them with itself.

    Raises ValueError when `num_blocks` is not positive or there is no layer.
    """

    def __init__(
        self,
        layout: CacheLayout,
        geometries: Sequence[LayerGeometry],
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be positive, got {num_blocks}")
        if not geometries:
            raise ValueError("a cache needs at least one layer")
        self.num_blocks = num_blocks
        self.block_size = layout.block_size
        self._layers = tuple(
            layout.allocate(num_blocks + 1, geometry, dtype, device) for geometry in geometries
        )

    @property
    def scratch_block_id(self) -> int:
        """The block past the router's last: what padding rows write is never read by a sequence."""
        return self.num_blocks

    @property
    def num_layers(self) -> int:
        """The number of layers with a cache."""
        return len(self._layers)

    def layer(self, layer_index: int) -> LayerCache:
        """Storage of one layer; IndexError when there is no such layer."""
        return self._layers[layer_index]


def bytes_per_block(
    layout: CacheLayout, geometries: Sequence[LayerGeometry], dtype: torch.dtype
) -> int:
    """Bytes that one block takes over all layers."""
    return sum(layout.bytes_per_block(geometry, dtype) for geometry in geometries)
