"""The operations of a layer by kernels: as plain torch computes them, a row alone or in a batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from model_server.executor.int4 import Int4Weight, packed
from model_server.executor.layer_ops import HeadLayout, LayerOps, NormWeights, TorchLayerOps
from model_server.executor.triton_layers import TritonLayerOps
from model_server.recipe.recipe import Activation
from tests.kernels.ahead_of_time import SHARED_LIMITS, TARGETS, compiled
from tests.kernels.launches import INT4_ROWS
from tests.kernels.paged_steps import DEVICE
from tests.no_sync import no_sync

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # the interpreter truncates to bfloat16
DTYPES = (torch.float32, torch.bfloat16)
BLOCK_SIZE = 16
NUM_BLOCKS = 6


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def norm_of(kind: str, width: int, row_len: int, *, has_bias: bool = False) -> NormWeights:
    bias = numbers(row_len, seed=8) if has_bias else None
    return NormWeights(kind, width, 0.03, 1 + numbers(row_len, seed=7) / 4, bias)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


NORMS: dict[str, tuple[Any, Any]] = {
    "rms": (norm_of("rms", 96, 96), None),
    "layer with bias": (norm_of("layer", 96, 96, has_bias=True), None),
    "rms after rms": (norm_of("rms", 96, 96), norm_of("rms", 96, 96, has_bias=True)),
    "sum after layer": (None, norm_of("layer", 96, 96)),
    "sum": (None, None),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", NORMS)
def test_a_sum_and_the_norms_around_it(norms: str, dtype: torch.dtype) -> None:
    norm, post_norm = NORMS[norms]
    x = numbers(5, 96, seed=2, dtype=dtype)
    answers = []
    for ops in (TritonLayerOps(), TorchLayerOps()):
        residual = numbers(5, 96, seed=1, dtype=dtype)
        output = ops.add_norm(residual, x, norm, post_norm=post_norm, scale=0.5)
        answers.append((residual, output))
    for actual, expected in zip(*answers, strict=True):
        assert_near(actual, expected)


def test_a_norm_without_a_sum_leaves_the_residual() -> None:
    residual = numbers(3, 96)
    norm = norm_of("rms", 96, 96)
    output = TritonLayerOps().add_norm(residual, None, norm)
    assert torch.equal(residual, numbers(3, 96))
    assert_near(output, TorchLayerOps().add_norm(residual, None, norm))


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    ops = TritonLayerOps()
    norm = norm_of("layer", 96, 96)
    rows = numbers(9, 96)
    assert torch.equal(ops.add_norm(rows, None, norm)[4:5], ops.add_norm(rows[4:5], None, norm))


PLAIN = HeadLayout(6, 2, 64)
ROPED = HeadLayout(6, 2, 64, cos=numbers(50, 32, seed=3), sin=numbers(50, 32, seed=4))
QUERY_NORM = norm_of("rms", 64, 384)
KEY_NORM = norm_of("layer", 64, 128, has_bias=True)
LAYOUTS = {
    "no rope": PLAIN,
    "rope": ROPED,
    "partial rope": HeadLayout(8, 1, 80, cos=numbers(50, 16), sin=numbers(50, 16, seed=5)),
    "norms": replace(ROPED, query_norm=QUERY_NORM, key_norm=KEY_NORM),
    "norms last": replace(ROPED, query_norm=QUERY_NORM, key_norm=KEY_NORM, norms_after_rope=True),
    "norms of the row": replace(
        ROPED, query_norm=norm_of("rms", 384, 384), key_norm=norm_of("rms", 128, 128)
    ),
}


def rotated(ops: LayerOps, heads: HeadLayout, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, and the pool, of which all but five slots are NaN."""
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    qkv = numbers(5, width + 40, dtype=dtype)  # gates may follow
    shape = (NUM_BLOCKS, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)
    pools = [torch.full(shape, float("nan"), dtype=dtype, device=DEVICE) for _ in range(2)]
    positions = torch.tensor([0, 7, 49, 3, 20], device=DEVICE)
    slots = torch.tensor([95, 0, 17, 16, 40], device=DEVICE)
    return ops.rotate_and_write(qkv, heads, positions, slots, *pools), *pools


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_are_rotated_and_written_to_their_slots_alone(
    layout: str, dtype: torch.dtype
) -> None:
    heads = LAYOUTS[layout]
    answers = [rotated(ops, heads, dtype) for ops in (TritonLayerOps(), TorchLayerOps())]
    for actual, expected in zip(*answers, strict=True):
        assert torch.equal(actual.isnan(), expected.isnan())
        assert_near(actual.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_is_what_a_row_ends_with(dtype: torch.dtype) -> None:
    rows = numbers(5, 1900, dtype=dtype)
    attended = numbers(5, 1100, seed=1, dtype=dtype)
    actual = TritonLayerOps().gate(attended, rows)
    assert_near(actual, TorchLayerOps().gate(attended, rows))


def test_a_norm_over_all_heads_after_the_rope_is_refused() -> None:
    heads = replace(ROPED, query_norm=norm_of("rms", 384, 384), norms_after_rope=True)
    with pytest.raises(ValueError, match="384 numbers, over all heads, after the rope"):
        rotated(TritonLayerOps(), heads, torch.float32)


ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("layout", "activation"),
    [
        *(("gate_up", activation) for activation in ACTIVATIONS),
        ("plain", "gelu_tanh"),
        ("gate_up_pairs", "silu"),
        ("gate_up_pairs", "clamped_swiglu"),
    ],
)
def test_activations(layout: str, activation: Activation, dtype: torch.dtype) -> None:
    inner = 6 * numbers(3, 2600, dtype=dtype)
    actual = TritonLayerOps().activate(inner, layout, activation)
    assert_near(actual, TorchLayerOps().activate(inner, layout, activation))


