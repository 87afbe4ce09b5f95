"""A model that computes steps: a transformers class, paged attention and this rank's weights.

    load:    check (files, gate) -> weights -> probe -> attention backend
    allocate: the KV pool, once its size is known
    forward: StepInputs -> logits

It knows no request, no sampling and no RPC; the caller decides who owns which block.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from model_server.attention.base import AttentionBackend, LayerOptions
from model_server.attention.reference import ReferenceAttention
from model_server.attention.select import select_backend
from model_server.engine import memory
from model_server.engine.distributed import World
from model_server.engine.kv_cache import KVCache, LayerCache, bytes_per_block
from model_server.engine.step import StepInputs
from model_server.errors import OutOfMemory
from model_server.model import gate, patches, zoo
from model_server.model.checkpoint_check import ModelSettings, check_checkpoint

_log = logging.getLogger(__name__)

# More than any device has: stands for an unknown number where ranks agree on the least.
_UNKNOWN = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    cache: LayerCache
    options: LayerOptions


class PagedModel:
    """Owner of the weights and of the KV pool of one rank. Not for two threads at a time."""

    def __init__(
        self,
        model: zoo.ZooModel,
        plans: Sequence[gate.LayerPlan],
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        thread_counts: tuple[int, ...] = (),
    ) -> None:
        self._model = model
        self._plans = tuple(plans)
        self._backend = backend
        self._layers: tuple[_Layer, ...] = ()
        self._num_blocks: int | None = None
        self.dtype = dtype
        self.device = device
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        # The numbers of threads that a step may use; none: as many as there are.
        self.thread_counts = thread_counts
        self.model_type = model.facts.model_type
        self.block_size = backend.block_size
        self.attention_backend = backend.name
        windows = [plan.options.window_len for plan in self._plans]
        self.window_len = min((window for window in windows if window is not None), default=None)

    @classmethod
    def load(cls, settings: ModelSettings, world: World) -> "PagedModel":
        """Read a checkpoint, or this rank's part of it, and prove that it can be served.

        Raises CheckpointBroken (files), ArchitectureUnfit (the gate) or another ModelRefused, each
        with the reason, and OutOfMemory when the weights do not fit.
        """
        checked = check_checkpoint(settings, world.world_size)
        dtype = checked.dtype
        _require_room(settings.device, checked.bytes_of_rank(world.world_size), world)
        model = zoo.load(
            settings.folder,
            checked.config,
            dtype=dtype,
            device=settings.device,
            trust_remote_code=settings.trust_remote_code,
            allow_pickle=settings.allow_pickle,
            is_sharded=checked.is_sharded,
            world=world,
        )
        expected = gate.expected_logits(model, settings.device)
        plans = gate.probe_layers(model, ReferenceAttention(), dtype, settings.device, expected)
        geometries = [plan.geometry for plan in plans]
        backend = select_backend(settings.attention, settings.device, dtype, geometries)
        patched = patches.Patched()
        if world.world_size == 1:
            patched = patches.apply(model.module)
            _log_patches(patched)
        plans = gate.probe_layers(model, backend, dtype, settings.device, expected)
        return cls(
            model,
            plans,
            backend,
            dtype=dtype,
            device=settings.device,
            vocab_size=expected[0].shape[1],
            eos_token_ids=model.eos_token_ids(settings.folder),
            thread_counts=patched.thread_counts if settings.device.type == "cpu" else (),
        )

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence that the model supports."""
        limit = self._model.facts.max_position_embeddings
        if limit is None:
            raise AssertionError("the gate lets no model without a limit pass")
        return limit

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block of the pool takes on this rank, over all layers."""
        geometries = [plan.geometry for plan in self._plans]
        return bytes_per_block(self._backend, geometries, self.dtype)

    @property
    def num_blocks(self) -> int | None:
        """Blocks of the pool; None before `allocate`."""
        return self._num_blocks

    @property
    def scratch_block_id(self) -> int:
        """The block past the pool's last, which padding rows write to."""
        if self._num_blocks is None:
            raise AssertionError("the pool is not allocated")
        return self._num_blocks

    def allocate(self, num_blocks: int) -> None:
        """Make the pool anew, of `num_blocks` blocks and the scratch block; what it held is lost.

        Raises OutOfMemory when it does not fit; then there is no pool.
        """
        self._layers, self._num_blocks = (), None
        geometries = [plan.geometry for plan in self._plans]
        try:
            pool = KVCache(self._backend, geometries, num_blocks, self.dtype, self.device)
        # A CPU allocator raises a plain RuntimeError.
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            raise OutOfMemory(
                f"{num_blocks} blocks of {self.bytes_per_block} bytes do not fit on {self.device}"
            ) from error
        self._layers = tuple(
            _Layer(pool.layer(index), plan.options) for index, plan in enumerate(self._plans)
        )
        self._num_blocks = num_blocks

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> Tensor:
        """Compute one step; its keys and values are in the pool afterwards.

        Returns logits [len(inputs.logits_indices), vocab_size] in the model's dtype.
        """
        logits = self._model.paged_logits(
            inputs.token_ids, inputs.positions, inputs.head_indices, partial(self._attend, inputs)
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
        return self._backend.attend(layer.cache, query, key, value, inputs, layer.options)


def _require_room(device: torch.device, rank_bytes: int, world: World) -> None:
    """Raises OutOfMemory, on all ranks or on none: none reads weights before all have measured."""
    available = memory.available_bytes(device)
    least = world.smallest(_UNKNOWN if available is None else available)
    needed = memory.weights_of_all(device, rank_bytes, world.world_size)
    memory.require_weights_fit(device, needed, None if least == _UNKNOWN else least)


def _log_patches(patched: patches.Patched) -> None:
    _log.info("%d linear layers were packed", patched.num_packed)
    if patched.num_variant:
        _log.info(
            "%d of %d matrix products may differ in their last bits with the number of tokens in "
            "a step",
            patched.num_variant,
            patched.num_variant + patched.num_invariant,
        )
