"""Packed weights: what is let go of."""

import torch

from tests.model_server.executor.decoders import decoder
from tests.native.compiler import needs_compiler


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
