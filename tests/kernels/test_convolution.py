"""A short convolution by a kernel: as plain torch computes it, however tokens are cut."""

import torch
from torch import Tensor

from model_server.executor.layer_ops import Convolution, LayerOps, TorchLayerOps
from model_server.executor.triton_layers import TritonLayerOps
from tests.kernels.paged_steps import DEVICE, state_slots

CHANNELS = 300
NUM_TAPS = 4
NUM_SLOTS = 9


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


CONV = Convolution(numbers(CHANNELS, NUM_TAPS, seed=1), numbers(CHANNELS, seed=2))
ROWS = numbers(9, 3 * CHANNELS, seed=3)


def poisoned() -> Tensor:
    return torch.full((NUM_SLOTS, *CONV.window_shape), float("nan"), device=DEVICE)


def in_two_steps(ops: LayerOps) -> tuple[Tensor, Tensor]:
    """Of two sequences, of which one keeps a state; and the pool, which is NaN at first."""
    windows = poisoned()
    first = ops.convolve(ROWS[:7], CONV, windows, state_slots((5, 2), (None, None), (3, 7), {1: 8}))
    second = ops.convolve(ROWS[7:], CONV, windows, state_slots((1, 1), (3, 7), (4, 0)))
    return torch.cat((first, second)), windows


def test_rows_and_windows_are_those_of_plain_torch_and_no_other_slot_is_written() -> None:
    for actual, expected in zip(
        in_two_steps(TritonLayerOps()), in_two_steps(TorchLayerOps()), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_bits_depend_neither_on_steps_nor_on_the_batch() -> None:
    ops = TritonLayerOps()
    windows = poisoned()
    whole = ops.convolve(ROWS, CONV, windows, state_slots((9,), (None,), (0,)))
    parts = []
    read = None
    for slot, part in enumerate(ROWS.split([4, 1, 4]), 1):
        slots = state_slots((2, len(part)), (None, read), (8, slot))
        parts.append(ops.convolve(torch.cat((ROWS[:2], part)), CONV, windows, slots)[2:])
        read = slot
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(windows[3], windows[0])
