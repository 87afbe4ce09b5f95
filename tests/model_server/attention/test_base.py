"""The storage of a layer: shape, zeros, and the bytes that a block is said to take."""

import pytest
import torch

from model_server.attention.base import AttentionBackend, LayerGeometry
from model_server.attention.cpu_op import CpuOp, CpuOpAttention
from model_server.attention.reference import ReferenceAttention
from tests.model_server.attention.attention_cases import CPU
from tests.native.compiler import needs_compiler

GEOMETRIES = [LayerGeometry(2, 16, 16), LayerGeometry(1, 32, 48)]


def test_a_layer_has_its_blocks_zeroed() -> None:
    first, second = (
        ReferenceAttention(4).allocate(11, geometry, torch.float32, CPU) for geometry in GEOMETRIES
    )
    assert first.keys.shape == (11, 4, 2, 16)
    assert second.values.shape == (11, 4, 1, 48)
    assert not second.keys.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_of_a_block_are_what_it_takes(dtype: torch.dtype) -> None:
    assert_true_bytes(ReferenceAttention(16), dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operator_takes_as_many_bytes(dtype: torch.dtype) -> None:
    assert_true_bytes(CpuOpAttention(CpuOp.load()), dtype)


def assert_true_bytes(backend: AttentionBackend, dtype: torch.dtype) -> None:
    for geometry in GEOMETRIES:
        layer = backend.allocate(11, geometry, dtype, CPU)
        taken = layer.keys.nbytes + layer.values.nbytes
        assert backend.bytes_per_block(geometry, dtype) * 11 == taken


def test_a_geometry_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="value_dim must be positive, got 0"):
        LayerGeometry(1, 16, 0)