def test_rows_in_8_bits_have_a_scale_each() -> None:
    # Numbers that 8 bits hold: the interpreter does not round as a GPU does.
    held = 448 * torch.arange(0.0, -12.0, -1.0, device=DEVICE).exp2().repeat(3, 8)
    x = held * torch.tensor([[1.0], [-0.25], [0.0]], device=DEVICE)
    rows, scales = TritonLayerOps().quantize(x)
    expected, expected_scales = TorchLayerOps().quantize(x)
    assert torch.equal(rows.float(), expected.float())
    torch.testing.assert_close(scales, expected_scales)
    torch.testing.assert_close(rows.float() * scales, x)


def launched_nothing(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Fake tensors have no memory."""


def test_no_operation_waits_for_the_device() -> None:
    with no_sync():
        ops = TritonLayerOps(launched_nothing)
        rows = torch.empty(4, 384, device="cuda", dtype=torch.bfloat16)
        weight = torch.empty(384, device="cuda")
        norm = NormWeights("rms", 384, 1e-5, weight, None)
        pool = torch.empty(4, 16, 2, 64, device="cuda", dtype=torch.bfloat16)
        qkv = torch.empty(4, 640, device="cuda", dtype=torch.bfloat16)
        places = torch.empty(4, device="cuda", dtype=torch.int64)
        table = torch.empty(50, 32, device="cuda")
        heads = HeadLayout(6, 2, 64, cos=table, sin=table)
        ops.add_norm(rows, rows, norm, post_norm=norm)
        query = ops.rotate_and_write(qkv, heads, places, places, pool, pool)
        assert ops.activate(rows, "gate_up", "silu").shape == (4, 192)
        assert ops.quantize(rows)[1].shape == (4, 1)
        assert query.shape == (4, 6, 64)


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


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", TARGETS)
def test_products_use_matrix_instructions_and_do_not_spill(architecture: int) -> None:
    found = compiled("int4", architecture)
    assert len(found) == len(INT4_ROWS)
    for each in found:
        assert each.local_bytes == 0, each
        assert each.num_matrix_ops > 0, each
        assert each.shared_bytes <= SHARED_LIMITS[architecture], each


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", TARGETS)
def test_no_operation_spills_registers_and_all_load_16_bytes_at_a_time(architecture: int) -> None:
    found = compiled("layer", architecture)
    assert len(found) == 5 + (3 if architecture == 90 else 0)
    assert {(each.kernel, each.label): each.local_bytes for each in found if each.local_bytes} == {}
    assert all(each.num_wide_loads > 0 for each in found if each.kernel != "rotate_and_write")


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", [TARGETS[0], TARGETS[2]])
def test_rows_are_rounded_to_8_bits_without_spilling(architecture: int) -> None:
    (found,) = compiled("quantize", architecture)
    assert found.local_bytes == 0
    assert found.num_wide_loads > 0
