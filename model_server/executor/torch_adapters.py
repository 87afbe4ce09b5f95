"""LoRA adapters beside products of torch: of recipes on a device, and of transformers' own classes.

A step's rows are told once (AdapterRows); each product that adapters may change then adds what they
give, adapter by adapter, in float32. A step without an adapter adds nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from model_server.adapter import Adapter
from model_server.executor.adapters import (
    MergedAdapter,
    PackedAdapter,
    adaptable_layers,
    most_bytes,
)
from model_server.executor.device_weights import (
    Angles,
    DenseLayer,
    DenseMlp,
    DenseWeights,
    Matrix,
    Partition,
    PlainMatrix,
    WeightReader,
    matrices_of,
)
from model_server.executor.int4 import Int4Weight
from model_server.executor.layer_ops import TorchLayerOps
from model_server.recipe.recipe import Layer, Recipe
from model_server.staging import PinnedStaging
from model_server.step import StepInputs


class LowRankPart(NamedTuple):
    """This rank's part of what an adapter adds to a product: x @ shrink.T @ expand.T, float32."""

    shrink: Tensor  # [rank, inputs]
    expand: Tensor  # [outputs, rank]


@dataclass(frozen=True, slots=True, eq=False)
class TorchAdapter:
    """An adapter's parts, in the order of the products; None: it adds nothing there."""

    parts: Sequence[LowRankPart | None]

    @property
    def num_bytes(self) -> int:
        """Of memory, on this rank."""
        return sum(each.nbytes for part in self.parts if part is not None for each in part)


class AdapterRows:
    """Which rows of the present step are computed with the adapter of a place."""

    def __init__(self, device: torch.device) -> None:
        self._staging = PinnedStaging(device)
        self.of_place: Mapping[int, Tensor] = {}

    def begin(self, inputs: StepInputs) -> None:
        """Before each step."""
        if not inputs.adapters:
            self.of_place = {}
            return
        rows = inputs.row_adapters()
        places = sorted({place for place in inputs.adapters if place is not None})
        found = self._staging.to_device_all([np.flatnonzero(rows == place) for place in places])
        self.of_place = dict(zip(places, found, strict=True))


