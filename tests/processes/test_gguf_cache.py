"""What is kept of GGUF files, and when it is not taken."""

import os
import shutil
from pathlib import Path

import pytest

from processes import gguf_cache
from processes.gguf_cache import GgufCache, files_of_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"first")
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def taken(cache: GgufCache, key: str, target: Path) -> list[str] | None:
    """Names of the files; None: nothing was kept."""
    target.mkdir()
    return sorted(path.name for path in target.iterdir()) if cache.copy_to(target, key) else None


def test_what_is_kept_is_there_at_the_next_start_as_a_copy(
    file: Path, made: Path, tmp_path: Path
) -> None:
    cache = GgufCache(tmp_path / "home" / "kept")
    assert taken(cache, cache.key(file), tmp_path / "before") is None
    cache.keep(made, cache.key(file))
    # Two servers may start at the same time, and make the same.
    cache.keep(made, cache.key(file))
    again = GgufCache(tmp_path / "home" / "kept")
    assert taken(again, again.key(file), tmp_path / "after") == ["config.json"]
    assert len([*(tmp_path / "home" / "kept").iterdir()]) == 1
    assert (tmp_path / "home" / "kept").stat().st_mode & 0o077 == 0


def test_what_cannot_be_kept_leaves_nothing(file: Path, made: Path, tmp_path: Path) -> None:
    (made / "gone").symlink_to(tmp_path / "nowhere")
    cache = GgufCache(tmp_path / "kept")
    with pytest.raises(OSError, match="No such file"):
        cache.keep(made, cache.key(file))
    assert not [*(tmp_path / "kept").iterdir()]


def test_each_part_of_a_file_names_all_of_them() -> None:
    parts = (Path("x/a-00001-of-00002.gguf"), Path("x/a-00002-of-00002.gguf"))
    assert files_of_gguf(parts[0]) == files_of_gguf(parts[1]) == parts
    assert files_of_gguf(Path("x/a-1-of-2.gguf")) == (Path("x/a-1-of-2.gguf"),)


def test_a_file_is_another_when_one_of_its_parts_is(tmp_path: Path) -> None:
    cache = GgufCache(tmp_path / "kept")
    first, second = files_of_gguf(tmp_path / "model-00001-of-00002.gguf")
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    before = cache.key(first)
    second.write_bytes(b"another")
    assert cache.key(first) != before


def test_a_file_that_was_exchanged_for_one_of_the_same_size_and_time_is_another(
    file: Path, tmp_path: Path
) -> None:
    cache = GgufCache(tmp_path / "kept")
    before = file.stat()
    keys = [cache.key(file)]
    file.write_bytes(b"other")
    keys.append(cache.key(file))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    keys.append(cache.key(file))
    shutil.copy2(file, tmp_path / "copy")
    (tmp_path / "copy").rename(file)
    keys.append(cache.key(file))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert len(set(keys)) == 4


@pytest.mark.parametrize("changed", ["_READERS", "_SOURCES"])
def test_another_version_reads_a_file_anew(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    cache = GgufCache(tmp_path / "kept")
    before = cache.key(file)
    (tmp_path / "gguf_other.py").touch()
    monkeypatch.setattr(
        gguf_cache, changed, {"_READERS": ("pytest",), "_SOURCES": tmp_path}[changed]
    )
    assert cache.key(file) != before


def test_the_oldest_make_room(made: Path, tmp_path: Path) -> None:
    cache = GgufCache(tmp_path / "kept")
    for number in range(gguf_cache._MAX_KEPT + 2):
        cache.keep(made, str(number))
        os.utime(tmp_path / "kept" / str(number), (number, number))
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {str(2 + number) for number in range(gguf_cache._MAX_KEPT)}
