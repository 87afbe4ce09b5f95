"""Pools over the byte tokenizer, for the time of a test, and the processes that they own."""

import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from constraints.spec import ConstraintSpec, Kind, StopRule
from constraints.worker.jobs import Check
from constraints.worker.pool import PoolRules, VocabularyFile, WorkerPool
from tests.byte_tokenizer import EOS_ID, VOCAB_SIZE, save_byte_tokenizer

MAX_LEN = 512


def vocabulary_file(folder: Path) -> VocabularyFile:
    """The byte tokenizer's."""
    path = save_byte_tokenizer(folder) / "tokenizer.json"
    return VocabularyFile(path, VOCAB_SIZE, (EOS_ID,), MAX_LEN)


@asynccontextmanager
async def pooling(folder: Path, **rules: float) -> AsyncIterator[WorkerPool]:
    """A pool that is ready; `rules` as PoolRules has them, but for more patience."""
    patient: dict[str, Any] = {"wait_s": 30.0, **rules}
    pool = WorkerPool(vocabulary_file(folder), PoolRules(**patient))
    try:
        await pool.wait_ready()
        yield pool
    finally:
        await pool.close()


def regex(pattern: str) -> Check:
    """A job that is done in a moment."""
    return Check(ConstraintSpec(Kind.REGEX, pattern), StopRule(), MAX_LEN)


def costly(number: int = 0, num_choices: int = 100_000) -> Check:
    """A job that computes for half a second, and passes; each number is another text."""
    words = (7919 * index % (num_choices + 3) for index in range(num_choices))
    choices = json.dumps([f"{word:x} {number}" for word in words])
    return Check(ConstraintSpec(Kind.CHOICE, choices), StopRule(), MAX_LEN)


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
    links: list[str] = []
    # One that has just ended holds nothing.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            # Of this process one is there for the listing alone.
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(path))
    return links
