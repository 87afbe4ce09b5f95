"""Paged attention on a CPU without a compiler: packed SDPA, sequence by sequence.

Several times faster than the reference and slower than the operator of `cpu_op.py`. In bfloat16 a
row's result does not depend on batch mates or chunk sizes. In float32 decodes do not either, but
SDPA's rows change in the last bits with the length of a prompt chunk.
"""

import torch
from torch import Tensor

from model_server.attention.base import LayerOptions
from model_server.attention.sdpa import StepPlans, Tile, attend_tile, plan_tiles
from model_server.attention.token_major import DEFAULT_BLOCK_SIZE, TokenMajorLayout, scatter
from model_server.kv_cache import LayerCache
from model_server.step import StepInputs


class CpuAttention(TokenMajorLayout):
    """Gathers each sequence's visible keys and calls SDPA on them: padding a batch never pays."""

    name = "cpu"

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
        tiles = self._plans.get(step, options)
        return torch.cat([attend_tile(query[tile.rows], cache, tile, options) for tile in tiles])

    def _plan(self, step: StepInputs, options: LayerOptions) -> list[Tile]:
        return plan_tiles(step, range(step.num_seqs), options, self.block_size)
