"""How much memory a session of processes would give back, and what there is; for Linux."""

from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# Behind the command's name in brackets, which may hold anything: state, ppid, pgrp, session.
_SESSION = 3


def anonymous_bytes(session_id: int, proc: Path = _PROC) -> int:
    """What the processes of a session hold that is in no file; 0 where the system does not tell.

    Pages that several of them share are counted for each.
    """
    return sum(
        _anonymous_of(folder) for folder in proc.glob("[0-9]*") if _session_of(folder) == session_id
    )


def free_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int | None:
    """What processes could still take of the host, or of the control group if that leaves less.

    None where the system does not tell.
    """
    found = [number for number in (_of_host(proc), _of_group(cgroup)) if number is not None]
    return min(found, default=None)


def _of_host(proc: Path) -> int | None:
    kilobytes = _told(proc / "meminfo").get("MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _of_group(cgroup: Path) -> int | None:
    """Its bound less what is in no file: files are given back."""
    try:
        bound = (cgroup / "memory.max").read_text().strip()
    except OSError:
        return None
    held = _told(cgroup / "memory.stat").get("anon")
    return int(bound) - held if bound.isdecimal() and held is not None else None


def _told(path: Path) -> dict[str, int]:
    """The numbers of a file by the words in front of them."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) > 1}


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
