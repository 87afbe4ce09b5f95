"""The gate lets pass what agrees with itself on paged batches, and names the reason otherwise."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model_server import zoo
from model_server.attention.base import LayerCache, LayerOptions
from model_server.attention.reference import ReferenceAttention
from model_server.checkpoint import gate
from model_server.checkpoint.gate import WINDOW_LEN, shrink
from model_server.errors import ArchitectureUnfit
from model_server.executor.zoo_executor import LayerPlan
from model_server.mixers import Memory, Mixer, StateKey, StatePool
from model_server.step import StepInputs
from model_server.zoo import HfModel
from tests.model_server.checkpoint import tiny_models

build_small = partial(zoo.build_small, trust_remote_code=False)

# Configs as a checkpoint has them: full size, nothing shrunk by hand.
SERVED = "Gemma2 GPT2 OPT GptOss Llama4Text DeepseekV3 Gemma3nText Qwen3Next".split()
SERVED_BY_NIGHT = (
    "Llama Qwen2 Qwen3 Mistral Gemma3Text GPTNeoX Phi3 Mixtral Qwen3Moe Cohere2 Olmo2 Granite"
    " SmolLM3 Starcoder2 Gemma4Text Qwen3_5Text NemotronH FalconH1 KimiLinear OlmoHybrid Zaya"
).split()
REFUSED = {
    "Bloom": "does not route its attention",
    "Falcon": "does not route its attention",
    "Mamba": "none of its layers attends",
    "MiniMax": "wants more of its cache than keys, values and states.*get_linear_cache",
    # transformers' own chunk behind a state begins from zeros.
    "Jamba": "its logits are not its own",
    "Bert": "is not causal",
    "DiffLlama": "layer 0 attends more than once",
    "Doge": "brings an attention mask of its own",
}


def _pass(config: Any) -> None:
    """As loading does it, up to the weights."""
    with zoo.quiet():
        gate.check_class(zoo.build_empty(config, trust_remote_code=False).facts)
    assert gate.self_test(config, build_small) is None


def _config(name: str) -> Any:
    return getattr(transformers, f"{name}Config")()


@pytest.mark.parametrize(
    "name", [*SERVED, *(pytest.param(name, marks=pytest.mark.nightly) for name in SERVED_BY_NIGHT)]
)
def test_an_architecture_that_can_be_paged_passes(name: str) -> None:
    _pass(_config(name))


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_that_cannot_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ArchitectureUnfit, match=REFUSED[name]) as refusal:
        _pass(_config(name))
    assert "cannot be served" in str(refusal.value)


class ForgetfulAttention(ReferenceAttention):
    """Attention that ignores some of its options."""

    def __init__(self, **forgotten: Any) -> None:
        super().__init__(block_size=4)
        self._forgotten = forgotten

    def attend(
        self,
        cache: LayerCache,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: StepInputs,
        options: LayerOptions,
    ) -> Tensor:
        options = replace(options, **self._forgotten)
        return super().attend(cache, query, key, value, step, options)


@pytest.mark.parametrize(
    ("name", "forgotten"),
    [
        ("Mistral", {"window_len": None}),
        ("Mistral", {"window_len": WINDOW_LEN - 1}),
        ("Gemma2", {"softcap": None}),
        ("Gemma3Text", {"window_len": None}),
        ("GptOss", {"sinks": None}),
        ("Llama4Text", {"chunk_len": None}),
        ("Llama", {"scale": 0.1}),
    ],
)
def test_the_self_test_notices_attention_that_forgets(
    name: str, forgotten: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gate, "ReferenceAttention", lambda block_size: ForgetfulAttention(**forgotten)
    )
    with pytest.raises(ArchitectureUnfit, match="its logits are not its own"):
        gate.self_test(_config(name), build_small)


@pytest.mark.parametrize("forgotten", ["convolution", "recurrent"])
def test_the_self_test_notices_a_state_that_is_forgotten(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = StatePool.read

    def read_less(self: StatePool, mixer: Mixer, slots: Tensor) -> dict[StateKey, Tensor]:
        states = read(self, mixer, slots)
        return {
            key: torch.zeros_like(state) if key.sort == forgotten else state
            for key, state in states.items()
        }

    monkeypatch.setattr(StatePool, "read", read_less)
    with pytest.raises(ArchitectureUnfit, match="its logits are not its own"):
        gate.self_test(_config("Qwen3Next"), build_small)


def test_the_probe_learns_which_layers_have_keys_and_values() -> None:
    wrapped = HfModel(tiny_models.build("nemotron_h"))
    device = torch.device("cpu")
    expected = gate.expected_logits(wrapped, device)
    memory = gate.learn_memory(wrapped, device)
    plans = gate.probe_layers(
        wrapped, memory, ReferenceAttention(), torch.float32, device, expected
    )
    assert [plan is not None for plan in plans] == [False, False, True, False]


def test_the_self_test_reaches_behind_what_a_config_calls_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queries of Llama 4 grow behind `floor_scale` tokens, 8192, counted by its cache's word."""
    _pass(_config("Llama4Text"))
    monkeypatch.setattr(zoo.StepCache, "get_seq_length", lambda *_: 0)
    with pytest.raises(ArchitectureUnfit, match="its logits are not its own"):
        gate.self_test(_config("Llama4Text"), build_small)


