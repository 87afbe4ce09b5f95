"""The native forward computes what transformers computes, for every kind of decoder.

And a token's logits have the same bits whatever else is in its step, and however it got there.
"""

import copy
import subprocess
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.executor.dense import (
    MAX_GROUPED_ERRORS,
    in_wide_rows,
    load_grouped,
    logits_in_chunks,
)
from model_server.executor.dense_cpu import DenseCpu
from model_server.executor.grouped import RoundedParameters
from model_server.recipe.dense_torch import DenseTorch, angles_of
from model_server.recipe.recipe import Moe
from proto.contract import KeptState
from tests.model_server.executor.decoders import (
    NUM_STATES,
    Decoder,
    Held,
    Pool,
    ValuesInMoreBits,
    decoder,
    distance,
    random_tokens,
)
from tests.model_server.recipe import families
from tests.model_server.recipe.families import EXECUTED, EXECUTED_ON_CPUS, by_night
from tests.native.compiler import needs_compiler

BF16 = torch.bfloat16
pytestmark = needs_compiler

LENS = (37, 9, 1, 70)
WITH_STATES = (*families.WITH_STATES, *EXECUTED_ON_CPUS)


# What a recipe may say of a layer, these say among them all; the others are tried at night.
ALL_BETWEEN_THEM = {
    *("qwen3_next", "nemotron_h", "lfm3", "phi-qk", "granite4", "gpt_oss", "lfm2-bias", "gemma2"),
    *("dots1", "olmo", "hunyuan", "olmo_hybrid", "bamba", "llama-bias-tied", "mixtral", "glm4_moe"),
}
OTHERS = {*EXECUTED, *EXECUTED_ON_CPUS} - ALL_BETWEEN_THEM


@pytest.mark.parametrize("family", by_night(OTHERS, (*EXECUTED, *EXECUTED_ON_CPUS)))
def test_float32_is_as_near_to_transformers_as_another_order_of_sums(family: str) -> None:
    own = decoder(family)
    pool = Pool(own.executor(torch.float32))
    prompts = random_tokens(sum(LENS)).split(list(LENS))

    actual = pool.run([(pool.sequence(prompt), len(prompt)) for prompt in prompts])

    expected = torch.cat([own.native(prompt) for prompt in prompts])
    # Delta rules in transformers' chunks of 64 are themselves so far from float64.
    most = 2e-5 if family in WITH_STATES else 1e-5
    assert distance(torch.cat(actual), expected) < most


@pytest.mark.parametrize(
    "family",
    ["llama", "gemma3_text", "stablelm", "gpt_neox", "mixtral", "glm4_moe", "qwen3_5", "bamba"],
)
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


@pytest.mark.parametrize("family", ["mixtral", "glm4_moe"])  # of the latter some layers have none
def test_experts_that_are_handed_are_taken_in_place_of_the_best(family: str) -> None:
    own = decoder(family)
    token_ids = random_tokens(20)
    torch.manual_seed(0)
    chosen = {
        index: torch.rand(20, layer.mlp.num_experts).topk(layer.mlp.top_k).indices
        for index, layer in enumerate(own.recipe.layers)
        if isinstance(layer.mlp, Moe)
    }
    top_k = max(each.shape[1] for each in chosen.values())
    experts = torch.zeros(len(own.recipe.layers), 20, top_k, dtype=torch.int32)
    for index, each in chosen.items():
        experts[index] = each
    actual = logits_in_chunks(own.executor(torch.float32), token_ids, experts=experts)

    oracle = DenseTorch(own.recipe, own.parameters, angles_of(own.recipe, own.model))
    assert distance(actual, oracle.logits(token_ids, [20], chosen=chosen)) < 1e-5
    assert distance(actual, own.native(token_ids)) > 0.01


def test_of_many_experts_those_of_the_oracle_prove_the_weights() -> None:
    own = decoder("mixtral", num_local_experts=64, num_experts_per_tok=2)
    executor = load_grouped(
        own.recipe,
        ValuesInMoreBits(own),
        angles_of(own.recipe, own.model),
        partial(DenseCpu, own.recipe, dtype=BF16, num_threads=2),
        num_positions=64,
        quantize=None,
        max_error=MAX_GROUPED_ERRORS[BF16],
    )
    # By itself it chooses others here and there, of nearly the same score.
    token_ids = torch.arange(7, 141, 7) % own.recipe.head.rows.count
    oracle = DenseTorch(own.recipe, ValuesInMoreBits(own), angles_of(own.recipe, own.model))
    with in_wide_rows(executor):
        actual = logits_in_chunks(executor, token_ids)
    assert distance(actual, oracle.logits(token_ids, [20])) > MAX_GROUPED_ERRORS[BF16]


def test_int8_weights_stay_near_float32() -> None:
    own = decoder("llama")
    pool = Pool(own.executor(BF16, quantize="int8"))
    prompt = random_tokens(100)
    (actual,) = pool.run([(pool.sequence(prompt), 100)])
    assert distance(actual, own.native(prompt)) < 0.2


