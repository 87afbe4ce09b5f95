"""`launcher serve --dry-run`: a model and its settings checked without being loaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import BUNDLED_MODEL

pytestmark = pytest.mark.slow


def dry_run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "launcher", "serve", *args, "--dry-run"]
    return subprocess.run(
        argv,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_model_in_order_may_be_loaded_whatever_a_library_says_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import atexit; atexit.register(print, 'bye')")
    said = dry_run(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert said.returncode == 0
    assert "check | bye" in said.stderr
    assert any("may be loaded" in line for line in said.stderr.splitlines()[-2:])
    assert "may be loaded" not in said.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED_MODEL, tmp_path / "model"))


def test_weights_that_were_cut_off_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    said = dry_run(str(folder))
    assert said.returncode == 1
    assert f"error: {weights}: is truncated" in said.stderr


def test_a_tokenizer_that_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 5}')
    said = dry_run(str(folder))
    assert said.returncode == 1
    assert "error: " in said.stderr
    assert "tokenizer.json is not a tokenizer" in said.stderr


def test_a_check_that_hangs_ends_as_a_load_does() -> None:
    # Before that no process can have read anything.
    said = dry_run("--shard-startup-timeout", "1")
    assert said.returncode == 1
    assert "error: the check is not done after 1 s (--shard-startup-timeout)" in said.stderr


def test_of_several_models_each_is_asked_for_alone() -> None:
    said = dry_run("a", "b")
    assert said.returncode == 2
    assert "--dry-run: it is about one model" in said.stderr
