"""config.json of a GGUF file is that of the model, or the file is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

from model_server.checkpoint.gguf_conversion import convert
from model_server.checkpoint.sampling_defaults import read_sampling_defaults
from model_server.errors import ModelRefused
from tests.model_server.checkpoint.converted import make as converted
from tests.model_server.checkpoint.gguf_files import (
    requantized,
    small_model,
    write_gguf,
)


@pytest.mark.parametrize(
    ("name", "key", "value", "reason"),
    [
        ("lfm2", "lfm2.attention.head_count_kv", [0, 1, 2], "num_key_value_heads differs between"),
        ("granitemoehybrid", "granitehybrid.rope.scaling.finetuned", True, "computes False"),
        ("nemotron_h", "nemotron_h.block_count", 2, "has 3 numbers, for 2 layers"),
        ("qwen3_5_text", "qwen35.nextn_predict_layers", 0, r"lacks blk\.2\."),
        ("qwen3_5_text", "qwen35.ssm.inner_size", 0, r"inner_size 0: is not so many of each"),
    ],
)
def test_layers_of_which_a_file_says_something_else_are_refused(
    name: str, key: str, value: Any, reason: str, tmp_path: Path
) -> None:
    source = converted.FOLDER / f"{name}.gguf"
    path = requantized(source, tmp_path / "model.gguf", Kind.BF16, {key: value})
    with pytest.raises(ModelRefused, match=reason):
        convert(path, tmp_path)


def test_layers_with_attention_may_be_given_by_their_distance(tmp_path: Path) -> None:
    path = converted.FOLDER / "qwen3_5_text.gguf"
    changed = {"qwen35.attention.recurrent_layers": None, "qwen35.full_attention_interval": 2}
    convert(path, tmp_path)
    layer_types = json.loads((tmp_path / "config.json").read_text())["layer_types"]
    convert(requantized(path, tmp_path / "model.gguf", Kind.BF16, changed), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["layer_types"] == layer_types
    assert layer_types == ["linear_attention", "full_attention"]


@pytest.mark.parametrize("num_used", [0, 5, None])
def test_as_many_experts_as_there_are_may_be_used(num_used: int | None, tmp_path: Path) -> None:
    changed = {"qwen3moe.expert_used_count": num_used}
    path = converted.FOLDER / "qwen3_moe.gguf"
    requantized(path, tmp_path / "model.gguf", Kind.BF16, changed)
    with pytest.raises(ModelRefused, match=rf"expert_used_count {num_used}: is not from 1 to 4"):
        convert(tmp_path / "model.gguf", tmp_path)


def test_experts_that_are_scored_in_another_way_are_refused(tmp_path: Path) -> None:
    softmax = {"glm4moe.expert_gating_func": 1}
    path = converted.FOLDER / "glm4_moe.gguf"
    requantized(path, tmp_path / "model.gguf", Kind.BF16, softmax)
    with pytest.raises(ModelRefused, match=r"expert_gating_func 1: glm4_moe .* computes 2"):
        convert(tmp_path / "model.gguf", tmp_path)


@pytest.mark.parametrize("key", ["scale", "layer_norm_rms_epsilon"])
def test_a_number_that_the_file_leaves_out_is_not_guessed(key: str, tmp_path: Path) -> None:
    granite = converted.FOLDER / "granite.gguf"
    without = {f"granite.attention.{key}": None}
    requantized(granite, tmp_path / "model.gguf", Kind.Q8_0, without)
    with pytest.raises(ModelRefused, match=rf"has no granite\.attention\.{key}"):
        convert(tmp_path / "model.gguf", tmp_path)


def test_a_granite_that_does_not_rotate_is_refused(tmp_path: Path) -> None:
    path = converted.FOLDER / "granitemoehybrid-attention.gguf"
    fixed = {"granite.rope.scaling.finetuned": False}
    requantized(path, tmp_path / "model.gguf", Kind.BF16, fixed)
    with pytest.raises(ModelRefused, match=r"finetuned False: granite .* computes True"):
        convert(tmp_path / "model.gguf", tmp_path)


def test_a_rotation_for_long_contexts_is_not_guessed(tmp_path: Path) -> None:
    path = converted.FOLDER / "granite.gguf"
    without = {"granite.context_length": 16384, "granite.rope.freq_base": None}
    requantized(path, tmp_path / "model.gguf", Kind.BF16, without)
    with pytest.raises(ModelRefused, match=r"no granite\.rope\.freq_base, .* of 16384 tokens"):
        convert(tmp_path / "model.gguf", tmp_path)


def test_what_does_not_rotate_needs_no_base(tmp_path: Path) -> None:
    path = converted.FOLDER / "granitemoehybrid-dense.gguf"
    without = {"granitehybrid.rope.freq_base": None}
    requantized(path, tmp_path / "model.gguf", Kind.BF16, without)
    convert(tmp_path / "model.gguf", tmp_path)
    read = json.loads((tmp_path / "config.json").read_text())
    assert (read["max_position_embeddings"], read["position_embedding_type"]) == (2**20, "nope")


@pytest.mark.parametrize("key", ["llama__rope__scaling__factor", "llama__rope__scale_linear"])
def test_rotations_are_scaled_by_a_factor_without_a_type(key: str, tmp_path: Path) -> None:
    factor: dict[str, Any] = {key: 4.0}
    convert(write_gguf(tmp_path / "model.gguf", small_model("llama"), **factor), tmp_path)
    read = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    assert read == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def test_the_first_files_of_gemma_2_have_a_window_too(tmp_path: Path) -> None:
    write_gguf(tmp_path / "first.gguf", small_model("gemma2"))
    without = {"gemma2.attention.sliding_window": None}
    requantized(tmp_path / "first.gguf", tmp_path / "model.gguf", Kind.F32, without)
    convert(tmp_path / "model.gguf", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["sliding_window"] == 4096


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (["<|im_end|>", "<|endoftext|>"], [2, 10, 11]),
        (["<|end|>", "<|return|>"], [2, 10, 11]),
        (["<|end|>", "<|return|>", "<|call|>"], [2, 11, 12]),
        (["<|im_start|>"], [2]),
    ],
)
def test_control_tokens_that_end_answers_by_their_texts_are_ends(
    texts: list[str], ends: list[int], tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"), control_tokens=texts)
    convert(path, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == ends


def test_an_answer_may_end_in_each_of_a_list(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "a.gguf", small_model("llama"), tokenizer__ggml__eos_token_ids=[2, 7]
    )
    convert(path, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == [2, 7]


def test_a_token_without_an_embedding_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama", vocab_size=250))
    with pytest.raises(ModelRefused, match=r"256 of them, and token_embd\.weight has 250"):
        convert(path, tmp_path)


def test_what_its_makers_recommend_for_sampling_is_kept(tmp_path: Path) -> None:
    recommended: dict[str, Any] = {"general__sampling__temp": 0.6, "general__sampling__top_k": 20}
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"), **recommended)
    convert(path, tmp_path)
    assert read_sampling_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20.0}
