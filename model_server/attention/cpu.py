"""Paged attention on a CPU without a compiler: packed SDPA, sequence by sequence.

Several times faster than the reference and slower than the operator of `cpu_op.py`. A sequence's
results do not depend on its batch mates, but their last bits may with the length of its chunks:
SDPA adds up in another order for another number of queries.
"""

import torch
from torch import Tensor

from model_server.attention.base import LayerOptions
from model_server.attention.sdpa import (
    MAX_TILE_SCORES,
    StepPlans,
    Tile,
    attend_tile,
    plan_tiles,
)
from model_server.attention.token_major import DEFAULT_BLOCK_SIZE, TokenMajorLayout, scatter
from model_server.engine.kv_cache import LayerCache
from model_server.engine.step import StepInputs


class CpuAttention(TokenMajorLayout):
    """Gathers each sequence's visible keys and calls SDPA on them: padding a batch never pays."""

    name = "cpu"

    def __init__(
        self, block_size: int = DEFAULT_BLOCK_SIZE, max_tile_scores: int = MAX_TILE_SCORES
    ) -> None:
        super().__init__(block_size)
        self._max_tile_scores = max_tile_scores
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
        seqs = range(step.num_seqs)
        return plan_tiles(step, seqs, options, self.block_size, self._max_tile_scores)
