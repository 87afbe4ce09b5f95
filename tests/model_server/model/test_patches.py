"""Patched layers give what they gave before, whoever asks and in whatever order."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from model_server.model import patches
from tests.model_server.model import tiny_models

needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this processor does not compute in bfloat16",
)


def logits(model: Any, num_tokens: int) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = model(torch.arange(3, 3 + num_tokens)[None]).logits[0]
    return output.float()


@needs_bfloat16
@pytest.mark.parametrize("name", tiny_models.CONFIGS)
@pytest.mark.parametrize("num_tokens", [1, 4, 33])
def test_a_patched_model_gives_the_same_logits(name: str, num_tokens: int) -> None:
    model = tiny_models.build(name).to(torch.bfloat16)
    before = logits(model, num_tokens)
    num_patched = patches.apply(model).num_packed
    after = logits(model, num_tokens)
    error = (after - before).square().mean().sqrt() / before.std()
    assert num_patched > 0
    assert error < 0.02


@needs_bfloat16
def test_a_llama_layer_loses_three_of_seven_products() -> None:
    model = tiny_models.build("llama").to(torch.bfloat16)
    patches.apply(model)
    layer = model.model.layers[0]
    with torch.profiler.profile() as profile, torch.inference_mode():
        logits(model, 4)
    counts = {event.key: event.count for event in profile.key_averages()}
    num_products = sum(count for key, count in counts.items() if key.endswith("_linear_pointwise"))
    assert "forward" in vars(layer.self_attn.q_proj)
    assert num_products == 2 * 4 + 1
    assert "aten::linear" not in counts


class Siblings(nn.Module):
    """Three layers that share an input, or do not."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.q_proj = nn.Linear(32, 16, bias=bias)
        self.k_proj = nn.Linear(32, 8, bias=bias)
        self.v_proj = nn.Linear(32, 8, bias=bias)


@pytest.fixture
def siblings() -> Siblings:
    torch.manual_seed(0)
    return Siblings().to(torch.bfloat16).eval()


@needs_bfloat16
@torch.inference_mode()
def test_layers_that_share_an_input_may_ask_in_any_order(siblings: Siblings) -> None:
    original = copy.deepcopy(siblings)
    assert patches.apply(siblings).num_packed == 3
    for seed, order in enumerate((("q_proj", "k_proj", "v_proj"), ("v_proj", "q_proj", "k_proj"))):
        torch.manual_seed(seed)
        hidden = torch.randn(5, 32, dtype=torch.bfloat16)
        for name in order:
            torch.testing.assert_close(
                getattr(siblings, name)(hidden), getattr(original, name)(hidden)
            )


@needs_bfloat16
@torch.inference_mode()
def test_layers_may_be_given_inputs_of_their_own(siblings: Siblings) -> None:
    """Cross attention does so: queries of one tensor, keys and values of another."""
    original = copy.deepcopy(siblings)
    patches.apply(siblings)
    one, other = torch.randn(2, 5, 32, dtype=torch.bfloat16)
    for hidden, name in ((one, "q_proj"), (other, "k_proj"), (other, "v_proj"), (one, "q_proj")):
        torch.testing.assert_close(getattr(siblings, name)(hidden), getattr(original, name)(hidden))


@needs_bfloat16
@torch.inference_mode()
def test_an_input_is_not_kept_after_the_last_has_asked(siblings: Siblings) -> None:
    patches.apply(siblings)
    hidden = torch.randn(5, 32, dtype=torch.bfloat16)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(siblings, name)(hidden)
    changed = hidden.clone()
    expected = siblings.q_proj(changed)
    hidden.zero_()
    assert not torch.equal(siblings.q_proj(hidden), expected)


def test_other_dtypes_are_not_packed(siblings: Siblings) -> None:
    original = copy.deepcopy(siblings).float()
    assert patches.apply(siblings.float()).num_packed == 0
    hidden = torch.randn(5, 32)
    torch.testing.assert_close(siblings.q_proj(hidden), original.q_proj(hidden))


@needs_bfloat16
def test_a_forward_that_was_replaced_is_left_alone(siblings: Siblings) -> None:
    siblings.k_proj.forward = siblings.k_proj.forward  # type: ignore[method-assign]
    assert patches.apply(siblings).num_packed == 2