@pytest.mark.parametrize(
    ("name", "reaches"),
    # Numbers of the others that are as large are sizes, scales and the lengths of a rope.
    [("Llama4Text", [("floor_scale",)]), ("Gemma2", []), ("GptOss", []), ("Qwen3Moe", [])],
)
def test_a_reach_is_a_number_that_shows_only_behind_it(
    name: str, reaches: list[tuple[str, ...]]
) -> None:
    assert gate.find_reaches(_config(name), build_small) == reaches


def test_a_class_that_fails_on_flattened_batches_is_refused_in_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(zoo.StepCache, "update", fail)
    said = "LlamaForCausalLM cannot be served: it does not run on paged.*IndexError: list index"
    with pytest.raises(ArchitectureUnfit, match=said):
        gate.self_test(_config("Llama"), build_small)


def test_a_config_of_which_nothing_small_can_be_built_says_why() -> None:
    config = transformers.LlamaConfig(hidden_act="no such function")
    reason = gate.self_test(config, build_small)
    assert reason is not None
    assert "no such function" in reason


def _probe(model: Any) -> list[LayerPlan]:
    device = torch.device("cpu")
    wrapped = HfModel(model)
    expected = gate.expected_logits(wrapped, device)
    plans = gate.probe_layers(
        wrapped, Memory(), ReferenceAttention(), torch.float32, device, expected
    )
    return [plan for plan in plans if plan is not None]


def test_the_probe_learns_what_each_layer_stores_and_how_far_it_sees() -> None:
    plans = _probe(tiny_models.build("gemma2"))
    assert [plan.options.window_len for plan in plans] == [tiny_models.WINDOW_LEN, None]
    assert [plan.options.softcap for plan in plans] == [2.0, 2.0]
    assert plans[0].options.scale == pytest.approx(24**-0.5)
    geometry = plans[0].geometry
    assert (geometry.num_kv_heads, geometry.head_dim, geometry.value_dim) == (2, 16, 16)


def test_the_probe_finds_keys_and_values_of_unlike_sizes() -> None:
    config = shrink(transformers.DeepseekV3Config())
    plans = _probe(build_small(config).module)
    assert plans[0].geometry.head_dim != plans[0].geometry.value_dim


def test_the_probe_finds_sinks() -> None:
    plans = _probe(tiny_models.build("gpt_oss"))
    assert plans[0].options.sinks is not None
    assert plans[0].options.sinks.shape == (4,)


def _break_a_window(model: Any) -> None:
    model.model.layers[0].self_attn.sliding_window = None


def _break_a_layer_index(model: Any) -> None:
    model.model.layers[1].self_attn.layer_idx = 0


def _make_it_see_the_future(model: Any) -> None:
    model.model.layers[1].self_attn.is_causal = False


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_break_a_window, "layer 0 has a sliding window but does not say how long it is"),
        (_break_a_layer_index, "layer 0 attends more than once"),
        (_make_it_see_the_future, "layer 1 is not causal"),
    ],
)
def test_a_loaded_model_that_calls_attention_wrongly_is_refused(
    damage: Callable[[Any], None], reason: str
) -> None:
    model = tiny_models.build("gemma2")
    damage(model)
    with pytest.raises(ArchitectureUnfit, match=reason):
        _probe(model)


def test_a_layer_whose_state_lies_elsewhere_is_found_missing() -> None:
    wrapped = HfModel(tiny_models.build("llama"))
    wrapped.facts = replace(wrapped.facts, num_layers=3)
    with pytest.raises(ArchitectureUnfit, match="1 of its 3 layers, 2 first"):
        gate.probe_layers(
            wrapped, Memory(), ReferenceAttention(), torch.float32, torch.device("cpu")
        )


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text", "Gemma3", "Qwen3Moe", "Phi3", "GptOss"])
def test_a_shrunk_config_keeps_what_decides_about_attention(name: str) -> None:
    config = _config(name)
    small = shrink(config).get_text_config()
    text = config.get_text_config()
    assert set(getattr(small, "layer_types", None) or ()) == set(
        getattr(text, "layer_types", None) or ()
    )
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    assert (getattr(small, "head_dim", None) or small.hidden_size // small.num_attention_heads) == (
        head_dim
    )
    assert small.num_hidden_layers <= 8
    assert text.vocab_size > small.vocab_size


def test_a_class_that_does_not_run_with_the_config_is_refused_with_the_reason() -> None:
    # As of another class, which has no window.
    config = transformers.MinistralConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=64,
        sliding_window=None,
        layer_types=["full_attention"],
    )
    model = zoo.build_small(config, trust_remote_code=False)
    with pytest.raises(ArchitectureUnfit, match=r"does not run with this config\.json.*model_type"):
        gate.expected_logits(model, torch.device("cpu"))
