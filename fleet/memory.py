"""How much memory a session of processes would give back; for Linux."""

from pathlib import Path

_PROC = Path("/proc")
# Behind the command's name in brackets, which may hold anything: state, ppid, pgrp, session.
_SESSION = 3


def anonymous_bytes(session_id: int, proc: Path = _PROC) -> int:
    """What the processes of a session hold that is in no file; 0 where the system does not tell.

    Pages that several of them share are counted for each.
    """
    return sum(
        _anonymous_of(folder) for folder in proc.glob("[0-9]*") if _session_of(folder) == session_id
    )


def _session_of(folder: Path) -> int | None:
    try:
        told = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(told[_SESSION])
    except (OSError, IndexError, ValueError):
        # It ended meanwhile.
        return None


def _anonymous_of(folder: Path) -> int:
    try:
        lines = (folder / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
