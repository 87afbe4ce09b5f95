"""A checkpoint becomes one in 4 bits that is served, and judged by what it says."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from launcher import BUNDLED_MODEL
from model_server.checkpoint.check import ModelSettings
from model_server.config import QuantizeConfig, parse_quantize
from model_server.engine.distributed import World
from model_server.errors import ConfigRefused, ModelRefused
from model_server.loading import load_model
from model_server.quantizing.calibration import Calibration
from model_server.quantizing.quantize import Quantized, quantize
from model_server.quantizing.writing import write_config
from tests.model_server.checkpoint import tiny_models


def config_of(model: Path | str, out: Path, *flags: str) -> QuantizeConfig:
    return parse_quantize([str(model), str(out), *flags], {})


def save(name: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """A small model with a short context, so that few tokens are drawn of it."""
    config = {**tiny_models.CONFIGS, **tiny_models.HYBRIDS}[name]()
    for key, value in {"max_position_embeddings": 32, **changes}.items():
        setattr(config.get_text_config(), key, value)
    tiny_models.of_config(config).to(dtype).save_pretrained(folder)
    return folder


def stored(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def dequantized(folder: Path) -> dict[str, Tensor]:
    """A checkpoint's weights, by the format's description alone."""
    tensors = stored(folder)
    layers = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    for layer in layers:
        words, zero_words, scales, groups = (
            tensors.pop(f"{layer}.{part}").numpy()
            for part in ("qweight", "qzeros", "scales", "g_idx")
        )
        numbers = (words.view(np.uint32)[:, None] >> shifts[:, None]) & 15
        zeros = ((zero_words.view(np.uint32)[:, :, None] >> shifts) & 15) + 1
        numbers = numbers.reshape(-1, words.shape[1]).astype(np.float32)
        zeros = zeros.reshape(len(scales), -1).astype(np.float32)
        values = (numbers - zeros[groups]) * scales.astype(np.float32)[groups]
        tensors[f"{layer}.weight"] = torch.from_numpy(values.T.copy())
    return tensors


def shares_by_transformers(folder: Path, weights: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Logarithms of next tokens' shares, by a model with these weights."""
    with TemporaryDirectory() as name:
        target = Path(name)
        save_file(weights, target / "model.safetensors", {"format": "pt"})
        content = json.loads((folder / "config.json").read_text())
        content.pop("quantization_config", None)
        (target / "config.json").write_text(json.dumps(content))
        kind: Any = transformers.AutoModelForCausalLM
        with torch.inference_mode():
            logits: Tensor = kind.from_pretrained(target, dtype=torch.float32)(rows).logits
    return logits.log_softmax(-1)


def divergence_by_transformers(source: Path, out: Path) -> float:
    """Over the rows that a model draws with the seed 0 and that are held out."""
    model = load_model(ModelSettings(source, torch.device("cpu")), World())
    rows = torch.stack(Calibration.drawn(model, 0).held_out)
    expected = shares_by_transformers(source, stored(source), rows)
    actual = shares_by_transformers(out, dequantized(out), rows)
    return float((expected.exp() * (expected - actual)).sum(-1).mean())


def test_transformers_says_of_the_written_weights_what_was_judged(tmp_path: Path) -> None:
    source = save("llama-tied", tmp_path / "source")
    original = stored(source)
    kl = {}
    for method in ("gptq", "rtn"):
        out = tmp_path / method
        made = quantize(config_of(source, out, "--method", method, "--group-size", "32"))
        weights = dequantized(out)
        assert weights.keys() == original.keys()
        changed = {name for name, each in original.items() if not torch.equal(weights[name], each)}
        assert changed == {name for name in original if name.endswith("_proj.weight")}
        assert made.kl == pytest.approx(divergence_by_transformers(source, out), rel=0.02)
        assert 0.3 < made.same_share < 1
        assert made.num_held_out == 16 * 32
        assert made.folder == out
        kl[method] = made.kl
    assert kl["gptq"] < 0.8 * kl["rtn"]


def test_transformers_knows_the_format_by_its_name(tmp_path: Path) -> None:
    write_config(tmp_path, {"model_type": "llama"}, 64)
    config: Any = transformers.AutoConfig.from_pretrained(tmp_path)
    read = transformers.GPTQConfig.from_dict(config.quantization_config)
    assert (read.bits, read.group_size, read.desc_act, read.sym) == (4, 64, False, True)
    assert (read.quant_method, read.format) == ("gptq", "gptq")


