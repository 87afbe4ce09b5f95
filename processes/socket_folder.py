"""A private folder for sockets, and the removal of those that killed processes left."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "tandem-"
# Locked while its folder is used, so that neither process ids nor ages have to be trusted.
_LOCK = "lock"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder that only this user may enter; removed at the end, by the next process if this
    one is killed.
    """
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        lock = Path(folder, _LOCK)
        unlocked = lock.with_suffix(".new")
        with unlocked.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            unlocked.rename(lock)
            yield Path(folder)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # One that is in use, was not made here, or is removed by another process just now.
        with suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                _require_unlocked(folder / _LOCK)
                shutil.rmtree(folder)


def _require_unlocked(lock: Path) -> None:
    """Raises OSError."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
