"""The team of threads under stress: team_driver.cpp is the test, with and without a sanitizer."""

import subprocess
from pathlib import Path

import pytest

from native.compiler import find_compiler
from tests.native.compiler import needs_compiler

pytestmark = needs_compiler

DRIVER = Path(__file__).with_name("team_driver.cpp")
FLAGS = ("-std=gnu++17", "-O2", "-pthread")


def built(folder: Path, *flags: str) -> Path | None:
    """The driver's program, or None where these flags do not link."""
    program = folder / "team_driver"
    done = subprocess.run(
        [find_compiler(), *FLAGS, *flags, str(DRIVER), "-o", str(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert flags or done.returncode == 0, done.stderr
    return program if done.returncode == 0 else None


def output_of(program: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"{done.returncode}")


@pytest.mark.slow
def test_phases_are_whole_whatever_threads_are_late_fail_or_fork(tmp_path: Path) -> None:
    program = built(tmp_path)
    assert program is not None
    assert output_of(program, "600", "1", "fork") == ""


@pytest.mark.slow
def test_a_thread_sanitizer_finds_nothing(tmp_path: Path) -> None:
    program = built(tmp_path, "-fsanitize=thread", "-g")
    if program is None:
        pytest.skip("the compiler has no thread sanitizer")
    assert output_of(program, "600", "2", "-") == ""
