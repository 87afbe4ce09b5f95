"""Adapters' products by kernels: as plain torch adds them, row by row, whatever stands beside."""

import pytest
import torch
from torch import Tensor

from model_server.executor.layer_ops import LayerOps, TorchLayerOps
from model_server.executor.triton_layers import TritonLayerOps
from tests.kernels.ahead_of_time import TARGETS, compiled
from tests.kernels.paged_steps import DEVICE

NUM_INPUTS = 1100  # of which a program reads 1,024 at once
NUM_OUTPUTS = 300
RANK = 18


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


SHRINKS = numbers(3, RANK, NUM_INPUTS, seed=1)
EXPANDS = numbers(3, NUM_OUTPUTS, RANK, seed=2)
X = numbers(6, NUM_INPUTS, seed=3)
PRODUCT = numbers(6, NUM_OUTPUTS, seed=4)
PLACES = torch.tensor([2, -1, 0, 2, -1, 1], dtype=torch.int32, device=DEVICE)


def added(ops: LayerOps, rows: slice = slice(None), dtype: torch.dtype = torch.float32) -> Tensor:
    product = PRODUCT[rows].to(dtype, copy=True)
    ops.add_low_rank(X[rows].to(dtype), SHRINKS, EXPANDS, PLACES[rows], product)
    return product


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str
)
def test_rows_get_what_their_own_adapters_add(dtype: torch.dtype, tolerance: float) -> None:
    actual = added(TritonLayerOps(), dtype=dtype)

    expected = added(TorchLayerOps(), dtype=dtype)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=100 * tolerance)
    assert torch.equal(actual[[1, 4]], PRODUCT[[1, 4]].to(dtype))
    assert not torch.equal(actual[[0, 2]], PRODUCT[[0, 2]].to(dtype))


def test_a_row_has_the_same_bits_alone() -> None:
    together = added(TritonLayerOps())
    for row in range(len(X)):
        assert torch.equal(added(TritonLayerOps(), slice(row, row + 1)), together[row : row + 1])


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", TARGETS)
def test_nothing_spills_and_all_load_16_bytes_at_a_time(architecture: int) -> None:
    found = compiled("adapters", architecture)
    assert len(found) == 2
    for each in found:
        assert each.local_bytes == 0, each
        assert each.num_wide_loads > 0, each
