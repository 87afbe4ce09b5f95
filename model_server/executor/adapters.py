"""LoRA adapters as executors hold them: what they add to a product, merged as its weights are.

    qkv:  shrink  | A_q |    expand  | B_q |     |     |
                  | A_k |            |     | B_k |     |
                  | A_v |            |     |     | B_v |

A row x of an adapter gets expand(shrink(x)) on top of the product's sums. For the native forward
both are packed by the same orders of columns as the weights, in float32, or in bfloat16 where it
holds the same numbers: what a row is rounded to for the weights does not concern them.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from model_server.adapter import Adapter, LinearShapes
from model_server.executor.int4 import Int4Weight
from model_server.executor.weights import (
    COLUMNS,
    FORMATS,
    AdaptersStruct,
    Arena,
    Columns,
    MatrixStruct,
    PackedWeights,
    Packer,
    ProductColumns,
)
from model_server.recipe.recipe import Layer, Linear, Recipe

_NUM_PRODUCTS = 4  # of a layer; kNumParts of the C++


class PackedAdapter(Protocol):
    """An adapter as one executor keeps it."""

    @property
    def num_bytes(self) -> int:
        """Of memory, on this rank."""


class AdapterPlaces(Protocol):
    """The adapters of one executor, each in its place."""

    @property
    def adaptable(self) -> LinearShapes:
        """The linear layers that adapters may change, whole."""

    @property
    def bytes_each(self) -> int:
        """Bytes that one adapter takes at most, beside what is allocated already."""

    def pack(self, adapter: Adapter) -> PackedAdapter:
        """This rank's part of an adapter. On any thread, beside steps. Raises MemoryError."""

    def set(self, place: int, adapter: PackedAdapter | None) -> None:
        """Compute with an adapter in the steps that name its place, or with none. Between steps."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedAdapter:
    """What an adapter adds to one product; rows of `expands` by the names of the weights.

    shrink:  [rank, inputs], the ranks of all its layers
    expands: [outputs, rank] each, as the weights are stored; zeros for a layer without an adapter
    """

    shrink: Tensor
    expands: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, adapter: Adapter, linears: Sequence[Linear], shapes: Mapping[str, tuple[int, int]]
    ) -> "MergedAdapter | None":
        """None: it adds nothing to this product.

        shapes: outputs and inputs by the names of weights
        """
        found = {
            linear.weight: adapter.layers[layer_name(linear)]
            for linear in linears
            if layer_name(linear) in adapter.layers
        }
        if not found:
            return None
        shrink = torch.cat([each.a.float() for each in found.values()])
        starts = {}
        rank = 0
        for name, each in found.items():
            starts[name] = rank
            rank += each.rank
        expands = {}
        for linear in linears:
            # The native forward reads its words two numbers at a time.
            expand = torch.zeros(shapes[linear.weight][0], rank + rank % 2)
            if linear.weight in found:
                b = found[linear.weight].b
                start = starts[linear.weight]
                expand[:, start : start + b.shape[1]] = b
            expands[linear.weight] = expand.T if linear.transposed else expand
        return cls(shrink, expands)


def layer_name(linear: Linear) -> str:
    """By which an adapter knows it."""
    return linear.weight.removesuffix(".weight")


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


def adaptable_layers(recipe: Recipe, shapes: Mapping[str, tuple[int, int]]) -> LinearShapes:
    """Those of a recipe's products, which adapters may change."""
    linears = (linear for layer in recipe.layers for part in layer.products for linear in part)
    return {layer_name(linear): shapes[linear.weight] for linear in linears}


def most_bytes(recipe: Recipe, shapes: Mapping[str, tuple[int, int]], max_rank: int) -> int:
    """Of an adapter of all of a recipe's products, in float32.

    shapes: outputs and inputs by the names of weights
    """
    total = 0
    for linears in (part for layer in recipe.layers for part in layer.products if part):
        rank = _padded(_num_layers(linears) * max_rank)
        outputs = sum(_padded(linear.rows.count) for linear in linears)
        total += 4 * rank * (shapes[linears[0].weight][1] + outputs)
    return total


