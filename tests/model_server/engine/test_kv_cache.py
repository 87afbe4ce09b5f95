"""The pool gives every layer its blocks, and one more that belongs to no sequence."""

import pytest
import torch

from model_server.attention.cpu_op import CpuOp, CpuOpAttention
from model_server.attention.reference import ReferenceAttention
from model_server.engine.kv_cache import CacheLayout, KVCache, LayerGeometry, bytes_per_block
from tests.model_server.attention.attention_cases import CPU
from tests.native.compiler import needs_compiler

GEOMETRIES = [LayerGeometry(2, 16, 16), LayerGeometry(1, 32, 48)]


def test_every_layer_has_the_blocks_and_the_scratch_block_zeroed() -> None:
    cache = KVCache(ReferenceAttention(4), GEOMETRIES, 10, torch.float32, CPU)
    assert (cache.num_layers, cache.num_blocks, cache.block_size) == (2, 10, 4)
    assert cache.scratch_block_id == 10
    assert cache.layer(0).keys.shape == (11, 4, 2, 16)
    assert cache.layer(1).values.shape == (11, 4, 1, 48)
    assert not cache.layer(1).keys.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_of_a_block_are_what_it_takes(dtype: torch.dtype) -> None:
    assert_true_bytes(ReferenceAttention(16), dtype)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operator_takes_as_many_bytes(dtype: torch.dtype) -> None:
    assert_true_bytes(CpuOpAttention(CpuOp.load()), dtype)


def assert_true_bytes(layout: CacheLayout, dtype: torch.dtype) -> None:
    cache = KVCache(layout, GEOMETRIES, 10, dtype, CPU)
    layers = [cache.layer(index) for index in range(cache.num_layers)]
    taken = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    assert bytes_per_block(layout, GEOMETRIES, dtype) * 11 == taken


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks must be positive, got 0"):
        KVCache(ReferenceAttention(4), GEOMETRIES, 0, torch.float32, CPU)
    with pytest.raises(ValueError, match="at least one layer"):
        KVCache(ReferenceAttention(4), [], 1, torch.float32, CPU)
    with pytest.raises(ValueError, match="value_dim must be positive, got 0"):
        LayerGeometry(1, 16, 0)
