"""A model checked before its weights are read: what is known then, and which faults it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from model_server.checkpoint.check import CheckedCheckpoint, ModelSettings, check_checkpoint
from model_server.errors import ArchitectureUnfit, CheckpointBroken, ModelRefused
from tests.model_server.model import tiny_models


def look(folder: Path, world_size: int = 1, **options: Any) -> CheckedCheckpoint:
    settings = ModelSettings(folder, torch.device("cpu"), **{"dtype": "float32", **options})
    return check_checkpoint(settings, world_size)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "mixtral"])
def test_the_bytes_of_the_weights_are_known_before_they_are_read(name: str, tmp_path: Path) -> None:
    folder = tiny_models.save(name, tmp_path)
    stored = load_file(folder / "model.safetensors").values()
    num_bytes = sum(tensor.numel() * 4 for tensor in stored)
    assert look(folder).weights_bytes == num_bytes
    assert look(folder, dtype="bfloat16").weights_bytes == num_bytes // 2


def test_bfloat16_stays_so_where_a_recipe_computes_float32(tmp_path: Path) -> None:
    wide = look(tiny_models.save("llama", tmp_path))
    tiny_models.build("llama").bfloat16().save_pretrained(tmp_path)
    narrow = look(tmp_path)
    assert (narrow.dtype, narrow.weights_dtype) == (torch.float32, torch.bfloat16)
    assert wide.weights_bytes == 2 * (narrow.weights_bytes or 0)
    in_its_class = look(tmp_path, attention="sdpa")
    assert in_its_class.weights_dtype == torch.float32


def test_ranks_divide_the_bytes_where_they_divide_the_weights(tmp_path: Path) -> None:
    whole = look(tiny_models.save("llama", tmp_path))
    assert whole.bytes_of_rank == whole.weights_bytes
    divided = look(tmp_path, world_size=2)
    assert divided.num_shards == 2
    assert divided.bytes_of_rank == whole.bytes_of_rank // 2


def changed(folder: Path, name: str, **changes: Any) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **changes}))


def test_what_is_wrong_is_told_with_its_file(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path)
    changed(folder, "generation_config.json", eos_token_id="</s>")
    with pytest.raises(CheckpointBroken, match=r"eos_token_id '</s>': must be the id of a token"):
        look(folder)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointBroken, match=r"generation_config\.json"):
        look(folder)
    (folder / "generation_config.json").unlink()
    changed(folder, "config.json", model_type="no-such-type")
    with pytest.raises(ModelRefused, match=r"config\.json.*no-such-type"):
        look(folder)
    changed(folder, "config.json", model_type="t5")
    with pytest.raises(ArchitectureUnfit, match="an encoder and a decoder"):
        look(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointBroken, match=r"model\.safetensors: is truncated"):
        look(folder)