def test_a_group_is_halved_until_it_divides_all(tmp_path: Path) -> None:
    source = save("llama", tmp_path / "source")
    made = quantize(config_of(source, tmp_path / "out", "--method", "rtn"))
    # Of 64 and 96.
    assert made.group_len == 32
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings["group_size"] == 32
    assert stored(tmp_path / "out")["model.layers.1.mlp.down_proj.scales"].shape == (3, 64)
    assert 0 < made.weights_bytes < made.original_bytes / 2
    said = str(made)
    assert "groups of 32" in said
    assert "KL" in said


def test_of_what_sees_the_language_model_alone_is_in_4_bits(tmp_path: Path) -> None:
    source = save("llava", tmp_path / "source")
    quantize(config_of(source, tmp_path / "out"))
    before = stored(source)
    after = stored(tmp_path / "out")
    kept = {name for name in before if name in after}
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert any("vision" in name for name in kept)
    quantized = {name.removesuffix(".weight") for name in before.keys() - kept}
    assert len(quantized) == 14
    assert all("language_model" in name and f"{name}.qweight" in after for name in quantized)


def test_layers_with_a_state_are_in_4_bits_too_and_the_rest_in_its_own_16(tmp_path: Path) -> None:
    source = save("lfm2", tmp_path / "source", torch.float16)
    made = quantize(config_of(source, tmp_path / "out"))
    written = stored(tmp_path / "out")
    assert "model.layers.0.conv.in_proj.qweight" in written
    assert written["model.embed_tokens.weight"].dtype == torch.float16
    divergence = divergence_by_transformers(source, tmp_path / "out")
    assert made.kl == pytest.approx(divergence, rel=0.02)


def test_texts_and_seeds_choose_what_is_made(tmp_path: Path) -> None:
    source = save("llama", tmp_path / "source", vocab_size=4096)
    for path in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / path, source)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": f"A fox has {n} shells."}) for n in range(99)))

    def words(name: str, *flags: str) -> Tensor:
        quantize(config_of(source, tmp_path / name, *flags))
        return stored(tmp_path / name)["model.layers.0.mlp.up_proj.qweight"]

    of_texts = words("a", f"--calibration={texts}")
    assert not torch.equal(words("b", f"--calibration={texts}", "--seed=1"), of_texts)


def in_4_bits(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "awq"}
    (folder / "config.json").write_text(json.dumps(content))


def as_gguf(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.gguf")


def nothing(_: Path) -> None:
    """The model is refused as it is."""


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama", in_4_bits, "is quantized already, by awq"),
        ("llama", as_gguf, "a GGUF file is served as it is"),
        ("glm4_moe", nothing, "could not be served: it has experts"),
        ("qwen3_5", nothing, "in_proj_b has 64 inputs and 4 outputs: in 4 bits they go by 16"),
        ("gpt2", nothing, "could not be served: .* learned positions"),
    ],
)
def test_a_model_that_cannot_be_in_4_bits_is_refused_and_nothing_is_left(
    name: str, change: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    source = save(name, tmp_path / "source")
    change(source)
    with pytest.raises(ModelRefused, match=said):
        quantize(config_of(source, tmp_path / "out", "--method", "rtn"))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_gguf_file_is_refused_before_it_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"a/b/c\.gguf: a GGUF file is served as it is"):
        quantize(config_of("a/b/c.gguf", tmp_path / "out"))


def test_what_exists_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match="exists already"):
        quantize(config_of("no/such-model", tmp_path))


def launcher(*args: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "launcher", "quantize", *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_the_command_says_what_it_does_and_what_it_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launcher(str(save("llama", tmp_path / "source")), str(out), "--method=rtn") as command:
        said, log = command.communicate(timeout=60)
    assert command.returncode == 0, log
    assert said.startswith(f"{out}: 0.")
    assert "layer 2 of 2: " in log
    # No progress bar.
    assert "\r" not in log


@pytest.mark.nightly
def test_the_command_leaves_nothing_when_it_is_stopped(tmp_path: Path) -> None:
    source = save("llama", tmp_path / "source")
    with launcher(str(source), str(tmp_path / "out")) as command:
        assert command.stderr is not None
        while "drawing" not in (line := command.stderr.readline()):
            assert line
        command.terminate()
        _, log = command.communicate(timeout=60)
    assert command.returncode == 1
    assert log.endswith("error: stopped, and nothing was made\n")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.nightly
def test_on_the_bundled_model_gptq_has_at_most_half_of_the_divergence_of_rounding(
    tmp_path: Path,
) -> None:
    made: dict[str, Quantized] = {
        method: quantize(config_of(BUNDLED_MODEL, tmp_path / method, "--method", method))
        for method in ("gptq", "rtn")
    }
    assert made["gptq"].group_len == 128
    assert made["gptq"].kl < 0.5 * made["rtn"].kl
