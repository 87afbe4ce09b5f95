"""The native forward computes what transformers computes, for every kind of decoder."""

import copy
from dataclasses import replace

import pytest
import torch

from model_server.errors import InvalidStep
from tests.model_server.executor.decoders import Pool, decoder, distance, random_tokens
from tests.model_server.recipe.families import EXECUTED
from tests.native.compiler import needs_compiler

BF16 = torch.bfloat16
pytestmark = needs_compiler

LENS = (37, 9, 1, 70)


@pytest.mark.parametrize("family", EXECUTED)
def test_float32_is_as_near_to_transformers_as_another_order_of_sums(family: str) -> None:
    own = decoder(family)
    pool = Pool(own.executor(torch.float32))
    prompts = random_tokens(sum(LENS)).split(list(LENS))

    actual = pool.run([(pool.sequence(prompt), len(prompt)) for prompt in prompts])

    expected = torch.cat([own.native(prompt) for prompt in prompts])
    assert distance(torch.cat(actual), expected) < 1e-5


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "stablelm", "gpt_neox", "mixtral"])
def test_bfloat16_is_as_near_to_float32_as_transformers_in_bfloat16(family: str) -> None:
    own = decoder(family)
    pool = Pool(own.executor(BF16))
    prompt = random_tokens(100)
    (actual,) = pool.run([(pool.sequence(prompt), 100)])

    low = copy.deepcopy(own.model)
    for parameter in low.parameters():
        parameter.data = parameter.data.bfloat16()
    with torch.inference_mode():
        native = low(prompt[None], use_cache=False).logits[0].float()
    expected = own.native(prompt)
    assert distance(actual, expected) < 1.3 * distance(native, expected)


def test_int8_weights_stay_near_float32() -> None:
    own = decoder("llama")
    pool = Pool(own.executor(BF16, quantize="int8"))
    prompt = random_tokens(100)
    (actual,) = pool.run([(pool.sequence(prompt), 100)])
    assert distance(actual, own.native(prompt)) < 0.2


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 144, "intermediate_size": 77, "head_dim": 16},
        {"head_dim": 80},
        {"head_dim": 128, "num_attention_heads": 26, "hidden_size": 208},
        {"head_dim": 16, "num_attention_heads": 5, "num_key_value_heads": 5, "hidden_size": 90},
        {"vocab_size": 97, "tie_word_embeddings": True},
    ],
    ids=str,
)
def test_widths_need_not_be_those_of_registers(changes: dict[str, int]) -> None:
    own = decoder("llama", **changes)
    pool = Pool(own.executor(torch.float32))
    prompt = random_tokens(50) % 97
    (actual,) = pool.run([(pool.sequence(prompt), 50)])
    assert distance(actual, own.native(prompt)) < 1e-5


def test_a_token_that_the_model_does_not_have_is_refused() -> None:
    pool = Pool(decoder("llama").executor(torch.float32))
    with pytest.raises(InvalidStep, match="token 130 is not of the 130"):
        pool.run([(pool.sequence([5, 130]), 2)])


def test_a_position_past_the_tables_is_refused() -> None:
    pool = Pool(decoder("llama").executor(torch.float32))
    with pytest.raises(InvalidStep, match="position 256 is past the last, 255"):
        pool.run([(pool.sequence([5] * 257), 257)])


def test_what_a_broken_sequence_left_in_a_block_reaches_nobody() -> None:
    own = decoder("llama")
    name = "model.embed_tokens.weight"
    embedding = own.parameters[name].clone()
    embedding[7] = float("nan")
    pool = Pool(replace(own, parameters={**own.parameters, name: embedding}).executor(BF16))
    broken, whole, next_owner = (pool.sequence([token] * 48) for token in (7, 5, 5))
    pool.run([(broken, 48)])

    (expected,) = pool.run([(whole, 17)])
    next_owner.block_ids = broken.block_ids
    (actual,) = pool.run([(next_owner, 17)])

    assert expected.isfinite().all()
    assert torch.equal(actual, expected)