class AddedProduct:
    """What adapters add to one product.

    group: of ranks that read a part of the inputs each, where what it adds is not summed by others
    """

    def __init__(self, rows: AdapterRows, group: dist.ProcessGroup | None = None) -> None:
        self._rows = rows
        self._group = group
        self._parts: dict[int, LowRankPart] = {}

    def set(self, place: int, part: LowRankPart | None) -> None:
        """Between steps."""
        self._parts.pop(place, None)
        if part is not None:
            self._parts[place] = part

    def add(self, x: Tensor, product: Tensor) -> None:
        """To the rows of `product` [num_rows, outputs], of those of x [num_rows, inputs]."""
        for place, rows in self._rows.of_place.items():
            part = self._parts.get(place)
            if part is None:
                continue
            shrunk = x.index_select(0, rows).float() @ part.shrink.T
            if self._group is not None:
                dist.all_reduce(shrunk, group=self._group)
            sums = product.index_select(0, rows).float() + shrunk @ part.expand.T
            product.index_copy_(0, rows, sums.to(product.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedMatrix:
    """See Matrix; with what adapters add."""

    matrix: Matrix
    added: AddedProduct

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        product = self.matrix.multiply(x)
        self.added.add(x, product)
        return product


class DeviceAdapters:
    """See AdapterPlaces; of a recipe's products on a device."""

    def __init__(
        self,
        recipe: Recipe,
        shapes: Mapping[str, tuple[int, int]],
        tables: Sequence[Angles],
        partition: Partition,
        device: torch.device,
        max_rank: int,
    ) -> None:
        self._recipe = recipe
        self._shapes = shapes
        self._tables = [(cos.to(device), sin.to(device)) for cos, sin in tables]
        self._partition = partition
        self._device = device
        self.adaptable = adaptable_layers(recipe, shapes)
        self.bytes_each = most_bytes(recipe, shapes, max_rank)
        self.rows = AdapterRows(device)
        num_products = sum(len(layer.products) for layer in recipe.layers)
        self._added = [AddedProduct(self.rows) for _ in range(num_products)]

    def beside(self, weights: DenseWeights) -> DenseWeights:
        """The same, with what adapters add to the products."""
        layers = []
        added = iter(self._added)
        for layer, described in zip(weights.layers, self._recipe.layers, strict=True):
            layers.append(_adapted(layer, [next(added) for _ in described.products]))
        return replace(weights, layers=tuple(layers))

    def pack(self, adapter: Adapter) -> TorchAdapter:
        """See AdapterPlaces; raises torch.OutOfMemoryError in place of MemoryError."""
        parts = []
        for layer in self._recipe.layers:
            for index, linears in enumerate(layer.products):
                merged = MergedAdapter.of(adapter, linears, self._shapes)
                parts.append(None if merged is None else self._part(layer, index, merged))
        return TorchAdapter(parts)

    def _part(self, layer: Layer, index: int, merged: MergedAdapter) -> LowRankPart:
        reader = WeightReader(
            self._recipe,
            merged.expands,
            self._tables,
            torch.float32,
            self._device,
            self._partition,
            matrices_of(TorchLayerOps()),
            has_biases=False,
        )
        shrink = merged.shrink
        rank = range(shrink.shape[0])
        mlp = layer.plain_mlp
        if index == 0:
            expand = reader.ins_of_mixer(layer.mixer)
        elif index == 1:
            expand = reader.summed(layer.mixer.output, rank)
            shrink = _narrowed(shrink, reader.inputs_of_output(layer.mixer))
        elif index == 2:
            assert mlp is not None
            expand = reader.ins_of_mlp(mlp)
        else:
            assert mlp is not None
            expand = reader.summed(mlp.out, rank)
            shrink = _narrowed(shrink, self._partition.part(shrink.shape[1]))
        assert isinstance(expand, PlainMatrix)
        return LowRankPart(
            shrink.to(self._device).contiguous(), expand.weight[:, : len(rank)].contiguous()
        )

    def set(self, place: int, adapter: PackedAdapter | None) -> None:
        """See AdapterPlaces."""
        assert adapter is None or isinstance(adapter, TorchAdapter)
        for index, added in enumerate(self._added):
            added.set(place, None if adapter is None else adapter.parts[index])


def product_shapes(
    recipe: Recipe, parameters: Mapping[str, Tensor], int4: Mapping[str, Int4Weight]
) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the weights of a recipe's products, by their names."""
    shapes = {}
    for linear in (each for layer in recipe.layers for part in layer.products for each in part):
        if linear.weight in int4:
            weight = int4[linear.weight]
            shapes[linear.weight] = (weight.num_outputs, weight.num_inputs)
        else:
            outputs, inputs = parameters[linear.weight].shape
            is_turned = linear.transposed
            shapes[linear.weight] = (inputs, outputs) if is_turned else (outputs, inputs)
    return shapes


def _narrowed(shrink: Tensor, inputs: range) -> Tensor:
    return shrink.narrow(1, inputs.start, len(inputs))


def _adapted(layer: DenseLayer, added: Sequence[AddedProduct]) -> DenseLayer:
    mixer = layer.mixer
    mlp = layer.mlp
    if isinstance(mlp, DenseMlp):
        mlp = _adapted_mlp(mlp, added)
    elif mlp.shared is not None:
        mlp = replace(mlp, shared=_adapted_mlp(mlp.shared, added))
    ins, output = added[:2]
    return replace(
        layer,
        mixer=replace(
            mixer,
            ins=AdaptedMatrix(mixer.ins, ins),
            output=AdaptedMatrix(mixer.output, output),
        ),
        mlp=mlp,
    )


def _adapted_mlp(mlp: DenseMlp, added: Sequence[AddedProduct]) -> DenseMlp:
    return replace(mlp, ins=AdaptedMatrix(mlp.ins, added[2]), out=AdaptedMatrix(mlp.out, added[3]))
