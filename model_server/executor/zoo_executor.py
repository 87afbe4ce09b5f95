"""The executor of any model that the gate lets pass: transformers' class on paged batches."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.pytorch_utils import Conv1D

from model_server.adapter import Adapter, LinearShapes, LowRank
from model_server.attention.base import AttentionBackend, LayerCache, LayerGeometry, LayerOptions
from model_server.executor.adapters import PackedAdapter
from model_server.executor.torch_adapters import (
    AdapterRows,
    AddedProduct,
    LowRankPart,
    TorchAdapter,
)
from model_server.eyes import DEEP, DEEP_PLACES, EMBEDDED, POSITIONS, decoder_of
from model_server.mixers import Memory, MixerCache, StatePool
from model_server.step import SequenceStep, StateStep, StepInputs
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


# Of two sequences, whose logits are fewer rows.
_PROBE_LENS = (30, 31)
_PROBE_BLOCKS = 31  # of each, of whatever size


class _AdaptedForward:
    """Takes the place of a linear layer's `forward`, and adds what adapters give.

    widths: of what it was handed and of what it gave: of several ranks each may have a part
    """

    def __init__(self, module: nn.Module, rows: AdapterRows, widths: tuple[int, int]) -> None:
        self._forward = module.forward
        outputs, inputs = shape_of(module)
        weight: Any = module.weight
        self._inputs = _part_of(weight, inputs, widths[0])
        self._outputs = _part_of(weight, outputs, widths[1])
        # What it gives is summed by itself, what adapters add is not.
        is_summed = len(self._inputs) < inputs
        group = weight.device_mesh.get_group() if is_summed else None
        self._device: torch.device = weight.device
        self.added = AddedProduct(rows, group)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._forward(x)
        self.added.add(x.flatten(0, -2), product.flatten(0, -2))
        return product

    def part(self, layer: LowRank) -> LowRankPart:
        """This rank's of what an adapter adds."""
        a = layer.a[:, self._inputs.start : self._inputs.stop]
        b = layer.b[self._outputs.start : self._outputs.stop]
        return LowRankPart(a.to(self._device, torch.float32), b.to(self._device))


def shape_of(module: nn.Module) -> tuple[int, int]:
    """Outputs and inputs of a linear layer, over all ranks."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    assert isinstance(module, Conv1D)
    return module.nf, module.nx


def _part_of(weight: Any, count: int, width: int) -> range:
    """Of `count` outputs or inputs of a layer the `width` ones of this rank."""
    if width == count:
        return range(count)
    each = -(-count // weight.device_mesh.size())
    start = weight.device_mesh.get_local_rank() * each
    return range(start, start + width)


def _is_plain(weight: Any) -> bool:
    """Whether a rank's part of it is one run of outputs, or of inputs."""
    return not isinstance(weight, DTensor) or type(weight.placements[0]) in (Shard, Replicate)


class ZooAdapters:
    """See AdapterPlaces; of linear layers of a model's own class, by their names."""

    def __init__(
        self, forwards: Mapping[str, _AdaptedForward], adaptable: LinearShapes, max_rank: int
    ) -> None:
        self._forwards = forwards
        self.adaptable = adaptable
        self.bytes_each = 4 * max_rank * sum(map(sum, adaptable.values()))

    def pack(self, adapter: Adapter) -> TorchAdapter:
        """See AdapterPlaces."""
        layers = adapter.layers
        return TorchAdapter(
            [
                forward.part(layers[name]) if name in layers else None
                for name, forward in self._forwards.items()
            ]
        )

    def set(self, place: int, adapter: PackedAdapter | None) -> None:
        """See AdapterPlaces."""
        assert adapter is None or isinstance(adapter, TorchAdapter)
        for index, forward in enumerate(self._forwards.values()):
            forward.added.set(place, None if adapter is None else adapter.parts[index])


