"""Work done in a fork of a test's process, by the thread that asks."""

import multiprocessing
from collections.abc import Callable


def in_a_fork(work: Callable[[], int | None]) -> int | None:
    """What it answers there."""
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.Queue[int | None] = context.Queue()
    process = context.Process(target=lambda: answer.put(work()))
    process.start()
    told = answer.get(timeout=30)
    process.join()
    return told
