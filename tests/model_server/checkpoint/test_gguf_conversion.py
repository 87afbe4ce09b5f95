"""A GGUF file is served as the model that it was made of, or refused with the reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFEndian

from model_server.checkpoint.check import ModelSettings
from model_server.checkpoint.gguf_conversion import convert, main
from model_server.checkpoint.gguf_file import GgufFile
from model_server.engine.distributed import World
from model_server.errors import ModelRefused
from model_server.loading import load_model
from model_server.step import SequenceStep, StateStep, StepInputs
from tests.model_server.checkpoint.converted import make as converted
from tests.model_server.checkpoint.gguf_files import (
    CONFIGS,
    dequantized,
    requantized,
    small_model,
    write_gguf,
)
from tests.model_server.checkpoint.tiny_models import greedy

CPU = torch.device("cpu")
# Longer than the windows of the models that have some.
PROMPT = [3 + 7 * index % 250 for index in range(20)]
NUM_TOKENS = 8


def answer(folder: Path, prompt: list[int] = PROMPT) -> tuple[torch.Tensor, list[int]]:
    """Of the folder's model, as the shard loads it: the prompt's logits, and greedy tokens."""
    settings = ModelSettings(folder, CPU, dtype="float32", activation_bits=16)
    model = load_model(settings, World())
    assert model.fallback_reason is None
    model.allocate(8, 2)
    state = StateStep(None, 1) if model.state_bytes else None
    token_ids = list(prompt)
    rows: list[torch.Tensor] = []
    for _ in range(NUM_TOKENS):
        step = SequenceStep(token_ids, 0, range(4), len(token_ids), state)
        inputs = StepInputs.build([step], block_size=16, scratch_block_id=7, device=CPU)
        rows.append(model.forward(inputs)[-1].clone())
        token_ids.append(int(rows[-1].argmax()))
    return rows[0], token_ids[len(prompt) :]


def served_as_before(model: Any, folder: Path, kind: Kind, **metadata: Any) -> bool:
    convert(write_gguf(folder / "model.gguf", model, kind, **metadata), folder)
    model.generation_config.eos_token_id = None
    logits, token_ids = answer(folder)
    with torch.inference_mode():
        expected = dequantized(model, folder)(torch.tensor([PROMPT])).logits[0, -1]
    assert torch.allclose(logits, expected, atol=5e-3)
    return token_ids == greedy(model, PROMPT, NUM_TOKENS)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    assert served_as_before(small_model(architecture), tmp_path, Kind.Q8_0)


@pytest.mark.parametrize("name", converted.CONFIGS)
def test_what_llama_cpps_converter_writes_is_the_model_that_it_was_made_of(
    name: str, tmp_path: Path
) -> None:
    path = converted.FOLDER / f"{name}.gguf"
    expected = json.loads(path.with_suffix(".json").read_text())
    convert(path, tmp_path)
    logits, _ = answer(tmp_path, expected["prompt"])
    assert torch.allclose(logits, torch.tensor(expected["logits"]), atol=5e-4)


@pytest.mark.parametrize("name", converted.CONFIGS)
def test_what_the_converter_writes_is_multiplied_in_groups_where_it_is_quantized(
    name: str, tmp_path: Path
) -> None:
    path = converted.FOLDER / f"{name}.gguf"
    convert(requantized(path, tmp_path / "model.gguf", Kind.Q8_0), tmp_path)
    settings = ModelSettings(tmp_path, CPU, dtype="bfloat16")
    assert load_model(settings, World()).executor.startswith("dense, Q8_0, ")


def test_qwen3_nexts_older_files_have_a_deltas_queries_keys_values_and_gates_in_one(
    tmp_path: Path,
) -> None:
    path = converted.FOLDER / "qwen3_next.gguf"
    expected = json.loads(path.with_suffix(".json").read_text())
    convert(path, tmp_path)
    file = GgufFile.of_folder(tmp_path)
    assert file is not None
    whole = file.get_tensor("model.layers.0.linear_attn.in_proj_qkvz.weight").numpy()
    changed = {
        "blk.0.ssm_in.weight": whole,
        "blk.0.attn_qkv.weight": None,
        "blk.0.attn_gate.weight": None,
    }
    convert(requantized(path, tmp_path / "model.gguf", Kind.BF16, changed), tmp_path)
    logits, _ = answer(tmp_path, expected["prompt"])
    assert torch.allclose(logits, torch.tensor(expected["logits"]), atol=5e-4)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_quantized_kinds_stay_so_and_a_tied_head_serves_as_the_embedding(
    kind: str, tmp_path: Path
) -> None:
    assert served_as_before(small_model("llama", tie_word_embeddings=True), tmp_path, Kind[kind])
    for quantize in (None, "int4"):
        settings = ModelSettings(tmp_path, CPU, dtype="float32", quantize=quantize)
        assert load_model(settings, World()).executor.startswith(f"dense, {kind}, ")


def test_a_llama_without_a_head_uses_its_embedding_and_may_have_biases(tmp_path: Path) -> None:
    model = small_model("llama", tie_word_embeddings=True, attention_bias=True)
    assert served_as_before(model, tmp_path, Kind.F16)


def test_weights_read_back_are_those_of_the_model(tmp_path: Path) -> None:
    for architecture in CONFIGS:
        model = small_model(architecture)
        expected = {name: each.clone() for name, each in model.named_parameters()}
        convert(write_gguf(tmp_path / "model.gguf", model), tmp_path)
        for name, each in dequantized(model, tmp_path).named_parameters():
            assert torch.allclose(each, expected[name], atol=1e-6), (architecture, name)


def test_the_scale_of_llama_3s_rotations_is_found_in_its_frequencies(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = small_model("llama", rope_parameters=rope, max_position_embeddings=131072)
    plain = 500000.0 ** -(np.arange(16) / 16)
    divisors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert divisors.max() == 32
    frequencies = {"rope_freqs__weight": divisors}
    assert served_as_before(model, tmp_path, Kind.F32, **frequencies)
    frequencies["rope_freqs__weight"][3] = 2.0
    write_gguf(tmp_path / "other.gguf", model, **frequencies)
    with pytest.raises(ModelRefused, match="not scaled as Llama 3's"):
        convert(tmp_path / "other.gguf", tmp_path)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general__architecture": "mamba"}, "'mamba': of GGUF files llama, qwen2"),
        ({"llama__rope__scaling__type": "longrope"}, r"rope\.scaling\.type 'longrope'"),
        ({"split__count": 2}, r"one of 2 parts, and its name is not NAME-00001-of-00002\.gguf"),
        ({"blk__0__other": np.ones(4, np.float32)}, r"1 tensors .* as blk\.0\.other"),
        ({"tokenizer__ggml__pre": "of-mine"}, r"tokenizer\.ggml\.pre 'of-mine'"),
        ({"llama__rope__dimension_count": 8}, r"dimension_count 8: llama .* heads of 32 whole"),
        ({"llama__block_count": 10**6}, r"lacks blk\.2\.,"),
        ({"llama__embedding_length": "four"}, "length 'four': is not a finite number"),
        ({"llama__embedding_length": 0.5}, "'hidden_size' expected int, got float"),
        ({"llama__context_length": 0}, r"has no llama\.context_length"),
        ({"llama__rope__dimension_count": 34}, "dimension_count 34: is not so many pairs of"),
        ({"llama__rope__dimension_count": 7}, "dimension_count 7: is not so many pairs of"),
        ({"llama__block_count": 0}, r"has no llama\.block_count"),
        ({"llama__block_count": 0.5}, r"block_count 0\.5: is no number of layers"),
        ({"llama__nextn_predict_layers": 1}, "predict_layers 1: it has no layer that drafts"),
        ({"qwen2__attention__sliding_window": 4}, "sliding_window 4: qwen2 .* computes none"),
        ({"tokenizer__ggml__eos_token_id": 256}, r"eos_token_id 256: there are 256 tokens"),
        ({"llama__attention__causal": 0}, r"attention\.causal 0: llama .* computes True"),
        ({"llama__logit_scale": 2}, r"llama\.logit_scale 2: is not known"),
        ({"llama__rope__dimension_sections": 2}, r"rope\.dimension_sections 2: is not known"),
        ({"llama__attention__sliding_window": 4}, "llama of transformers has no sliding_window"),
        ({"llama__swin_norm": False}, r"llama\.swin_norm False: is not known"),
    ],
)
def test_what_would_change_numbers_or_texts_is_refused_by_name(
    metadata: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    architecture = "qwen2" if "qwen2__attention__sliding_window" in metadata else "llama"
    path = write_gguf(tmp_path / "model.gguf", small_model(architecture), **metadata)
    with pytest.raises(ModelRefused, match=reason):
        convert(path, tmp_path)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"ffn_gate_exps": (4, 48, 32), "ffn_up_exps": (4, 16, 32)}, "have the unlike shapes"),
        ({"ffn_gate_exps": (4096,)}, "has too few dimensions"),
        ({"ffn_down_exps": (4, 16, 32)}, r"has the shape \[4, 16, 32\], and by its metadata"),
    ],
)
def test_experts_of_other_shapes_are_refused(
    shapes: dict[str, tuple[int, ...]], reason: str, tmp_path: Path
) -> None:
    path = converted.FOLDER / "qwen3_moe.gguf"
    of_layer = {
        f"blk.1.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()
    }
    requantized(path, tmp_path / "model.gguf", Kind.BF16, of_layer)
    with pytest.raises(ModelRefused, match=reason):
        convert(tmp_path / "model.gguf", tmp_path)


def test_a_file_in_parts_is_the_model_that_it_was_split_from(tmp_path: Path) -> None:
    model = small_model("llama")
    write_gguf(tmp_path / "model.gguf", model, split_max_tensors=5)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    described = convert(parts[1], tmp_path)
    assert described.startswith(f"{parts[0]}: llama, ")
    expected = {name: each.clone() for name, each in model.named_parameters()}
    for name, each in dequantized(model, tmp_path).named_parameters():
        assert torch.allclose(each, expected[name], atol=1e-6), name
    second = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(ModelRefused, match=f"split.no 2 of {parts[1].name}: is not 1"):
        convert(parts[0], tmp_path)
    parts[1].write_bytes(second)
    parts[2].unlink()
    with pytest.raises(ModelRefused, match=f"lacks its part {parts[2].name}"):
        convert(parts[0], tmp_path)


def test_numbers_in_the_order_of_other_machines_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"), order=GGUFEndian.BIG)
    with pytest.raises(ModelRefused, match="big-endian"):
        convert(path, tmp_path)


def test_a_window_of_nothing_is_none_as_phi_4s_files_say_it(tmp_path: Path) -> None:
    model = small_model("phi3", sliding_window=None)
    assert served_as_before(model, tmp_path, Kind.F32, phi3__attention__sliding_window=0)


def test_a_kind_that_cannot_be_read_is_refused_before_weights_are(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"), Kind.I32)
    with pytest.raises(ModelRefused, match="tensors of I32, which cannot be dequantized"):
        convert(path, tmp_path)


def test_a_file_that_was_cut_off_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"))
    whole = path.read_bytes()
    for content in (whole[:-1000], whole[:100], b"GGUF"):
        path.write_bytes(content)
        assert main([str(path), str(tmp_path)]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"error: {path}: is no whole GGUF file")
        assert said.count("\n") == 1


def test_what_the_file_is_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("qwen2"), Kind.Q4_0)
    assert main([str(path), str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "qwen2, 100 % Q4_0, 0 % F32: 4.5" in said
    assert "dequantized" not in said


def test_how_much_a_cpu_dequantizes_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_model("qwen2", hidden_size=256)
    path = write_gguf(tmp_path / "model.gguf", model, Kind.TQ1_0)
    assert main([str(path), str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(" MiB; on a CPU 100 % of it is dequantized\n")
