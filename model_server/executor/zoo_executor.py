"""The executor of any model that the gate lets pass: transformers' class on paged batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from model_server.attention.base import AttentionBackend, LayerCache, LayerGeometry, LayerOptions
from model_server.executor.executor import WithoutAdapters
from model_server.mixers import Memory, MixerCache, StatePool
from model_server.step import StepInputs
from model_server.zoo import HfModel

# A linear layer on a CPU may add up in another order for 1, 2 or 3 rows than for 4 and more, so a
# token's logits would depend on its batch mates. From 4 rows on, oneDNN (bfloat16) and MKL
# (float32) mostly keep one order; short steps are filled up with rows that nobody reads.
_MIN_CPU_TOKENS = 4


@dataclass(frozen=True, slots=True, eq=False)
class LayerPlan:
    """One layer's storage on this rank, and its attention options."""

    geometry: LayerGeometry
    options: LayerOptions


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    cache: LayerCache
    options: LayerOptions


class ZooExecutor(WithoutAdapters):
    """See Executor.

    plans:  the gate's, one per layer; None: it has no keys and values
    memory: what layers remember beside these
    """

    # Matrix products of torch may add up in another order in another batch.
    is_invariant = False
    threads = None  # torch lends none
    # A chunk's states are those behind its last token.
    keeps_states = False

    def __init__(
        self,
        model: HfModel,
        plans: Sequence[LayerPlan | None],
        memory: Memory,
        backend: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._model = model
        self._plans = tuple(plans)
        self._memory = memory
        self._states: StatePool | None = None
        self._backend = backend
        self._layers: tuple[_Layer | None, ...] = ()
        self._dtype = dtype
        self._device = device
        self.name = f"zoo, {backend.name} attention"
        self.state_bytes = memory.state_bytes
        self.block_size = backend.block_size
        self.min_step_tokens = _MIN_CPU_TOKENS if device.type == "cpu" else 1

    @property
    def bytes_per_block(self) -> int:
        """See Executor."""
        return sum(
            self._backend.bytes_per_block(plan.geometry, self._dtype)
            for plan in self._plans
            if plan is not None
        )

    def allocate(self, num_blocks: int, num_states: int = 0) -> None:
        """See Executor."""
        self.close()
        if self._memory.mixers:
            self._states = StatePool(self._memory, num_states, self._device)
        self._layers = tuple(
            None if plan is None else self._layer(plan, num_blocks) for plan in self._plans
        )

    def _layer(self, plan: LayerPlan, num_blocks: int) -> _Layer:
        cache = self._backend.allocate(num_blocks, plan.geometry, self._dtype, self._device)
        return _Layer(cache, plan.options)

    def close(self) -> None:
        """See Executor."""
        self._layers = ()
        self._states = None

    def prepare(self, max_batch_size: int, max_total_len: int, scratch_block_id: int) -> None:
        """See Executor: there is nothing to do."""

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> Tensor:
        """See Executor. The logits are of the model's dtype."""
        logits = self._model.paged_logits(
            inputs.token_ids,
            inputs.positions,
            inputs.head_indices,
            partial(self._attend, inputs),
            None if self._states is None else MixerCache(inputs, self._states),
        )
        return logits[: inputs.logits_indices.shape[0]]

    def _attend(
        self,
        inputs: StepInputs,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, Any],
    ) -> Tensor:
        # The probe has learnt, and checked, what mask and arguments contain.
        layer = self._layers[module.layer_idx]  # type: ignore[index]
        assert layer is not None, "the probe found that it attends"
        return self._backend.attend(layer.cache, query, key, value, inputs, layer.options)
