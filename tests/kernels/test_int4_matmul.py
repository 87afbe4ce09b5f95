"""Products in 4 bits: as with the weight in full, and with matrix instructions."""

import pytest
import torch

from model_server.executor.int4 import Int4Weight, packed
from model_server.executor.layer_ops import TorchLayerOps
from model_server.executor.triton_layers import TritonLayerOps
from tests.kernels.ahead_of_time import SHARED_LIMITS, compiled
from tests.kernels.launches import INT4_ROWS
from tests.kernels.paged_steps import DEVICE
from tests.kernels.test_layer_ops import assert_near, numbers


def weight_of(num_outputs: int, num_inputs: int, group_len: int) -> Int4Weight:
    generator = torch.Generator().manual_seed(num_outputs)
    shape = (num_outputs, num_inputs // group_len)
    return Int4Weight(
        packed(torch.randint(0, 16, (num_outputs, num_inputs), generator=generator)),
        (torch.rand(shape, generator=generator) / 16).to(torch.float16),
        torch.randint(0, 17, shape, generator=generator, dtype=torch.uint8),
    ).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "num_inputs", "group_len"),
    [(1, 40, 128, 128), (3, 72, 192, 64), (20, 32, 96, 32), (70, 96, 80, 16), (5, 24, 192, 96)],
)
def test_a_product_is_that_of_the_weight_in_full(
    num_rows: int, num_outputs: int, num_inputs: int, group_len: int, dtype: torch.dtype
) -> None:
    weight = weight_of(num_outputs, num_inputs, group_len)
    x = numbers(num_rows, num_inputs, dtype=dtype) / 4
    bias = numbers(num_outputs, seed=1, dtype=dtype) if num_rows % 2 else None
    actual, expected = (
        ops.multiply_int4(x, weight, bias).float() for ops in (TritonLayerOps(), TorchLayerOps())
    )
    # The interpreter truncates to bfloat16.
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}[dtype]
    spread = float(expected.std())
    torch.testing.assert_close(actual / spread, expected / spread, rtol=0, atol=tolerance)


def test_a_row_has_the_same_bits_alone_and_among_others_of_a_tile() -> None:
    weight = weight_of(48, 128, 64)
    x = numbers(16, 128)
    together = TritonLayerOps().multiply_int4(x, weight, None)
    assert_near(TritonLayerOps().multiply_int4(x[5:6], weight, None), together[5:6])


@pytest.mark.slow
def test_products_use_matrix_instructions_and_do_not_spill() -> None:
    found = compiled("int4")
    assert len(found) == 3 * len(INT4_ROWS)
    for each in found:
        assert each.local_bytes == 0, each
        assert each.num_matrix_ops > 0, each
        assert each.shared_bytes <= SHARED_LIMITS[each.architecture], each
