"""What an attention backend is: storage of keys and values in blocks, and attention over them.

A backend knows one layer of one step at a time. It knows neither models nor requests.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from model_server.engine.kv_cache import CacheLayout, LayerCache
from model_server.engine.step import StepInputs


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
        """Whether scale, mask and softmax are all there is, as in SDPA."""
        return self.softcap is None and self.sinks is None

    def first_key(self, position: int) -> int:
        """The first key position that a query at `position` sees."""
        first = 0 if self.window_len is None else max(0, position - self.window_len + 1)
        if self.chunk_len is not None:
            first = max(first, position // self.chunk_len * self.chunk_len)
        return first


class AttentionBackend(CacheLayout, Protocol):
    """Paged attention of one kind. The layout of a cache belongs to the backend that made it."""

    @property
    def name(self) -> str:
        """What `--attention` calls it."""

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
        is a multiple of num_kv_heads. Answers [num_tokens, num_heads, value_dim], contiguous.
        """
