"""The proof refuses a recipe that is wrong in one place, for every family and every such place."""

import pytest
import torch

from model_server.recipe.dense_torch import DenseTorch, angles_of
from model_server.recipe.proof import MAX_ERROR, parameters_of, relative_error
from model_server.recipe.reader import read
from model_server.recipe.recipe import Recipe
from model_server.recipe.recording import native_logits
from model_server.recipe.small import randomise, small_model
from tests.model_server.recipe.families import FAMILIES, family
from tests.model_server.recipe.mutants import mutants

LENS = (23, 9, 1, 17)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_wrong_recipe_is_refused(name: str) -> None:
    model = small_model(family(name), trust_remote_code=False)
    recipe = read(model)
    randomise(model, seed=1)
    parameters, rotary = parameters_of(model), angles_of(recipe, model)
    token_ids = torch.randint(0, 130, (sum(LENS),), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = torch.cat([native_logits(model, ids) for ids in token_ids.split(list(LENS))])

    def error(candidate: Recipe, lens: tuple[int, ...] = LENS) -> float:
        try:
            logits = DenseTorch(candidate, parameters, rotary).logits(token_ids, lens)
        # Shapes that do not fit are refused as well.
        except (RuntimeError, IndexError):
            return torch.inf
        return relative_error(logits, expected)

    errors = {each: error(mutant) for each, mutant in mutants(recipe)}
    errors["sequences in one"] = error(recipe, (sum(LENS),))

    assert len(errors) >= 30
    assert [each for each, wrong in errors.items() if wrong <= MAX_ERROR] == []
    assert error(recipe) <= MAX_ERROR
