"""What the install compiled is found without a compiler, by the best instruction set of the CPU."""

import ctypes
import logging
from pathlib import Path

import pytest

from native.build import build
from native.compiler import Source
from native.instruction_sets import ALL, USUAL, portable, usable
from native.library import NativeUnavailable, instruction_set_of, load_native
from tests.native.compiler import needs_compiler

NONE = ("no-such-compiler",)


def write_source(folder: Path, answer: int, build_line: str = "// build: -DUSUAL") -> Path:
    source = folder / "answer.cpp"
    (folder / "answer.h").write_text(f"constexpr int kAnswer = {answer};\n")
    text = f'{build_line}\n#include "answer.h"\nextern "C" int answer() {{ return kAnswer; }}\n'
    source.write_text(text)
    return source


def load_installed(source: Path, installed: Path) -> ctypes.CDLL:
    return load_native(source, source.parent / "cache", NONE, installed_dir=installed)


@needs_compiler
def test_what_the_install_compiled_needs_no_compiler(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    installed = tmp_path / "built"
    built = build([source], installed)
    assert int(load_installed(source, installed).answer()) == 7
    assert [path.parent for path in built.libraries] == [installed]
    assert not (tmp_path / "cache").exists()


@needs_compiler
def test_a_changed_header_makes_an_installed_library_stale(tmp_path: Path) -> None:
    installed = tmp_path / "built"
    build([write_source(tmp_path, 7)], installed)
    source = write_source(tmp_path, 8)
    with pytest.raises(NativeUnavailable, match="no C"):
        load_installed(source, installed)
    assert int(load_native(source, tmp_path / "cache", installed_dir=installed).answer()) == 8


@needs_compiler
def test_a_second_build_compiles_nothing_and_removes_what_is_stale(tmp_path: Path) -> None:
    installed = tmp_path / "built"
    (old,) = build([write_source(tmp_path, 7)], installed).libraries
    (new,) = build([write_source(tmp_path, 8)], installed).libraries
    written = new.stat().st_mtime_ns
    assert build([write_source(tmp_path, 8)], installed, compilers=NONE).libraries == (new,)
    assert list(installed.iterdir()) == [new]
    assert new.stat().st_mtime_ns == written
    assert old != new


def test_without_a_compiler_the_build_says_why_and_goes_on(tmp_path: Path) -> None:
    built = build([write_source(tmp_path, 7)], tmp_path / "built", compilers=NONE)
    assert built.line() == (
        "not compiled, so Tandem is slower here: there is no C++ compiler (no-such-compiler)"
    )
    assert built.libraries == ()


@needs_compiler
def test_a_portable_build_is_for_every_cpu_of_the_architecture(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7)
    installed = tmp_path / "built"
    built = build([source], installed, is_portable=True)
    assert [path.name.split("-")[1] for path in built.libraries] == [
        each.name for each in portable(USUAL)
    ]
    assert instruction_set_of(load_installed(source, installed)) == usable(USUAL)[0].name


@needs_compiler
def test_a_lesser_library_serves_where_the_best_cannot_be_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_source(tmp_path, 7, "// build: native generic")
    installed = tmp_path / "built"
    build([source], installed)
    with caplog.at_level(logging.WARNING):
        library = load_installed(source, installed)
    assert instruction_set_of(library) == "generic"
    assert caplog.messages == [
        "answer.cpp makes do with generic: there is no C++ compiler (no-such-compiler)"
    ]


@needs_compiler
def test_a_test_may_name_the_instruction_set(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7, "// build: native generic")
    library = load_native(source, tmp_path / "cache", only=("generic",))
    assert instruction_set_of(library) == "generic"


def test_a_source_for_another_cpu_is_unavailable(tmp_path: Path) -> None:
    source = write_source(tmp_path, 7, f"// build: {'neon' if not usable(['neon']) else 'amx'}")
    with pytest.raises(NativeUnavailable, match=r"answer.cpp is for (neon|amx), not this CPU"):
        load_native(source)


def test_an_unknown_name_in_a_build_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="avx3 is none of amx, avx512bf16"):
        Source.read(write_source(tmp_path, 7, "// build: avx3 -O2"))


def test_a_cpu_runs_the_sets_whose_flags_it_has() -> None:
    skylake = (
        "fma avx2 bmi1 bmi2 f16c abm movbe avx512f avx512bw avx512cd avx512dq avx512vl".split()
    )
    runs = [each.name for each in ALL if each.runs_on("x86_64", skylake)]
    assert runs == ["avx512", "avx2", "native", "generic"]
    assert [each.name for each in ALL if each.runs_on("arm64", ())] == ["neon", "native", "generic"]
    graviton2 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm"
    runs = [each.name for each in ALL if each.runs_on("aarch64", [*graviton2.split(), "asimddp"])]
    assert runs == ["dotprod", "neon", "native", "generic"]
