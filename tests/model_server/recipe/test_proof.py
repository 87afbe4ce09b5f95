"""A recipe read from a config computes what the model of that config does, weights and all.

And the proof refuses a recipe that is wrong in one place.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from model_server.recipe.dense_torch import DenseTorch, angles_of
from model_server.recipe.proof import (
    MAX_ERROR,
    parameters_of,
    read_recipe,
    relative_error,
    require_near,
    require_used_once,
)
from model_server.recipe.reader import read
from model_server.recipe.recipe import Recipe, Unreadable
from model_server.recipe.recording import native_logits, real
from model_server.recipe.small import randomise, small_model
from model_server.zoo import build_empty, build_small
from tests.model_server.recipe.families import (
    EXECUTED,
    EXPERTS,
    FAMILIES,
    by_night,
    config,
    family,
)
from tests.model_server.recipe.mutants import mutants

LENS = (23, 9, 1, 17)

# Between them these have every mutant that any family has.
MUTATED = ("gemma3_text", "persimmon", "qwen2_moe", "gemma2", "gpt_oss", "phi")


class Judge:
    """A model of random parameters, and how far a recipe is from what it computes."""

    def __init__(self, model: Any, recipe: Recipe, seed: int) -> None:
        randomise(model, seed=seed)
        self._parameters = parameters_of(model)
        self._rotary = angles_of(recipe, model)
        generator = torch.Generator().manual_seed(2)
        self._token_ids = torch.randint(0, 130, (sum(LENS),), generator=generator)
        sequences = self._token_ids.split(list(LENS))
        with torch.inference_mode():
            self._expected = torch.cat([native_logits(model, ids) for ids in sequences])

    def error(self, recipe: Recipe, lens: tuple[int, ...] = LENS) -> float:
        try:
            logits = DenseTorch(recipe, self._parameters, self._rotary).logits(
                self._token_ids, lens
            )
        # Shapes that do not fit are refused as well.
        except (RuntimeError, IndexError):
            return torch.inf
        return relative_error(logits, self._expected)


# Of the others, each recipe is read by day by tests of executors or of mutants.
READ_ELSEWHERE = {*EXECUTED, *MUTATED}


@pytest.mark.parametrize("name", by_night(READ_ELSEWHERE))
def test_a_recipe_is_that_of_the_real_model_not_of_a_narrow_one(name: str) -> None:
    recipe = read_recipe(family(name), trust_remote_code=False)
    judge = Judge(build_small(family(name), trust_remote_code=False).module, recipe, seed=3)
    assert judge.error(recipe) < 1e-5


@pytest.mark.parametrize("name", by_night(set(FAMILIES) - set(MUTATED)))
def test_every_wrong_recipe_is_refused(name: str) -> None:
    model = small_model(family(name), trust_remote_code=False)
    recipe = read(model)
    judge = Judge(model, recipe, seed=1)

    errors = {each: judge.error(mutant) for each, mutant in mutants(recipe)}
    errors["sequences in one"] = judge.error(recipe, (sum(LENS),))

    assert len(errors) >= 30
    assert [each for each, wrong in errors.items() if wrong <= MAX_ERROR] == []
    assert judge.error(recipe) <= MAX_ERROR


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gpt2", {"n_embd": 192, "n_layer": 6, "n_head": 8}, "learned positions"),
        ("opt", {"ffn_dim": 200, "word_embed_proj_dim": 192}, "another width"),
        ("bloom", {"hidden_size": 192, "n_layer": 6, "n_head": 8}, "0 of its 6 layers"),
        ("apertus", {}, "activation of its MLP"),
        ("olmo", {"clip_qkv": 8.0}, "values are no output of a linear layer"),
        ("gpt_oss", {**EXPERTS, "head_dim": 32, "swiglu_limit": 10.0}, "what they compute"),
        ("gpt_oss", {**EXPERTS, "head_dim": 32, "swiglu_alpha": 1.5}, "what they compute"),
        ("deepseek_v3", {**EXPERTS, "n_group": 1, "topk_group": 1}, "does not run"),
        ("glm4_moe", {**EXPERTS, "n_group": 1, "topk_group": 1}, "chooses experts"),
        ("qwen3_next", {**EXPERTS, "head_dim": 32}, "layers attend"),
        ("llama4_text", {**EXPERTS, "head_dim": 32}, "how its queries or keys come about"),
    ],
)
def test_what_no_recipe_describes_is_refused_with_the_reason(
    kind: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_recipe(config(kind, **changes), trust_remote_code=False)


def test_a_model_that_sees_is_read_for_its_text() -> None:
    text = {**family("gemma3_text").to_dict(), "num_hidden_layers": 2}
    text["layer_types"] = text["layer_types"][:2]
    eyes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    both = AutoConfig.for_model("gemma3", text_config=text, vision_config=eyes)

    recipe = read_recipe(both, trust_remote_code=False)

    assert recipe.embedding == "model.language_model.embed_tokens.weight"
    assert recipe.layers[0].attention.window_len == 11
    assert not any("vision" in name for name in recipe.weights())


def test_an_epsilon_that_no_config_names_is_the_constant_of_the_class() -> None:
    recipe = read_recipe(family("olmo"), trust_remote_code=False)

    assert {layer.attention_norm.eps for layer in recipe.layers if layer.attention_norm} == {1e-5}


def test_a_weight_that_a_recipe_leaves_out_is_named() -> None:
    recipe, model = _read("llama")
    with pytest.raises(Unreadable, match=r"not known: model\.norm\.weight"):
        require_used_once(replace(recipe, final_norm=None), model)


def test_rows_of_a_merged_weight_must_cover_it_once() -> None:
    recipe, model = _read("phi3")
    first, *rest = recipe.layers
    attention = replace(first.attention, value=first.attention.key.linear)
    layers = (replace(first, attention=attention), *rest)
    with pytest.raises(Unreadable, match="qkv_proj"):
        require_used_once(replace(recipe, layers=layers), model)


def test_a_buffer_of_the_checkpoint_that_nothing_explains_is_refused() -> None:
    recipe, model = _read("llama")
    model.model.register_buffer("correction", torch.zeros(3))
    with pytest.raises(Unreadable, match=r"model\.correction"):
        require_used_once(recipe, model)


def test_two_narrow_scalars_of_one_value_are_not_guessed_apart() -> None:
    small = family("granite")
    config = family("granite")
    small.residual_multiplier = small.attention_multiplier
    assert real(0.22, family("granite"), config, "it") == 0.22
    with pytest.raises(Unreadable, match="source is not clear"):
        real(small.attention_multiplier, small, config, "it")


def _read(name: str) -> tuple[Recipe, Any]:
    model = build_empty(family(name), trust_remote_code=False).module
    return read_recipe(family(name), trust_remote_code=False), model


EXACT = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
NOISE = 0.01 * torch.randn(20, 50, generator=torch.Generator().manual_seed(1))


def test_an_executor_may_be_a_little_farther_from_float32_than_transformers() -> None:
    require_near(EXACT - 1.2 * NOISE, (EXACT + NOISE).bfloat16(), EXACT, torch.bfloat16)
    with pytest.raises(Unreadable, match="the executor's relative error is"):
        require_near(EXACT - 1.5 * NOISE, (EXACT + NOISE).bfloat16(), EXACT, torch.bfloat16)


def test_a_recipe_from_which_transformers_is_far_is_refused() -> None:
    with pytest.raises(Unreadable, match="the loaded weights give other logits"):
        require_near(EXACT, (EXACT + 20 * NOISE).bfloat16(), EXACT, torch.bfloat16)


def test_in_float32_a_recipe_must_agree_but_for_rounding() -> None:
    require_near(EXACT + 1e-3 * NOISE, EXACT, EXACT, torch.float32)
    with pytest.raises(Unreadable, match="the executor's relative error is"):
        require_near(EXACT + 0.1 * NOISE, EXACT, EXACT, torch.float32)


def test_an_executor_of_wider_numbers_than_transformers_has_no_share_in_its_errors() -> None:
    native = (EXACT + NOISE).bfloat16()
    require_near(EXACT + 1e-3 * NOISE, native, EXACT, torch.float32)
    with pytest.raises(Unreadable, match="the executor's relative error is"):
        require_near(EXACT + 0.1 * NOISE, native, EXACT, torch.float32)