class ZooExecutor:
    """See Executor.

    plans:         the gate's, one per layer; None: it has no keys and values
    memory:        what layers remember beside these
    max_lora_rank: the largest rank of an adapter; None: none may be loaded
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
        *,
        max_lora_rank: int | None = None,
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
        self._rows = AdapterRows(device)
        self.adapters: ZooAdapters | None = None
        if max_lora_rank is not None:
            self.adapters = self._adapted(max_lora_rank)

    def _adapted(self, max_rank: int) -> ZooAdapters:
        """Let adapters change the linear layers that every token of a step passes in its row."""
        modules = {
            name: module
            for name, module in self._model.module.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and _is_plain(module.weight)
        }
        shapes = {name: shape_of(module) for name, module in modules.items()}
        widths = self._widths(modules)
        forwards = {}
        for name, module in modules.items():
            if name in widths:
                forwards[name] = _AdaptedForward(module, self._rows, widths[name])
                module.forward = forwards[name]  # type: ignore[method-assign]
        return ZooAdapters(forwards, {name: shapes[name] for name in forwards}, max_rank)

    def _widths(self, modules: Mapping[str, nn.Module]) -> dict[str, tuple[int, int]]:
        """What is handed to each, and what it gives, where these are the rows of all tokens."""
        seen: dict[str, set[tuple[int, ...]]] = {name: set() for name in modules}

        def note(name: str, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            shapes = [part.flatten(0, -2).shape for part in (*args[:1], output)]
            seen[name].add(tuple(number for shape in shapes for number in shape))

        handles = [
            module.register_forward_hook(partial(note, name)) for name, module in modules.items()
        ]
        try:
            num_tokens = self._pass_over_tokens()
        finally:
            for handle in handles:
                handle.remove()
        widths = {}
        for name, calls in seen.items():
            # Experts see some of the rows, the head those of logits, a mixer each sequence's.
            if len(calls) == 1 and (call := calls.pop())[::2] == (num_tokens, num_tokens):
                widths[name] = (call[1], call[3])
        return widths

    def _pass_over_tokens(self) -> int:
        """Compute a step of two sequences, and forget it; returns how many tokens it had."""
        has_states = bool(self._memory.mixers)
        self.allocate(len(_PROBE_LENS) * _PROBE_BLOCKS + 1, len(_PROBE_LENS))
        steps = []
        for index, length in enumerate(_PROBE_LENS):
            token_ids = [
                7 * (index + 3 * token) % self._model.facts.vocab_size for token in range(length)
            ]
            blocks = range(index * _PROBE_BLOCKS, (index + 1) * _PROBE_BLOCKS)
            state = StateStep(None, index) if has_states else None
            steps.append(SequenceStep(token_ids, 0, list(blocks), 1, state))
        self.forward(
            StepInputs.build(
                steps,
                block_size=self.block_size,
                scratch_block_id=len(_PROBE_LENS) * _PROBE_BLOCKS,
                device=self._device,
                min_tokens=self.min_step_tokens,
            )
        )
        self.close()
        return sum(_PROBE_LENS)

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
        self._rows.begin(inputs)
        with self._handing(inputs):
            logits = self._model.paged_logits(
                inputs.token_ids,
                inputs.positions,
                inputs.head_indices,
                partial(self._attend, inputs),
                None if self._states is None else MixerCache(inputs, self._states),
            )
        return logits[: inputs.logits_indices.shape[0]]

    @contextmanager
    def _handing(self, inputs: StepInputs) -> Iterator[None]:
        """Let the model hand its decoder what images show, and where their tokens stand."""
        images = inputs.images
        turns = inputs.turns
        if images is None and turns is None:
            yield
            return

        def hand(_: nn.Module, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if turns is not None:
                named[POSITIONS] = turns[:, None]
            if images is not None:
                embedded = named[EMBEDDED].clone()
                embedded[0, images.places] = images.rows[0].to(embedded.dtype)
                named[EMBEDDED] = embedded
                if len(images.rows) > 1:
                    is_row = torch.zeros_like(inputs.token_ids, dtype=torch.bool)
                    is_row[images.places] = True
                    named[DEEP_PLACES] = is_row[None]
                    named[DEEP] = list(images.rows[1:].to(embedded.dtype))
            return args, named

        handle = decoder_of(self._model.module).register_forward_pre_hook(hand, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

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
