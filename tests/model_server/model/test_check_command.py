"""`check` as a process: its lock, the files that it writes, its parent's end."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher import BUNDLED_MODEL
from tests.integration.server import wait_until_gone

pytestmark = pytest.mark.slow


def check_argv(*flags: str) -> list[str]:
    return [sys.executable, "-m", "model_server", "check", str(BUNDLED_MODEL), *flags]


def wait_until_open(pid: int, path: Path) -> None:
    """Returns once that process has the file open."""
    deadline_s = time.monotonic() + 100
    while time.monotonic() < deadline_s:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if os.readlink(link) == str(path):
                    return
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError(f"{path} was never opened")


def test_a_model_is_examined_when_its_turn_has_come_and_its_folder_told(tmp_path: Path) -> None:
    turn, folder_file = tmp_path / "turn", tmp_path / "folder"
    with turn.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        flags = ("--turn-file", str(turn), "--folder-file", str(folder_file))
        with subprocess.Popen(check_argv(*flags), stdout=subprocess.DEVNULL) as process:
            wait_until_open(process.pid, turn)
            assert process.poll() is None
            assert not folder_file.exists()
            fcntl.flock(file, fcntl.LOCK_UN)
            assert process.wait(100) == 0
    assert folder_file.read_text() == str(BUNDLED_MODEL)


def test_what_a_model_needs_of_the_host_is_told_to_who_asks(tmp_path: Path) -> None:
    needs = tmp_path / "needs"
    flags = ("--needs-file", str(needs), "--device", "cpu", "--dtype", "float32")
    subprocess.run(check_argv(*flags), stdout=subprocess.DEVNULL, check=True, timeout=100)
    weights = BUNDLED_MODEL / "model.safetensors"
    # In the file they have two bytes each, and a header.
    assert 0 < weights.stat().st_size * 2 - int(needs.read_text()) < 200_000


def test_a_check_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    turn, pid_file = tmp_path / "turn", tmp_path / "pid"
    script = (
        "import os, subprocess, sys, time\n"
        "process = subprocess.Popen([*sys.argv[2:], '--parent-pid', str(os.getpid())])\n"
        "open(sys.argv[1], 'w').write(str(process.pid)); time.sleep(100)\n"
    )
    argv = [sys.executable, "-c", script, str(pid_file)]
    with turn.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with subprocess.Popen([*argv, *check_argv("--turn-file", str(turn))]) as parent:
            while not (pid_file.exists() and pid_file.read_text()):
                time.sleep(0.05)
            pid = int(pid_file.read_text())
            wait_until_open(pid, turn)
            parent.kill()
        assert wait_until_gone([pid]) == []
