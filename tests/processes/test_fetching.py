"""The folder of the tokenizer, found or made."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import BUNDLED_MODEL
from processes.child import ChildFailed
from processes.fetching import fetch_tokenizer
from processes.logs import Console
from tests.model_server.checkpoint.gguf_files import small_model, write_gguf
from tests.processes.test_deployment import deployment


async def fetched(model: Path, own_folder: Path) -> Path:
    of_model = replace(deployment(model_id=str(model)), own_folder=own_folder)
    console = Console(as_json=False)
    try:
        return await fetch_tokenizer(of_model, os.environ, console)
    finally:
        console.flush()


@pytest.mark.slow
async def test_a_gguf_file_becomes_a_folder_without_weights_and_is_read_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = write_gguf(tmp_path / "tiny.gguf", small_model("llama"))
    own = tmp_path / "own"
    own.mkdir()
    made = await fetched(path, own)
    assert made.parent == own
    assert [*json.loads((made / "gguf_index.json").read_text())["files"]] == [str(path)]
    assert (made / "tokenizer.json").is_file()
    assert "llama, 100 % F32: 32.00 bits a weight" in capfd.readouterr().err
    # The only one of a folder is meant by the folder's name.
    again = await fetched(tmp_path, own)
    said = capfd.readouterr().err
    assert "tiny.gguf is unchanged: what was read at an earlier start is taken" in said
    assert "llama, 100 % F32: 32.00 bits a weight" in said
    assert again.parent == own
    assert again != made
    files = {file.name: file.read_bytes() for file in made.iterdir()}
    assert {file.name: file.read_bytes() for file in again.iterdir()} == files


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("README.md", "is a file: a model is a folder, a .gguf file or a hub id"),
        ("model.safetensors", "a hub id; its folder is "),
        ("none", "the model's folder '.*none' does not exist"),
        ("none.gguf", r"the model's file '.*none\.gguf' does not exist"),
    ],
)
async def test_what_is_here_and_no_model_is_told_as_what_it_is_and_not_sought_on_the_hub(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    for file in ("README.md", "model.safetensors"):
        (tmp_path / file).touch()
    with pytest.raises(ChildFailed, match=reason):
        await fetched(tmp_path / name, tmp_path)
    assert capfd.readouterr().err == ""


async def test_of_several_gguf_files_one_has_to_be_named(tmp_path: Path) -> None:
    for name in ("b-Q8_0.gguf", "a-Q4_0.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ChildFailed, match=r"name one of them: a-Q4_0\.gguf, b-Q8_0\.gguf"):
        await fetched(tmp_path, tmp_path)


async def test_of_a_gguf_file_in_parts_the_folder_or_any_part_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", small_model("llama"), split_max_tensors=12)
    (folder / "mmproj-F16.gguf").touch()
    names = sorted(path.name for path in folder.glob("tiny-*"))
    assert names == ["tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"]
    for named in (folder, folder / names[1]):
        own_folder = tmp_path / f"own-{named.name}"
        own_folder.mkdir()
        made = await fetched(named, own_folder)
        files = json.loads((made / "gguf_index.json").read_text())["files"]
        assert [*files] == [str(folder / name) for name in names]


async def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny-00001-of-00002.gguf").touch()
    with pytest.raises(ChildFailed, match=r"lacks its part .*/tiny-00002-of-00002\.gguf"):
        await fetched(tmp_path, tmp_path)


async def test_safetensors_go_before_a_gguf_file_beside_them(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED_MODEL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny.gguf").touch()
    assert await fetched(tmp_path, tmp_path) == tmp_path
