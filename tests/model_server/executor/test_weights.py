"""Packed weights: what is let go of, and what recipes are refused."""

from dataclasses import replace

import pytest
import torch

from model_server.checkpoint.check import unfit_reason
from model_server.recipe.recipe import Attention, Recipe
from tests.model_server.executor.decoders import decoder
from tests.native.compiler import needs_compiler


def with_attention(recipe: Recipe, attention: Attention) -> Recipe:
    return replace(recipe, layers=(replace(recipe.layers[0], attention=attention),))


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


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2", "phi-qk", "gpt_oss"])
def test_such_recipes_are_served(family: str) -> None:
    assert unfit_reason(decoder(family).recipe, torch.bfloat16) is None


def test_the_reason_of_a_refusal_names_what_is_not_served() -> None:
    recipe = decoder("llama").recipe
    attention = recipe.layers[0].attention
    assert unfit_reason(recipe, torch.float16) is not None
    assert (
        unfit_reason(with_attention(recipe, replace(attention, head_dim=40)), torch.float32)
        == "layer 0: head_dim 40 is not a multiple of 16"
    )
    unlike = replace(attention, key=replace(attention.key, rope=None))
    assert (
        unfit_reason(with_attention(recipe, unlike), torch.float32)
        == "layer 0: queries and keys are rotated in different ways"
    )
