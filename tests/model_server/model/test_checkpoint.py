"""A checkpoint is looked over before it is loaded: every fault is named with its file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model_server.checkpoint import checkpoint
from model_server.errors import CheckpointBroken


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two weight files and an index."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a": torch.zeros(4, 4), "b": torch.zeros(8)}, tmp_path / "part-1.safetensors")
    save_file({"c": torch.zeros(3, dtype=torch.bfloat16)}, tmp_path / "part-2.safetensors")
    weight_map = {"a": "part-1.safetensors", "b": "part-1.safetensors", "c": "part-2.safetensors"}
    (tmp_path / checkpoint.INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_a_whole_checkpoint_passes(folder: Path) -> None:
    checkpoint.check(folder)


def test_a_single_weight_file_needs_no_index(folder: Path) -> None:
    (folder / checkpoint.INDEX_NAME).unlink()
    save_file({"a": torch.zeros(2)}, folder / checkpoint.WEIGHTS_NAME)
    checkpoint.check(folder)


def _cut_off(folder: Path) -> None:
    path = folder / "part-1.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def _cut_in_the_header(folder: Path) -> None:
    path = folder / "part-2.safetensors"
    path.write_bytes(path.read_bytes()[:20])


def _with_a_garbled_header(folder: Path) -> None:
    path = folder / "part-2.safetensors"
    content = bytearray(path.read_bytes())
    content[8:12] = b"\xff\xfe{{"
    path.write_bytes(bytes(content))


def _with_a_wrong_shape(folder: Path) -> None:
    path = folder / "part-1.safetensors"
    path.write_bytes(path.read_bytes().replace(b"[4,4]", b"[4,5]"))


def _with_a_longer_index(folder: Path) -> None:
    index = json.loads((folder / checkpoint.INDEX_NAME).read_text())
    index["weight_map"]["d"] = "part-2.safetensors"
    (folder / checkpoint.INDEX_NAME).write_text(json.dumps(index))


def _with_a_path_out_of_the_folder(folder: Path) -> None:
    index = {"weight_map": {"a": "../part-1.safetensors"}}
    (folder / checkpoint.INDEX_NAME).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "file_name", "fault"),
    [
        (_cut_off, "part-1.safetensors", "is truncated"),
        (_cut_in_the_header, "part-2.safetensors", "is no whole safetensors file"),
        (_with_a_garbled_header, "part-2.safetensors", "its header is not JSON"),
        (_with_a_wrong_shape, "part-1.safetensors", "does not fit its bytes"),
        (_with_a_longer_index, "part-2.safetensors", "lacks 1 tensors"),
        (_with_a_path_out_of_the_folder, "index.json", "lies in no file of this folder"),
        (
            lambda f: (f / "part-2.safetensors").unlink(),
            "part-2.safetensors",
            "1 of 2 weight files",
        ),
        (lambda f: (f / "part-2.safetensors").write_bytes(b""), "part-2.safetensors", "0 bytes"),
        (lambda f: (f / "config.json").unlink(), "config.json", "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json", "cannot be read as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json", "is not a JSON object"),
        (
            lambda f: (f / checkpoint.INDEX_NAME).write_text('{"weight_map": {}}'),
            checkpoint.INDEX_NAME,
            "has no weight_map",
        ),
        (lambda f: (f / checkpoint.INDEX_NAME).unlink(), "model.safetensors", "has neither"),
    ],
)
def test_a_broken_checkpoint_is_refused_with_file_and_fault(
    folder: Path, damage: Callable[[Path], object], file_name: str, fault: str
) -> None:
    damage(folder)
    with pytest.raises(CheckpointBroken) as refusal:
        checkpoint.check(folder)
    assert fault in str(refusal.value)
    assert file_name in str(refusal.value)


def test_a_missing_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointBroken, match="does not exist"):
        checkpoint.check(tmp_path / "nowhere")
    with pytest.raises(CheckpointBroken, match=r"has no config\.json"):
        checkpoint.check(tmp_path)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / checkpoint.INDEX_NAME).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointBroken, match="convert them to safetensors"):
        checkpoint.check(folder)
