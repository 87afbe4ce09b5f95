"""A process that waits to be a shard; that it becomes one: tests/integration/test_recovery.py."""

import subprocess
import sys
from pathlib import Path

from launcher import BUNDLED_MODEL
from processes.child import STANDING_BY


def standby(model: Path) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "model_server.standby", "serve", str(model), "--device", "cpu"]
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_waits_at_its_own_priority_and_ends_with_its_launcher() -> None:
    with standby(BUNDLED_MODEL) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"{STANDING_BY}, in ")
        proc = Path(f"/proc/{process.pid}")
        assert (proc / "comm").read_text() == "tandem-standby\n"
        nice = (proc / "stat").read_text().rpartition(")")[2].split()[16]
        assert nice == "0"
        # The launcher's end of the pipe.
        rest, errors = process.communicate()
    assert (process.returncode, rest, errors) == (0, "", "")


def test_what_cannot_be_served_does_not_stand_by(tmp_path: Path) -> None:
    with standby(tmp_path) as process:
        said, errors = process.communicate()
    assert (process.returncode, said) == (1, "")
    assert errors.startswith("error: ")
    assert str(tmp_path) in errors
