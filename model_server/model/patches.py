"""Patches of a loaded module's linear layers on a CPU: faster and more batch-invariant.

    packed:  oneDNN reorders the weight of a linear layer at every call; here it does so once
    merged:  q, k, v (and gate, up) read the same input, so they become one product; each layer
             keeps its forward, which hands out its slice
    steady:  in float32, too: a row comes out the same however many rows there are, where that
             costs next to nothing (see `steady.py`)

What is patched is recognised by its structure, never by a model's name, and whoever applies this
compares the model's logits with those from before. It knows neither transformers nor steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from model_server.model.batch_invariant import Product, RowRange, find_range, same_counts, steady

_MERGED_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(slots=True)
class Patched:
    """How many linear layers were packed, and how many products are batch-invariant or not.

    `thread_counts`: by how many threads steady products come out the same, the present number
    first, falling; of those few that are looked at.
    """

    num_packed: int = 0
    num_invariant: int = 0
    num_variant: int = 0
    thread_counts: tuple[int, ...] = ()


def apply(model: nn.Module) -> Patched:
    """Patch every linear layer that gains by it, in place.

    The original weights stay where they are: with a checkpoint of the same dtype they are pages of
    its file, which nobody reads again.
    """
    most = torch.get_num_threads()
    fewer = sorted({most - 1, most // 2} - {0, most}, reverse=True)
    patched = Patched(thread_counts=(most, *fewer))
    products = _Products(patched)
    for parent in model.modules():
        for names in _MERGED_NAMES:
            linears = [getattr(parent, name, None) for name in names]
            if _can_merge(linears):
                _merge(linears, products)
                patched.num_packed += len(linears)
    for module in model.modules():
        if _can_pack(module):
            _replace_forward(module, products.packed([module]))
            patched.num_packed += 1
        elif _can_steady(module):
            _replace_forward(module, products.plain(module))
    return patched


class _Products:
    """Makes products, and caches the range of rows of each shape."""

    def __init__(self, patched: Patched) -> None:
        self._patched = patched
        self._ranges: dict[tuple[object, ...], RowRange | None] = {}

    def packed(self, linears: Sequence[nn.Linear]) -> Product:
        """The product with the layers' weights, one below the other, in oneDNN's own order."""
        weight = torch.cat([linear.weight.data for linear in linears])
        biases = [linear.bias.data for linear in linears if linear.bias is not None]
        return self._steady(_packed_product, weight, torch.cat(biases) if biases else None)

    def plain(self, linear: nn.Linear) -> Product:
        """The layer's own product."""
        bias = linear.bias.data if linear.bias is not None else None
        return self._steady(_plain_product, linear.weight.data, bias)

    def _steady(
        self, make: Callable[[Tensor, Tensor | None], Product], weight: Tensor, bias: Tensor | None
    ) -> Product:
        product = make(weight, bias)
        key = (make, weight.dtype, *weight.shape)
        if key not in self._ranges:
            self._ranges[key] = self._find_range(lambda probe: make(probe, None), weight)
        rows = self._ranges[key]
        if rows is None:
            self._patched.num_variant += 1
            return product
        self._patched.num_invariant += 1
        return steady(product, rows)

    def _find_range(self, make: Callable[[Tensor], Product], weight: Tensor) -> RowRange | None:
        rows = find_range(make, weight)
        if rows is not None:
            patched = self._patched
            patched.thread_counts = same_counts(make, weight, rows, patched.thread_counts)
        return rows


class _SharedProduct:
    """One product of an input that several layers take their slices of.

    Each asks once, with the same tensor; the last one to ask lets it go.
    """

    def __init__(self, product: Product, sizes: Sequence[int]) -> None:
        self._product = product
        self._sizes = list(sizes)
        self._input: Tensor | None = None
        self._slices: tuple[Tensor, ...] = ()
        self._num_asked = 0

    def slice_of(self, index: int) -> Product:
        """The forward of the layer at `index`."""

        def forward(hidden: Tensor) -> Tensor:
            if hidden is not self._input:
                self._input = hidden
                self._slices = self._product(hidden).split(self._sizes, dim=-1)
                self._num_asked = 0
            output = self._slices[index]
            self._num_asked += 1
            if self._num_asked == len(self._sizes):
                self._input, self._slices = None, ()
            return output

        return forward


def _can_pack(module: object) -> TypeGuard[nn.Linear]:
    """A linear layer of torch, in bfloat16 on a CPU, whose forward nobody has replaced."""
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.bfloat16
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _can_steady(module: object) -> TypeGuard[nn.Linear]:
    """A linear layer of torch, in float32 on a CPU, whose forward nobody has replaced."""
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
    )


def _can_merge(modules: Sequence[object]) -> TypeGuard[list[nn.Linear]]:
    linears = [module for module in modules if _can_pack(module)]
    return (
        len(linears) == len(modules)
        and len({linear.in_features for linear in linears}) == 1
        and len({linear.bias is None for linear in linears}) == 1
        and len(set(map(id, linears))) == len(linears)
    )


def _merge(linears: Sequence[nn.Linear], products: _Products) -> None:
    shared = _SharedProduct(products.packed(linears), [linear.out_features for linear in linears])
    for index, linear in enumerate(linears):
        _replace_forward(linear, shared.slice_of(index))


def _packed_product(weight: Tensor, bias: Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(hidden: Tensor) -> Tensor:
        output: Tensor = multiply(hidden, packed, bias, "none", [], "")
        return output

    return product


def _plain_product(weight: Tensor, bias: Tensor | None) -> Product:
    return lambda hidden: nn.functional.linear(hidden, weight, bias)


def _replace_forward(linear: nn.Linear, forward: Product) -> None:
    linear.forward = forward  # type: ignore[method-assign, assignment]
