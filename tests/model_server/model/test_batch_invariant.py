"""Rows that come out the same however many there are: the range is found, and kept to."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model_server.model.patches import Product, RowRange, find_range, same_counts, steady

LIKE = torch.empty(24, 64)


def changing_at(*bounds: int) -> Callable[[Tensor], Product]:
    """Products that add up in another order from each of these numbers of rows on."""

    def make(weight: Tensor) -> Product:
        def product(hidden: Tensor) -> Tensor:
            num_kernel = sum(hidden.shape[0] >= bound for bound in bounds)
            terms = hidden[:, None, :] * weight
            total = torch.zeros(hidden.shape[0], weight.shape[0])
            for column in range(terms.shape[2]):
                total += terms[:, :, (column * (2 * num_kernel + 1)) % terms.shape[2]]
            return total

        return product

    return make


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((), RowRange(1, 512)),
        ((2,), RowRange(2, 512)),
        ((2, 11), RowRange(16, 512)),
        ((257,), RowRange(1, 256)),
        ((4, 130), RowRange(4, 128)),
        ((33,), RowRange(1, 32)),
        ((8, 33), RowRange(16, 32)),
        ((20, 31), None),
    ],
)
def test_the_widest_range_is_found(bounds: tuple[int, ...], expected: RowRange | None) -> None:
    assert find_range(changing_at(*bounds), LIKE) == expected


def test_a_large_weight_is_not_cut_fine() -> None:
    assert find_range(lambda weight: changing_at(33)(weight[:24]), torch.empty(1 << 15, 64)) is None


def test_a_weight_of_one_column_has_nothing_to_add_up() -> None:
    assert find_range(changing_at(), torch.empty(24, 1)) is None


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 32, 33, 35, 64, 100])
def test_any_number_of_rows_is_computed_within_the_range(num_rows: int) -> None:
    seen = []

    def product(hidden: Tensor) -> Tensor:
        seen.append(hidden.shape[0])
        return hidden @ torch.eye(8)[:, :5]

    hidden = torch.randn(num_rows, 8)
    output = steady(product, RowRange(4, 32))(hidden)
    assert torch.equal(output, hidden[:, :5])
    assert all(4 <= size <= 32 for size in seen)


def test_the_shape_before_the_rows_is_kept() -> None:
    hidden = torch.randn(2, 30, 8)
    output = steady(lambda rows: rows @ torch.eye(8)[:, :5], RowRange(4, 32))(hidden)
    assert torch.equal(output, hidden[..., :5])


@pytest.mark.parametrize(("num_out", "num_in"), [(256, 640), (96, 64), (768, 256)])
def test_torchs_own_products_are_made_steady(num_out: int, num_in: int) -> None:
    weight, hidden = torch.randn(num_out, num_in), torch.randn(600, num_in)

    def make(weight: Tensor) -> Product:
        return lambda rows: torch.nn.functional.linear(rows, weight)

    found = find_range(make, weight)
    if found is None:
        pytest.skip("this processor's library has no range that is wide enough")
    product = steady(make(weight), found)
    whole = product(hidden)
    for num_rows in (1, 2, 5, 13, 16, 31, 40, 100, 300, 520):
        assert torch.equal(product(hidden[:num_rows]), whole[:num_rows]), num_rows


def test_numbers_of_threads_that_change_a_product_are_left_out() -> None:
    def make(weight: Tensor) -> Product:
        by_one = changing_at()(weight)
        return lambda hidden: by_one(hidden) + (torch.get_num_threads() == 3)

    present = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert same_counts(make, LIKE, RowRange(1, 512), (4, 3, 2)) == (4, 2)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(present)


def test_numbers_of_threads_are_tried_within_the_range_alone() -> None:
    seen = set()

    def make(_: Tensor) -> Product:
        def product(hidden: Tensor) -> Tensor:
            seen.add(hidden.shape[0])
            return hidden

        return product

    same_counts(make, LIKE, RowRange(4, 64), (2, 1))
    assert seen
    assert all(4 <= size <= 64 for size in seen)