@pytest.mark.parametrize("family", ["llama", "qwen2_moe", "qwen3_5", "starcoder2"])
def test_in_4_bits_it_computes_what_the_rounded_weights_do(family: str) -> None:
    own = decoder(family)
    pool = Pool(own.executor(torch.float32, quantize="int4"))
    assert pool.executor.name.startswith("dense, int4+int8, ")
    prompt = random_tokens(60)
    (actual,) = pool.run([(pool.sequence(prompt), 60)])

    rounded = RoundedParameters(own.parameters, own.recipe.products())
    oracle = DenseTorch(own.recipe, rounded, angles_of(own.recipe, own.model))
    error = distance(actual, oracle.logits(prompt, [60]))
    assert error < 0.15
    assert distance(actual, own.native(prompt)) > 2 * error


def test_values_in_more_bits_than_queries_have_panels_of_their_own() -> None:
    own = decoder("llama")
    mixed = replace(own, parameters=ValuesInMoreBits(own))
    pool = Pool(mixed.executor(torch.float32))
    assert "int4" in pool.executor.name
    assert "int6" in pool.executor.name
    prompt = random_tokens(60)
    (actual,) = pool.run([(pool.sequence(prompt), 60)])
    oracle = DenseTorch(own.recipe, mixed.parameters, angles_of(own.recipe, own.model))
    assert distance(actual, oracle.logits(prompt, [60])) < 0.15

    pieces = (1, 16, 3, 37, 1, 1, 1)
    assert torch.equal(in_pieces(pool, pool.sequence(prompt), pieces, num_mates=5), actual)
    pool.executor.close()


def test_layers_that_no_group_divides_are_in_8_bits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    own = decoder("llama", intermediate_size=77)
    pool = Pool(own.executor(torch.float32, quantize="int4"))
    assert "layers of 77 inputs are in 8 bits, not in 4" in caplog.text
    prompt = random_tokens(20)
    (actual,) = pool.run([(pool.sequence(prompt), 20)])
    rounded = RoundedParameters(own.parameters, own.recipe.products())
    oracle = DenseTorch(own.recipe, rounded, angles_of(own.recipe, own.model))
    assert distance(actual, oracle.logits(prompt, [20])) < 0.15


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


# Around the rows of a tile, the rows that are interleaved, and the tokens that are helped with.
BATCH_SIZES = (1, 2, 4, 5, 7, 12, 13, 25, 64, 65)
PROMPT_LEN = 150
NUM_NEW = 6
KINDS = ("float32", "bfloat16", "int8", "int4")
BIT_EQUAL = ("llama", "gemma3_text", "qwen2_moe", "dots1", "qwen3_5", "nemotron_h")


def executor(own: Decoder, kind: str, num_threads: int = 2) -> DenseCpu:
    if kind in ("int8", "int4"):
        return own.executor(torch.bfloat16, num_threads, quantize=kind)
    return own.executor(getattr(torch, kind), num_threads)


def tokens() -> Tensor:
    return random_tokens(PROMPT_LEN + NUM_NEW)


def in_pieces(pool: Pool, held: Held, pieces: tuple[int, ...], num_mates: int) -> Tensor:
    """The sequence's logits, a step for each piece, every step with pieces of batch mates."""
    logits = []
    mates = [pool.other(60) for _ in range(num_mates)]
    for piece in pieces:
        parts = [(held, piece)]
        for mate in mates:
            count = min(pool.rng.choice((1, 1, 7, 20)), 60 - mate.computed_len)
            if count:
                parts.insert(pool.rng.randrange(len(parts) + 1), (mate, count))
        answers = pool.run(parts)
        logits.append(answers[[sequence is held for sequence, _ in parts].index(True)])
    return torch.cat(logits)


@cache
def alone(family: str, kind: str) -> Tensor:
    """[PROMPT_LEN + NUM_NEW, vocab_size]: the whole prompt in one step, then token by token."""
    pool = Pool(executor(decoder(family), kind, num_threads=1))
    logits = in_pieces(pool, pool.sequence(tokens()), (PROMPT_LEN, *[1] * NUM_NEW), 0)
    pool.executor.close()
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_batch_of_any_size(kind: str) -> None:
    pool = Pool(executor(decoder("llama"), kind))
    mates = [pool.other(40, computed_len=30 + i % 9) for i in range(max(BATCH_SIZES) - 1)]
    for batch_size in BATCH_SIZES:
        held = pool.sequence(tokens()[:40])
        pool.run([(held, 39)])
        for mate in mates:
            mate.computed_len -= 1
        first, *_ = pool.run([(held, 1), *((mate, 1) for mate in mates[: batch_size - 1])])
        for mate in mates[batch_size - 1 :]:
            mate.computed_len += 1
        assert torch.equal(first[0], alone("llama", kind)[39]), batch_size
        pool.release(held)
    pool.executor.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", by_night({"qwen2_moe", "nemotron_h"}, BIT_EQUAL))
