# mypy: disable-error-code="no-untyped-def"
"""The seam of all launches."""

import torch
import triton
import triton.language as tl

from model_server.triton_launch import launch, padded


@triton.jit
def _double(numbers, WIDTH: tl.constexpr):
    places = tl.arange(0, WIDTH)
    tl.store(numbers + places, tl.load(numbers + places) * 2)


def test_a_kernel_is_launched_over_its_grid() -> None:
    numbers = torch.arange(4.0, device="cuda" if torch.cuda.is_available() else "cpu")
    launch(_double, (1,), numbers, WIDTH=4)
    assert numbers.tolist() == [0, 2, 4, 6]


def test_a_dimension_is_filled_up_to_a_power_of_two() -> None:
    assert [padded(width) for width in (1, 3, 80, 128)] == [1, 4, 128, 128]
    assert padded(4, least=16) == 16
