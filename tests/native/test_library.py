"""C++ is compiled once per source, compiler and CPU; who cannot compile gets the reason."""

import ctypes
import multiprocessing
import stat
import tempfile
from pathlib import Path

import pytest

from native.library import NativeUnavailable, instruction_set_of, load_native
from tests.native.compiler import needs_compiler


def write_source(folder: Path, answer: int) -> Path:
    source = folder / "answer.cpp"
    (folder / "answer.h").write_text(f"constexpr int kAnswer = {answer};\n")
    source.write_text('#include "answer.h"\nextern "C" int answer() { return kAnswer; }\n')
    return source


def answer(library: ctypes.CDLL) -> int:
    return int(library.answer())


@needs_compiler
def test_compiles_once_and_loads_what_it_compiled(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    folder = tmp_path / "cache"
    assert answer(load_native(source, folder)) == 7
    (library,) = folder.glob("*.so")
    first_written = library.stat().st_mtime_ns
    assert answer(load_native(source, folder)) == 7
    assert library.stat().st_mtime_ns == first_written
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@needs_compiler
def test_a_changed_header_is_another_library(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert answer(load_native(write_source(tmp_path, 7), folder)) == 7
    assert answer(load_native(write_source(tmp_path, 8), folder)) == 8
    assert len(list(folder.glob("*.so"))) == 2


def wrap_compiler(path: Path, arguments: str) -> str:
    path.write_text(f'#!/bin/sh\nexec g++ {arguments} "$@"\n')
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_another_compiler_is_another_library(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    folder = tmp_path / "cache"
    load_native(source, folder)
    load_native(source, folder, (wrap_compiler(tmp_path / "wrapped", ""),))
    assert len(list(folder.glob("*.so"))) == 2


@needs_compiler
def test_a_compiler_that_now_means_another_cpu_is_another_library(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    folder = tmp_path / "cache"
    load_native(source, folder, (wrap_compiler(tmp_path / "wrapped", ""),))
    load_native(source, folder, (wrap_compiler(tmp_path / "wrapped", "-D__NEWER_CPU__"),))
    assert len(list(folder.glob("*.so"))) == 2


def load_in_a_rank(source: Path, folder: Path, compiler: str) -> None:
    assert answer(load_native(source, folder, (compiler,))) == 7


@needs_compiler
def test_ranks_that_start_together_compile_once(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    folder = tmp_path / "cache"
    wrapper = tmp_path / "logging-g++"
    log = tmp_path / "log"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo x >> {log}; sleep 0.3;; esac\nexec g++ "$@"\n'
    )
    wrapper.chmod(0o755)
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=load_in_a_rank, args=(source, folder, str(wrapper)))
        for _ in range(3)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    assert log.read_text() == "x\n"


def test_no_compiler_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        load_native(write_source(tmp_path, 7), tmp_path / "cache", ("no-such-compiler",))


@needs_compiler
def test_a_source_that_does_not_compile_is_a_reason_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "broken.cpp"
    folder = tmp_path / "cache"
    source.write_text("int broken( {\n")
    with pytest.raises(NativeUnavailable, match="error: expected"):
        load_native(source, folder, only=("native",))
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


@needs_compiler
def test_a_library_that_does_not_load_is_a_reason(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    damaged = tmp_path / "damaged"
    whole = load_native(source, tmp_path / "cache")
    (library,) = (tmp_path / "cache").glob("*.so")
    damaged.mkdir()
    (damaged / library.name).write_bytes(library.read_bytes()[:100])
    with pytest.raises(NativeUnavailable, match=f"{damaged}.* does not load"):
        load_native(source, damaged, only=(instruction_set_of(whole),))


@needs_compiler
def test_without_a_place_to_keep_it_the_library_is_compiled_for_this_process(
    tmp_path: Path,
) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where the folder should be")
    assert answer(load_native(write_source(tmp_path, 7), occupied)) == 7


@needs_compiler
def test_without_any_place_to_write_that_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path, 7)
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where the folder should be")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(NativeUnavailable, match="no place to compile in"):
        load_native(source, occupied)


@needs_compiler
def test_a_lock_file_that_was_left_behind_does_not_hold(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    folder = tmp_path / "cache"
    load_native(source, folder)
    (library,) = folder.glob("*.so")
    (lock,) = folder.glob("*.lock")
    library.unlink()
    load_native(source, folder)
    assert library.exists()
    assert lock.exists()
