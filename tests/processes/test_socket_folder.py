"""Folders for sockets: none stays behind, whoever was killed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from processes.addresses import socket_folder

_USES = """
import sys
from processes.addresses import socket_folder
with socket_folder() as folder:
    sys.stdout.write(f"{folder}\\n")
    sys.stdout.flush()
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def used_by_a_process() -> tuple[subprocess.Popen[str], Path]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", _USES], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_private_and_goes_with_its_process(temporary: Path) -> None:
    with socket_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(temporary: Path) -> None:
    process, left = used_by_a_process()
    with process:
        (left / "shard-0").touch()
        process.kill()
        process.wait()
        assert left.is_dir()
        with socket_folder() as folder:
            assert list(temporary.iterdir()) == [folder]


def test_a_folder_in_use_and_folders_of_others_stay(temporary: Path) -> None:
    other = temporary / "tandem-notes"
    other.mkdir()
    process, used = used_by_a_process()
    with process:
        with socket_folder() as folder:
            assert set(temporary.iterdir()) == {other, used, folder}
        process.communicate("\n")
    assert list(temporary.iterdir()) == [other]