def _num_layers(linears: Sequence[Linear]) -> int:
    """Linear layers of a product: several parts of one count once."""
    return len({linear.weight for linear in linears})


class NativeAdapters:
    """See AdapterPlaces; owner of what `struct` leads to."""

    def __init__(
        self, library: ctypes.CDLL, weights: PackedWeights, max_loras: int, max_rank: int
    ) -> None:
        self._library = library
        self._weights = weights
        self._max_loras = max_loras
        recipe = weights.recipe
        self.adaptable = adaptable_layers(recipe, weights.shapes)
        self.bytes_each = most_bytes(recipe, weights.shapes, max_rank)
        products = (part for layer in recipe.layers for part in layer.products)
        width = max(_padded(_num_layers(part) * max_rank) for part in products)
        self._matrices = (MatrixStruct * (len(recipe.layers) * _NUM_PRODUCTS * 2 * max_loras))()
        self._places: list[NativeAdapter | None] = [None] * max_loras
        self.struct = AdaptersStruct(max_loras, width, ctypes.addressof(self._matrices))

    def pack(self, adapter: Adapter) -> "NativeAdapter":
        """See AdapterPlaces."""
        return NativeAdapter(self._library, self._weights, adapter)

    def set(self, place: int, adapter: PackedAdapter | None) -> None:
        """See AdapterPlaces."""
        assert adapter is None or isinstance(adapter, NativeAdapter)
        for product in range(len(self._matrices) // (2 * self._max_loras)):
            for index in range(2):
                at = (2 * product + index) * self._max_loras + place
                pair = None if adapter is None else adapter.pairs[product]
                self._matrices[at] = MatrixStruct() if pair is None else pair[index]
        self._places[place] = adapter


class NativeAdapter:
    """An adapter packed for the native forward, in memory of its own.

    pairs: shrink and expand of the products, layer by layer; None: it adds nothing there
    """

    def __init__(self, library: ctypes.CDLL, weights: PackedWeights, adapter: Adapter) -> None:
        self._weights = weights
        self._arena = Arena()
        # Steps have the cores.
        self._packer = Packer(library, self._arena, num_threads=1)
        self.pairs = [
            self._pair(layer, index, MergedAdapter.of(adapter, linears, weights.shapes))
            for layer in weights.recipe.layers
            for index, linears in enumerate(layer.products)
        ]
        self.num_bytes = self._arena.num_bytes

    def _pair(
        self, layer: Layer, index: int, merged: MergedAdapter | None
    ) -> tuple[MatrixStruct, MatrixStruct] | None:
        if merged is None:
            return None
        expands = merged.expands
        if all(_is_narrow(expand) for expand in expands.values()):
            expands = {name: expand.bfloat16() for name, expand in expands.items()}
        order = ProductColumns(expands, self._weights.tables, has_biases=False)
        if index == 0:
            columns = order.of_mixer(layer.mixer)
        elif index == 2 and layer.plain_mlp is not None:
            columns = order.of_mlp(layer.plain_mlp)
        else:
            (linear,) = layer.products[index]
            columns = order.of(linear)
        shrink = merged.shrink
        if _is_narrow(shrink):
            shrink = shrink.bfloat16()
        return self._packed(Columns.of(shrink, None)), self._packed(columns)

    def _packed(self, columns: Columns) -> MatrixStruct:
        is_narrow = columns.element == FORMATS["bf16"]
        return self._packer.matrix(columns, "wide" if is_narrow else "f32")


def _is_narrow(tensor: Tensor) -> bool:
    """Whether bfloat16 holds its numbers as they are."""
    return bool((tensor.bfloat16().float() == tensor).all())


def _padded(count: int) -> int:
    return -(-count // COLUMNS) * COLUMNS
