"""LoRA adapters beside products of torch: of recipes on a device, and of transformers' own classes.

A step's rows are told once (AdapterRows); each product that adapters may change then adds what they
give, in float32: adapter by adapter, or in a recipe's decode steps row by row, by operations that a
graph can hold. A step without an adapter adds nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from model_server.adapter import Adapter, LowRank
from model_server.executor.adapters import (
    MergedAdapter,
    PackedAdapter,
    adaptable_layers,
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
from model_server.executor.layer_ops import LayerOps, TorchLayerOps
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
    """Which rows of the present step are computed with the adapter of a place.

    of_place: the rows of each place
    places:   of a decode step [num_rows] int32, each row's place, -1: none; None: see `of_place`
    """

    def __init__(self, device: torch.device) -> None:
        self._staging = PinnedStaging(device)
        self.of_place: Mapping[int, Tensor] = {}
        self.places: Tensor | None = None

    def begin(self, inputs: StepInputs, *, decodes_by_row: bool = False) -> None:
        """Before each step.

        decodes_by_row: decode steps set `places`, where there is an adapter
        """
        self.of_place = {}
        self.places = None
        if decodes_by_row and inputs.num_tokens == inputs.num_seqs:
            self.places = inputs.device_adapters
            return
        if not inputs.adapters:
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


class StackedProduct:
    """What adapters add to one product of a recipe, in memory that stays where it is, since graphs
    of decode steps read it.

    shrinks: [max_loras, rank, inputs] float32, zeros past an adapter's own rank
    expands: [max_loras, outputs, rank]
    """

    def __init__(self, rows: AdapterRows, ops: LayerOps, max_loras: int, like: LowRankPart) -> None:
        """`like`: the largest part that comes."""
        self._rows = rows
        self._ops = ops
        self._shrinks = like.shrink.new_zeros(max_loras, *like.shrink.shape)
        self._expands = like.expand.new_zeros(max_loras, *like.expand.shape)
        self._of_prompts = AddedProduct(rows)

    def set(self, place: int, part: LowRankPart | None) -> None:
        """Between steps."""
        shrink = self._shrinks[place].zero_()
        expand = self._expands[place].zero_()
        if part is not None:
            rank = len(part.shrink)
            part = LowRankPart(
                shrink[:rank].copy_(part.shrink), expand[:, :rank].copy_(part.expand)
            )
        self._of_prompts.set(place, part)

    def add(self, x: Tensor, product: Tensor) -> None:
        """See AddedProduct."""
        if self._rows.places is None:
            self._of_prompts.add(x, product)
        else:
            self._ops.add_low_rank(x, self._shrinks, self._expands, self._rows.places, product)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedMatrix:
    """See Matrix; with what adapters add."""

    matrix: Matrix
    added: StackedProduct

    def multiply(self, x: Tensor) -> Tensor:
        """See Matrix."""
        product = self.matrix.multiply(x)
        self.added.add(x, product)
        return product


class DeviceAdapters:
    """See AdapterPlaces; of a recipe's products on a device.

    An adapter waits on the host; `set` copies it to its place, for which there is memory already.
    """

    bytes_each = 0

    def __init__(
        self,
        recipe: Recipe,
        shapes: Mapping[str, tuple[int, int]],
        tables: Sequence[Angles],
        partition: Partition,
        device: torch.device,
        ops: LayerOps,
        max_loras: int,
        max_rank: int,
    ) -> None:
        self._recipe = recipe
        self._shapes = shapes
        self._tables = tables
        self._partition = partition
        self.adaptable = adaptable_layers(recipe, shapes)
        self._rows = AdapterRows(device)
        largest = Adapter(
            {
                name: LowRank(torch.zeros(max_rank, inputs), torch.zeros(outputs, max_rank))
                for name, (outputs, inputs) in self.adaptable.items()
            }
        )
        # By product; None: no adapter changes it.
        self._added: list[StackedProduct | None] = []
        for part in self.pack(largest).parts:
            if part is None:
                self._added.append(None)
                continue
            like = LowRankPart(part.shrink.to(device), part.expand.to(device))
            self._added.append(StackedProduct(self._rows, ops, max_loras, like))

    def begin(self, inputs: StepInputs) -> None:
        """Before each step."""
        self._rows.begin(inputs, decodes_by_row=True)

    def beside(self, weights: DenseWeights) -> DenseWeights:
        """The same, with what adapters add to the products."""
        layers = []
        added = iter(self._added)
        for layer, described in zip(weights.layers, self._recipe.layers, strict=True):
            layers.append(_adapted(layer, [next(added) for _ in described.products]))
        return replace(weights, layers=tuple(layers))

    def pack(self, adapter: Adapter) -> TorchAdapter:
        """See AdapterPlaces."""
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
            torch.device("cpu"),
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
        return LowRankPart(shrink, expand.weight[:, : len(rank)])

    def set(self, place: int, adapter: PackedAdapter | None) -> None:
        """See AdapterPlaces."""
        assert adapter is None or isinstance(adapter, TorchAdapter)
        for index, added in enumerate(self._added):
            if added is not None:
                added.set(place, None if adapter is None else adapter.parts[index])


def _narrowed(shrink: Tensor, inputs: range) -> Tensor:
    return shrink.narrow(1, inputs.start, len(inputs))


def _adapted(layer: DenseLayer, added: Sequence[StackedProduct | None]) -> DenseLayer:
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
            ins=_beside(mixer.ins, ins),
            output=_beside(mixer.output, output),
        ),
        mlp=mlp,
    )


def _adapted_mlp(mlp: DenseMlp, added: Sequence[StackedProduct | None]) -> DenseMlp:
    return replace(mlp, ins=_beside(mlp.ins, added[2]), out=_beside(mlp.out, added[3]))


def _beside(matrix: Matrix, added: StackedProduct | None) -> Matrix:
    return matrix if added is None else AdaptedMatrix(matrix, added)
