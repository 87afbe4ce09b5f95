"""What a session of processes holds."""

import os
import subprocess
import sys
from pathlib import Path

from fleet.memory import anonymous_bytes, free_bytes

_HOLDS = 60 << 20
_SCRIPT = f"held = bytearray({_HOLDS}); print('held', flush=True); input()"


def test_a_sessions_memory_is_what_its_processes_hold() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        held = anonymous_bytes(process.pid)
        process.communicate(b"\n")
    assert _HOLDS <= held < _HOLDS + (40 << 20)
    assert anonymous_bytes(process.pid) == 0


def test_a_system_without_such_files_tells_nothing(tmp_path: Path) -> None:
    assert anonymous_bytes(os.getpid(), tmp_path) == 0


def test_what_is_free_is_what_the_host_or_the_control_group_leaves(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal: 9 kB\nMemAvailable:     64 kB\nHugePages_Free: 0\n"
    )
    group = tmp_path / "group"
    group.mkdir()
    assert free_bytes(tmp_path, group) == 64 << 10
    (group / "memory.stat").write_text("anon 5\nfile 9000\n")
    (group / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path, group) == 64 << 10
    (group / "memory.max").write_text("2000\n")
    assert free_bytes(tmp_path, group) == 1995
    assert free_bytes(tmp_path / "none", tmp_path / "none") is None
