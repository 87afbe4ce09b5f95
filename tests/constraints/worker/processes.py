"""What a process owns, as the kernel tells."""

import contextlib
import os
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Ids of a process's children, also of those that have ended and wait to be asked."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def zygotes(owner: int | None = None) -> list[int]:
    """Those of a process, or of this one."""
    children = children_of(os.getpid() if owner is None else owner)
    return [pid for pid in children if b"constraints.worker" in _argv(pid)]


def _argv(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def num_sockets(pid: int) -> int:
    """How many of its descriptors are sockets."""
    return sum(link.startswith("socket:") for link in _links(pid))


def _links(pid: int) -> list[str]:
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        # Of this process one is there for the listing alone.
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(path))
    return links
