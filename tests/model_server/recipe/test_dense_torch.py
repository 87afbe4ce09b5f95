"""The oracle: ragged batches, positions, memories, weights that are stored in another dtype."""

import copy

import pytest
import torch
from torch import Tensor

from model_server.recipe.dense_torch import DenseTorch, Memory, angles_of
from model_server.recipe.proof import read_recipe
from model_server.recipe.small import parameters_of
from model_server.zoo import build_small
from tests.model_server.recipe.families import family


def test_sequences_of_a_batch_do_not_see_each_other_and_begin_at_position_0() -> None:
    recipe = read_recipe(family("qwen2"), trust_remote_code=False)
    model = build_small(family("qwen2"), trust_remote_code=False).module
    (angles,) = angles_of(recipe, model)
    asked: list[list[int]] = []

    def noted(positions: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(positions.tolist())
        return angles(positions)

    oracle = DenseTorch(recipe, parameters_of(model), [noted])
    token_ids = torch.arange(9)
    together = oracle.logits(token_ids, (5, 4))
    alone = torch.cat([oracle.logits(token_ids[:5], (5,)), oracle.logits(token_ids[5:], (4,))])

    assert asked[0] == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    torch.testing.assert_close(together, alone)


def test_stored_bfloat16_is_computed_in_float32() -> None:
    recipe = read_recipe(family("qwen3_moe"), trust_remote_code=False)
    model = build_small(family("qwen3_moe"), trust_remote_code=False).module
    stored = {name: weight.bfloat16() for name, weight in parameters_of(model).items()}
    raised = {name: weight.float() for name, weight in stored.items()}
    token_ids = torch.arange(7)
    rotary = angles_of(recipe, model)

    actual = DenseTorch(recipe, stored, rotary).logits(token_ids, (7,))

    assert actual.dtype == torch.float32
    assert torch.equal(actual, DenseTorch(recipe, raised, rotary).logits(token_ids, (7,)))


@pytest.mark.parametrize("name", ["olmo3", "qwen3_next", "bamba"])
def test_a_sequence_goes_on_from_its_memory_wherever_it_is_cut(name: str) -> None:
    """Beside others, and from one memory as often as one likes: nothing in it is changed."""
    model = build_small(family(name), trust_remote_code=False).module
    recipe = read_recipe(family(name), trust_remote_code=False)
    oracle = DenseTorch(recipe, parameters_of(model), angles_of(recipe, model))
    token_ids = torch.arange(3, 34)
    whole = oracle.logits(token_ids, (31,))

    memory = Memory()
    steps = [oracle.logits(token_ids[:14], (14,), [memory])]
    kept = copy.copy(memory)
    kept.layers = dict(memory.layers)
    other = torch.arange(40, 46)
    for first, end in ((14, 15), (15, 16), (16, 31)):
        both = torch.cat((other, token_ids[first:end]))
        steps.append(oracle.logits(both, (6, end - first), [Memory(), memory])[6:])

    assert memory.position == 31
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(oracle.logits(token_ids[14:], (17,), [kept]), whole[14:])
