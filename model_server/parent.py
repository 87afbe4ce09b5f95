"""The end of the process that this one works for: nobody is left as an orphan."""

import asyncio
import os
import threading
import time

_POLL_S = 0.5


async def until_orphaned(parent_pid: int) -> None:
    """Returns once that process is this one's parent no more."""
    while os.getppid() == parent_pid:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(_POLL_S)


def end_when_orphaned(parent_pid: int | None) -> None:
    """Ends this process, at once and from a thread, when that one is its parent no more.

    For work that cannot be interrupted and leaves nothing half done.
    """
    if parent_pid is not None:
        threading.Thread(target=_end, args=(parent_pid,), daemon=True).start()


def _end(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os._exit(1)
