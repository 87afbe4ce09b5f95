"""Packed weights: what is packed apart, and what is let go of."""

import pytest
import torch
from torch import Tensor

from model_server.executor.grouped import GroupedWeight
from model_server.executor.weights import Columns
from tests.model_server.executor.decoders import decoder
from tests.native.compiler import needs_compiler


def grouped(num_columns: int, bits: int) -> GroupedWeight:
    weight = GroupedWeight.rounded(torch.randn(num_columns, 128), bits)
    assert weight is not None
    return weight


@pytest.mark.parametrize(
    ("weights", "lens"),
    [
        ((grouped(64, 4), grouped(32, 4), grouped(32, 6)), (96, 32)),
        ((grouped(64, 4), torch.ones(32, 128), torch.ones(32, 128)), (64, 64)),
        # Of three kinds: where it takes the least.
        ((grouped(64, 4), grouped(32, 6), grouped(32, 4)), (64, 64)),
        ((grouped(64, 6), grouped(32, 4), grouped(32, 8)), (96, 32)),
        ((grouped(64, 6), grouped(32, 4), torch.ones(32, 128)), (96, 32)),
        # Of one kind, and with no whole panel before the second.
        ((grouped(64, 4), grouped(32, 4)), (96,)),
        ((grouped(16, 4), grouped(32, 6)), (48,)),
    ],
)
def test_the_last_columns_are_apart_where_they_are_stored_differently(
    weights: tuple[Tensor | GroupedWeight, ...], lens: tuple[int, ...]
) -> None:
    merged = Columns.concatenate([Columns.of(each, torch.rand(each.shape[0])) for each in weights])
    parts = merged.in_parts()
    assert tuple(map(len, parts)) == lens
    again = Columns.concatenate(parts)
    assert again.weights == merged.weights
    assert (again.places == merged.places).all()
    assert (again.biases == merged.biases).all()


@needs_compiler
def test_every_parameter_is_let_go_of_once_and_layers_in_their_order() -> None:
    own = decoder("qwen3_moe")
    released: list[str] = []
    own.executor(torch.bfloat16, release=released.append).close()
    assert sorted(released) == sorted(own.recipe.weights())
    layers = [int(name.split(".")[2]) for name in released if name.startswith("model.layers.")]
    assert layers == sorted(layers)


@needs_compiler
def test_a_block_has_keys_and_values_of_every_layer() -> None:
    executor = decoder("llama").executor(torch.bfloat16)
    num_layers = 6
    num_kv_heads = 2
    head_dim = 32
    assert executor.bytes_per_block == num_layers * 2 * 16 * num_kv_heads * head_dim * 2
    executor.close()
