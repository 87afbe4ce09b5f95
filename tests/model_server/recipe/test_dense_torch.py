"""The oracle: ragged batches, positions, weights that are stored in another dtype."""

import torch
from torch import Tensor

from model_server.recipe.dense_torch import DenseTorch, angles_of
from model_server.recipe.proof import parameters_of, read_recipe
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
