"""Paged attention by Triton kernels, on CUDA: nothing is gathered, padded or read on the host.

It imports the kernels' package: see model_server/kernels/launch.py.
"""

import torch
from torch import Tensor

from model_server.attention.base import (
    DEFAULT_BLOCK_SIZE,
    LayerCache,
    LayerGeometry,
    LayerOptions,
    TokenMajorLayout,
    scatter,
)
from model_server.engine.step import StepInputs
from model_server.kernels.launch import Launch, launch
from model_server.kernels.paged_decode import attend_decodes
from model_server.kernels.paged_prefill import attend_prompts

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_DIM = 256


class TritonAttention(TokenMajorLayout):
    """Decodes by splits, prompts by tiles. A row's bits depend on its own sequence alone.

    Of a step it reads on the host no more than which sequences have several queries, so a CUDA
    graph may replay its launches over other contents.
    """

    name = "triton"

    def __init__(self, block_size: int = DEFAULT_BLOCK_SIZE, launch: Launch = launch) -> None:
        super().__init__(block_size)
        self._launch = launch

    @staticmethod
    def unfit_reason(geometry: LayerGeometry, dtype: torch.dtype) -> str | None:
        """Why it cannot serve such layers, or None when it can."""
        if dtype not in _DTYPES:
            return f"keys of {dtype}"
        if max(geometry.head_dim, geometry.value_dim) > _MAX_DIM:
            return f"head_dim {max(geometry.head_dim, geometry.value_dim)} exceeds {_MAX_DIM}"
        return None

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
        query = query.contiguous()
        output = query.new_empty((*query.shape[:2], cache.geometry.value_dim))
        num_decodes = step.query_lens.count(1)
        if num_decodes:
            attend_decodes(query, cache, step, options, output, self._launch)
        if num_decodes < step.num_seqs:
            attend_prompts(query, cache, step, options, output, self._launch)
        return output
