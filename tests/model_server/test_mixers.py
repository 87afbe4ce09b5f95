"""Modules that keep states are found by what they ask, and run by sequences, each from its own."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model_server.errors import ArchitectureUnfit
from model_server.mixers import (
    Memory,
    MixerCache,
    StatePool,
    StateShape,
    find_mixers,
    split_mixers,
)
from model_server.step import SequenceStep, StateStep, StepInputs
from model_server.zoo import HfModel
from tests.model_server.checkpoint import tiny_models

CPU = torch.device("cpu")
TOKENS = torch.arange(5, 14)


def found(name: str) -> tuple[HfModel, Memory]:
    model = HfModel(tiny_models.build(name))
    with torch.inference_mode():
        return model, find_mixers(model, TOKENS)


def test_a_module_that_asks_for_states_is_found_with_their_shapes() -> None:
    _, memory = found("qwen3_5")
    assert [mixer.name for mixer in memory.mixers] == [
        f"model.layers.{layer}.linear_attn" for layer in range(3)
    ]
    assert memory.storing == frozenset((3,))
    states = memory.mixers[1].states
    assert [(key.layer, key.sort) for key in states] == [(1, "convolution"), (1, "recurrent")]
    # Queries and keys of two heads and values of four, each of 16: their last four columns.
    assert list(states.values()) == [
        StateShape((128, 4), torch.float32),
        StateShape((4, 16, 16), torch.float32),
    ]
    assert memory.state_bytes == 3 * 4 * (128 * 4 + 4 * 16 * 16)


def test_a_layer_may_attend_beside_its_state_or_do_neither() -> None:
    _, both = found("falcon_h1")
    assert [mixer.name for mixer in both.mixers] == [f"model.layers.{i}.mamba" for i in (0, 1)]
    assert both.storing == frozenset((0, 1))
    _, some = found("nemotron_h")
    assert [key.layer for mixer in some.mixers for key in mixer.states] == [0, 0]
    assert some.storing == frozenset((2,))


def test_a_model_that_attends_alone_has_no_mixers() -> None:
    _, memory = found("llama")
    assert memory == Memory((), frozenset((0, 1)))


def test_a_cache_of_another_kind_is_refused_in_a_word() -> None:
    config = transformers.MiniMaxConfig(
        vocab_size=160,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
    )
    with torch.random.fork_rng(devices=()):
        model = HfModel(transformers.AutoModelForCausalLM.from_config(config).eval())
    said = r"MiniMaxForCausalLM cannot be served: it wants more of its cache.*get_linear_cache"
    with torch.inference_mode(), pytest.raises(ArchitectureUnfit, match=said):
        find_mixers(model, TOKENS)


@pytest.fixture(scope="module")
def split() -> tuple[HfModel, Memory]:
    model, memory = found("qwen3_5")
    split_mixers(model, memory.mixers)
    return model, memory


def outputs(
    split: tuple[HfModel, Memory], pool: StatePool, *steps: SequenceStep, min_tokens: int = 1
) -> Tensor:
    """What the first mixer makes of a step; its input depends on tokens alone."""
    model, memory = split
    inputs = StepInputs.build(
        steps, block_size=16, scratch_block_id=9, device=CPU, min_tokens=min_tokens
    )
    module = model.module.get_submodule(memory.mixers[0].name)
    with torch.inference_mode():
        embedded = model.module.get_input_embeddings()(inputs.token_ids)[None]
        made: Tensor = module(embedded, cache=MixerCache(inputs, pool))
    return made[0]


def step(token_ids: list[int], start: int, state: StateStep) -> SequenceStep:
    return SequenceStep(token_ids, start, (0, 1, 2), 0, state)


def test_sequences_in_one_step_do_not_touch_each_other(split: tuple[HfModel, Memory]) -> None:
    pool = StatePool(split[1], 6, CPU)
    alone = [
        outputs(split, pool, step([7, 8, 9], 0, StateStep(None, 0))),
        outputs(split, pool, step([20, 21], 0, StateStep(None, 2))),
        outputs(split, pool, step([10], 3, StateStep(0, 1))),
        outputs(split, pool, step([22], 2, StateStep(2, 3))),
        outputs(split, pool, step([11, 12], 4, StateStep(1, 0))),
    ]
    pool = StatePool(split[1], 6, CPU)
    first = outputs(
        split,
        pool,
        step([7, 8, 9], 0, StateStep(None, 0)),
        step([20, 21], 0, StateStep(None, 2)),
    )
    # Single tokens are one batch, wherever they lie.
    second = outputs(split, pool, step([10], 3, StateStep(0, 1)), step([22], 2, StateStep(2, 3)))
    third = outputs(split, pool, step([11, 12], 4, StateStep(1, 0)), min_tokens=4)
    torch.testing.assert_close(torch.cat((first, second, third[:2])), torch.cat(alone))


def test_rows_of_padding_are_not_computed(split: tuple[HfModel, Memory]) -> None:
    pool = StatePool(split[1], 2, CPU)
    made = outputs(split, pool, step([7], 0, StateStep(None, 0)), min_tokens=4)
    assert made[0].abs().sum() > 0
    assert torch.equal(made[1:], torch.zeros_like(made[1:]))


def test_a_step_leaves_the_slot_that_it_reads_as_it_is(split: tuple[HfModel, Memory]) -> None:
    """In place, as some kernels do, a state would be another for whoever repeats the step."""
    pool = StatePool(split[1], 3, CPU)
    outputs(split, pool, step([7, 8, 9], 0, StateStep(None, 0)))
    for token_ids in ([10], [10, 11]):
        once = outputs(split, pool, step(token_ids, 3, StateStep(0, 1)))
        again = outputs(split, pool, step(token_ids, 3, StateStep(0, 2)))
        assert torch.equal(once, again)
    mixer = split[1].mixers[0]
    written = pool.read(mixer, torch.tensor([1, 2]))
    assert all(torch.equal(state[0], state[1]) for state in written.values())


def test_without_a_step_a_model_runs_as_it_always_did(split: tuple[HfModel, Memory]) -> None:
    whole: Any = tiny_models.build("qwen3_5")
    with torch.inference_mode():
        assert torch.equal(split[0].native_logits(TOKENS), HfModel(whole).native_logits(TOKENS))
