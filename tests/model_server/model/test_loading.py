"""The command `check` as a process: its lock, the file that it writes, its parent's end."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher import BUNDLED_MODEL
from model_server.__main__ import main
from tests.integration.server import wait_until_gone
from tests.model_server import forked

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


def test_a_model_is_checked_in_its_turn_and_its_folder_is_written(tmp_path: Path) -> None:
    turn, folder_file = tmp_path / "turn", tmp_path / "folder"
    flags = ("--turn-file", str(turn), "--folder-file", str(folder_file))
    argv = ["check", str(BUNDLED_MODEL), *flags, "--device", "cpu", "--dtype", "float32"]
    process = forked.context().Process(target=check_and_exit, args=(argv,))
    with turn.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process.start()
        assert process.pid is not None
        wait_until_open(process.pid, turn)
        assert process.is_alive()
        assert not folder_file.exists()
        fcntl.flock(file, fcntl.LOCK_UN)
        process.join(100)
    assert process.exitcode == 0
    assert folder_file.read_text() == str(BUNDLED_MODEL)


def check_and_exit(argv: list[str]) -> None:
    sys.exit(main(argv))


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
