"""What a session of processes holds."""

import os
import subprocess
import sys
from pathlib import Path

from fleet.memory import anonymous_bytes

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
