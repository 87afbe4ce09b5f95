"""Linear layers on CPUs: packed, merged, and with sums that do not depend on the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

Product = Callable[[Tensor], Tensor]

# What may be filled up to, and what may be cut at, without costing more than a few percent.
_FILLS = (1, 2, 4, 16)
_CUTS = (512, 384, 256, 192, 128)
# A small weight stays in the cache, so that its products may be cut finer.
_SMALL = 1 << 20
_SMALL_CUTS = (64, 32)
_SIZES = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 15, 16, 17, 23, 31, 32, 33, 37, 47, 48, 63, 64, 65, 80, 95),
    *(96, 97, 112, 127, 128, 129, 160, 191, 192, 193, 224, 255, 256, 257, 320, 383, 384, 448, 512),
)
_SIZES_BY_THREADS = (1, 2, 4, 8, 16, 33, 64, 128)
# Beyond so many outputs the kernel is the same; a vocabulary's weights need not be made twice.
_MAX_PROBED_OUT = 8192


@dataclass(frozen=True, slots=True)
class RowRange:
    """The numbers of rows, both included, between which a product is batch-invariant."""

    min_rows: int
    max_rows: int


def find_range(make: Callable[[Tensor], Product], like: Tensor) -> RowRange | None:
    """The range for products with a weight like `like`, [out, in]; None: none that is wide enough.

    `make` turns a weight into its product. The probe's sums cancel exactly, so that what is left of
    them is rounding alone, which any other order of adding up changes.
    """
    if like.shape[1] < 2:
        return None
    weight, hidden = _probe(like)
    product = make(weight)
    results = {size: product(hidden[:size].contiguous()) for size in _SIZES}
    is_small = like.numel() <= _SMALL
    for max_rows in (*_CUTS, *_SMALL_CUTS) if is_small else _CUTS:
        longest = results[max_rows]
        agreeing = [size for size in _SIZES if torch.equal(results[size], longest[:size])]
        for min_rows in _FILLS:
            if all(size in agreeing for size in _SIZES if min_rows <= size <= max_rows):
                return RowRange(min_rows, max_rows)
    return None


def same_counts(
    make: Callable[[Tensor], Product], like: Tensor, rows: RowRange, counts: Sequence[int]
) -> tuple[int, ...]:
    """Those of `counts`, numbers of threads, by which products come out as by the present one.

    For products with a weight like `like`, of numbers of rows within the range.
    """
    weight, hidden = _probe(like)
    product = make(weight)
    present = torch.get_num_threads()

    def results(count: int) -> list[Tensor]:
        torch.set_num_threads(count)
        sizes = (size for size in _SIZES_BY_THREADS if rows.min_rows <= size <= rows.max_rows)
        return [product(hidden[:size].contiguous()) for size in sizes]

    try:
        usual = results(present)
        return tuple(count for count in counts if all(map(torch.equal, results(count), usual)))
    finally:
        torch.set_num_threads(present)


def _probe(like: Tensor) -> tuple[Tensor, Tensor]:
    """A weight, [out, in], and rows for it, [rows, in], whose products cancel but for rounding."""
    num_out, num_in = min(like.shape[0], _MAX_PROBED_OUT), like.shape[1]
    random = torch.Generator().manual_seed(0)
    half = torch.randn(num_out, num_in // 2, generator=random)
    rows = torch.randn(_SIZES[-1], num_in // 2, generator=random)
    rest = num_in - 2 * (num_in // 2)
    weight = torch.cat([half, half, torch.zeros(num_out, rest)], 1).to(like.dtype)
    hidden = torch.cat([rows, -rows, torch.zeros(len(rows), rest)], 1).to(like.dtype)
    return weight, hidden


def steady(product: Product, rows: RowRange) -> Product:
    """`product`, computed within the range only, for any number of rows."""

    def within(hidden: Tensor) -> Tensor:
        num_missing = rows.min_rows - hidden.shape[0]
        if num_missing <= 0:
            return product(hidden)
        return product(nn.functional.pad(hidden, (0, 0, 0, num_missing)))[: hidden.shape[0]]

    def any_number(hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        num_rows = flat.shape[0]
        if rows.min_rows <= num_rows <= rows.max_rows:
            return product(hidden)
        parts: Sequence[Tensor] = flat.split(rows.max_rows)
        outputs = [within(part) for part in parts]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output.view(*hidden.shape[:-1], output.shape[-1])

    return any_number


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
