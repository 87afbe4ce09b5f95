"""A checkpoint in 4 bits is written as its format says, whole or not at all."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model_server.errors import ConfigRefused
from model_server.executor.int4 import Int4Weight, packed
from model_server.quantizing.writing import (
    WeightsWriter,
    copy_files,
    new_folder,
    tensors_of,
    write_config,
)


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    with new_folder(out) as folder:
        (folder / "file").write_text("x")
        assert not out.exists()
    assert (out / "file").read_text() == "x"
    assert os.listdir(tmp_path / "a") == ["out"]


def test_of_a_folder_that_fails_nothing_stays(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert os.listdir(tmp_path) == []


def test_what_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigRefused, match="exists already"), new_folder(tmp_path / "out"):
        raise AssertionError
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigRefused, match="no folder can be"), new_folder(tmp_path / "file/out"):
        raise AssertionError
    assert sorted(os.listdir(tmp_path)) == ["file", "out"]


def dequantized(tensors: dict[str, Tensor], layer: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[inputs, outputs], by the format's description alone: bit by bit, in numpy."""
    words = tensors[f"{layer}.qweight"].numpy().view(np.uint32)
    zero_words = tensors[f"{layer}.qzeros"].numpy().view(np.uint32)
    scales = tensors[f"{layer}.scales"].float().numpy()
    groups = tensors[f"{layer}.g_idx"].numpy()
    values = np.empty((len(groups), words.shape[1]), np.float32)
    for row, group in enumerate(groups):
        for column in range(words.shape[1]):
            number = int(words[row // 8, column]) >> 4 * (row % 8) & 15
            zero = (int(zero_words[group, column // 8]) >> 4 * (column % 8) & 15) + 1
            values[row, column] = np.float32(number - zero) * scales[group, column]
    return values


def test_tensors_are_what_the_format_says() -> None:
    numbers = torch.randint(0, 16, (24, 64), generator=torch.Generator().manual_seed(0))
    scales = torch.rand(24, 4).half() + 0.5
    weight = Int4Weight(packed(numbers), scales, torch.full((24, 4), 8, dtype=torch.uint8))
    tensors = tensors_of("a.b", weight)
    assert {name: (each.dtype, tuple(each.shape)) for name, each in tensors.items()} == {
        "a.b.qweight": (torch.int32, (8, 24)),
        "a.b.qzeros": (torch.int32, (4, 3)),
        "a.b.scales": (torch.float16, (4, 24)),
        "a.b.g_idx": (torch.int32, (64,)),
    }
    assert np.array_equal(dequantized(tensors, "a.b").T, weight.dense(torch.float32).numpy())
    # What readers of symmetric weights take for granted.
    assert {int(word) & 0xFFFFFFFF for word in tensors["a.b.qzeros"].flatten()} == {0x77777777}


def test_files_of_weights_have_an_index_and_are_read_by_those_whom_the_mask_lets(
    tmp_path: Path,
) -> None:
    writer = WeightsWriter(tmp_path, 2)
    tensors = {"a": torch.randn(3).bfloat16(), "b": torch.ones(2)}
    writer.write({"a": tensors["a"]})
    writer.write({"b": tensors["b"]})
    writer.finish()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    for name, file_name in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file_name)[name], tensors[name])
    assert len({stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}) == 1


def test_all_but_weights_and_config_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name in (
        "config.json tokenizer.json chat_template.jinja LICENSE tokenizer.model README.md "
        "model.safetensors model.safetensors.index.json pytorch_model.bin"
    ).split():
        (source / name).write_text(name)
    copy_files(source, target)
    copied = {path.name: path.read_text() for path in target.iterdir()}
    assert copied.keys() == {"LICENSE", "chat_template.jinja", "tokenizer.json", "tokenizer.model"}
    assert all(name == text for name, text in copied.items())


def test_the_config_is_the_original_s_and_how_it_is_quantized(tmp_path: Path) -> None:
    original = {"model_type": "llama", "unknown_to_us": [1], "dtype": "bfloat16"}
    write_config(tmp_path, original, 64)
    content = json.loads((tmp_path / "config.json").read_text())
    settings = content.pop("quantization_config")
    assert content == original
    assert settings == {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": 4,
        "group_size": 64,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
    }