@pytest.mark.parametrize("num_threads", [1, 4])
def test_in_chunks_with_others_on_any_number_of_threads(
    family: str, kind: str, num_threads: int
) -> None:
    pool = Pool(executor(decoder(family), kind, num_threads))
    pieces = (1, 16, 37, 3, 70, 23, *[1] * NUM_NEW)
    actual = in_pieces(pool, pool.sequence(tokens()), pieces, num_mates=5)
    assert torch.equal(actual, alone(family, kind))
    pool.executor.close()


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen2_moe", "qwen3_5", "nemotron_h"])
def test_whichever_threads_are_late(family: str) -> None:
    """More threads than cores: some are stopped inside of items, which others then do again."""
    pool = Pool(executor(decoder(family), "float32", num_threads=8))
    for _ in range(150):
        held = pool.sequence(tokens())
        mates = [pool.other(60) for _ in range(5)]
        answers = pool.run([(held, 1), *((mate, pool.rng.choice((1, 7, 20))) for mate in mates)])
        assert torch.equal(answers[0], alone(family, "float32")[:1])
        for sequence in (held, *mates):
            pool.release(sequence)
    pool.executor.close()


@pytest.mark.slow
def test_a_token_may_be_routed_by_two_threads_at_once(tmp_path: Path) -> None:
    source = Path(__file__).with_name("routed_twice.cpp")
    headers = Path(__file__).parents[3] / "model_server" / "native"
    argv = ["g++", "-std=c++17", "-O2", "-march=native", f"-I{headers}", str(source), "-pthread"]
    subprocess.run([*argv, "-o", str(tmp_path / "routed")], check=True)
    said = subprocess.run([tmp_path / "routed"], capture_output=True, text=True, check=True)

    assert said.stdout == "0\n"


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_prefix_that_another_sequence_computed(kind: str) -> None:
    pool = Pool(executor(decoder("llama"), kind))
    first = pool.sequence(tokens())
    pool.run([(first, 70)])
    hit = pool.sequence(tokens())
    hit.block_ids[:4] = first.block_ids[:4]
    hit.computed_len = 64
    actual = in_pieces(pool, hit, (PROMPT_LEN - 64, *[1] * NUM_NEW), num_mates=3)
    assert torch.equal(actual, alone("llama", kind)[64:])
    pool.executor.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", by_night({"nemotron_h"}, ("qwen3_5", "nemotron_h")))
def test_after_a_prefix_whose_state_another_sequence_kept(family: str, kind: str) -> None:
    pool = Pool(executor(decoder(family), kind))
    slots = (pool.free_states.pop(), pool.free_states.pop())
    first = pool.sequence(tokens())
    first.kept = (KeptState(48, slots[0]), KeptState(64, slots[1]))
    in_pieces(pool, first, (40, 30), num_mates=2)
    for _ in range(2):  # what is kept is read, and stays
        hit = pool.sequence(tokens())
        hit.block_ids[:4] = first.block_ids[:4]
        hit.computed_len = 64
        hit.from_state = slots[1]
        actual = in_pieces(pool, hit, (PROMPT_LEN - 64, *[1] * NUM_NEW), num_mates=3)
        assert torch.equal(actual, alone(family, kind)[64:])
    pool.executor.close()


@pytest.mark.parametrize("family", by_night({"granite4", "bamba"}, WITH_STATES))
def test_states_in_a_batch_of_32_and_in_short_chunks(family: str) -> None:
    pool = Pool(executor(decoder(family), "bfloat16"))
    for pieces, num_mates in (
        ((64, 64, 22, *[1] * NUM_NEW), 31),
        ((*[7] * 21, 3, *[1] * NUM_NEW), 1),
        ([1] * (PROMPT_LEN + NUM_NEW), 0),
    ):
        held = pool.sequence(tokens())
        actual = in_pieces(pool, held, tuple(pieces), num_mates)
        assert torch.equal(actual, alone(family, "bfloat16")), pieces
    pool.executor.close()


def test_a_sequence_without_slots_or_with_unknown_ones_is_refused() -> None:
    pool = Pool(decoder("qwen3_5").executor(torch.float32))
    held = pool.sequence([5, 6])
    held.state_ids = (0, NUM_STATES)
    with pytest.raises(InvalidStep, match="names the state 400; the pool has 400"):
        pool.run([(held, 1)])
    held = pool.sequence([5, 6])
    held.state_ids = None
    with pytest.raises(InvalidStep, match="sequence 0 of the step has no slots"):
        pool.run([(held, 1)])


def test_a_context_so_long_that_threads_share_it() -> None:
    own = decoder("llama", max_position_embeddings=4096, num_hidden_layers=2)
    prompt = random_tokens(3000)
    answers = []
    for num_threads in (1, 4):
        pool = Pool(own.executor(torch.bfloat16, num_threads))
        held = pool.sequence(prompt)
        pool.run([(held, 2990)])
        answers.append([pool.run([(held, 1)])[0] for _ in range(5)])
        pool.executor.close()
    assert all(torch.equal(one, four) for one, four in zip(*answers, strict=True))
