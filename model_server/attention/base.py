"""The interface of attention backends, a layer's cache, and the layout that most of them use.

A backend sees one layer of one step at a time, and neither models nor requests.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from model_server.step import StepInputs

DEFAULT_BLOCK_SIZE = 16


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
    """One layer's part of the pool. Only the backend that made it knows the tensors' layout.

    pool:  | block 0 | block 1 | ... | block num_blocks - 1 | scratch block |
             the router numbers these and nobody else         padding rows write here
    """

    geometry: LayerGeometry
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LayerOptions:
    """How one layer attends. A query at position p sees the keys at positions [first, p], where

        first = max(0, p - window_len + 1, p // chunk_len * chunk_len)

    and every bound that is None does not apply. `scale` multiplies the scores, then `softcap` bends
    them to softcap * tanh(score / softcap) (Gemma 2), then each head's sink, a score without a
    value (GPT-OSS), joins the softmax. `sinks` is [num_heads], any float dtype.

    Raises ValueError when a length or the softcap is not positive.
    """

    scale: float
    window_len: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    chunk_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("window_len", "softcap", "chunk_len"):
            number = getattr(self, name)
            if number is not None and number <= 0:
                raise ValueError(f"{name} must be positive, got {number}")

    @property
    def is_plain(self) -> bool:
        """Whether it is scale, mask and softmax alone, as in SDPA."""
        return self.softcap is None and self.sinks is None

    def first_key(self, position: int) -> int:
        """The first key position that a query at `position` sees."""
        first = 0 if self.window_len is None else max(0, position - self.window_len + 1)
        if self.chunk_len is not None:
            first = max(first, position // self.chunk_len * self.chunk_len)
        return first


class AttentionBackend(Protocol):
    """Paged attention of one kind. The layout of a cache belongs to the backend that made it."""

    @property
    def name(self) -> str:
        """The value of `--attention`."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    def allocate(
        self, num_blocks: int, geometry: LayerGeometry, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """Zero-initialised storage of `num_blocks` blocks; the count includes the scratch block."""

    def bytes_per_block(self, geometry: LayerGeometry, dtype: torch.dtype) -> int:
        """Bytes that one block of one such layer takes."""

    def attend(
        self,
        cache: LayerCache,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: StepInputs,
        options: LayerOptions,
    ) -> Tensor:
        """Write the step's keys and values to their slots, then attend.

        query [num_tokens, num_heads, head_dim], key [num_tokens, num_kv_heads, head_dim] and value
        [num_tokens, num_kv_heads, value_dim], in any strides, are of the cache's dtype; num_heads
        is a multiple of num_kv_heads. Returns [num_tokens, num_heads, value_dim], contiguous.
        """


class TokenMajorAttention(AttentionBackend, Protocol):
    """A backend whose blocks are [num_blocks, block_size, num_kv_heads, dim]: others may write."""

    def read(
        self, cache: LayerCache, query: Tensor, step: StepInputs, options: LayerOptions
    ) -> Tensor:
        """As `attend`, of a step whose keys and values are written already."""


class TokenMajorLayout:
    """Blocks of shape [num_blocks, block_size, num_kv_heads, dim].

    A token's slot is a row of the flattened pool, so writing is one indexed copy.
    """

    def __init__(self, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be positive, got {block_size}")
        self.block_size = block_size

    def allocate(
        self, num_blocks: int, geometry: LayerGeometry, dtype: torch.dtype, device: torch.device
    ) -> LayerCache:
        """See AttentionBackend.allocate."""
        shape = (num_blocks, self.block_size, geometry.num_kv_heads)
        return LayerCache(
            geometry,
            torch.zeros((*shape, geometry.head_dim), dtype=dtype, device=device),
            torch.zeros((*shape, geometry.value_dim), dtype=dtype, device=device),
        )

    def bytes_per_block(self, geometry: LayerGeometry, dtype: torch.dtype) -> int:
        """See AttentionBackend.bytes_per_block."""
        per_token = geometry.num_kv_heads * (geometry.head_dim + geometry.value_dim)
        return self.block_size * per_token * dtype.itemsize


def scatter(cache: LayerCache, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Write key and value rows [num_tokens, num_kv_heads, dim] to their slots."""
    cache.keys.flatten(0, 1).index_copy_(0, slot_mapping, key)
    cache.values.flatten(0, 1).index_copy_(0, slot_mapping, value)


def gather(cache: LayerCache, blocks: Tensor, tokens: slice) -> tuple[Tensor, Tensor]:
    """The keys and values of `tokens` in the blocks, [num_tokens, num_kv_heads, dim] each.

    Rows past a sequence's end are left out: in a reused block they may be anything, NaN included.
    """
    keys = cache.keys.index_select(0, blocks).flatten(0, 1)[tokens]
    values = cache.values.index_select(0, blocks).flatten(0, 1)[tokens]
    return keys, values
