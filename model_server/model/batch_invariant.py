"""Batch-invariant matrix products: the ranges of rows in which a row's bits do not change.

A CPU's library picks its kernel by the number of rows, and two kernels may add up in another order:
then a token's bits depend on what else is in its step. So for each shape it is found out, once,
between which numbers of rows all results agree to the bit:

    rows:       1 ... min_rows ............ max_rows ......
    computed:   filled up      as they are  in parts

Where no such range is wide enough to be free of cost, products stay as they are, and the loader
says so. In the same way it is found out by which numbers of threads the bits stay the same. It
knows no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
