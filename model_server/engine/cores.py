"""Core affinity: a core of its own for each of the two threads that compute a step.

They wait for each other some hundred times a step. A core that has anything to run does not look
for what waits elsewhere, and be it idle work, such as the compiling of constraints: two threads may
share a core for twenty milliseconds while the other core runs what could wait.

    both compute  ->  bound, one to a core
    one computes  ->  free to move: other work gets the cores

It knows no model.
"""

import ctypes
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from native.library import NativeUnavailable, load_native

# Of larger teams OpenMP ends threads and starts others, which begin on the one core of the first.
_NUM_THREADS = 2
_SOURCE = Path(__file__).with_name("cores.cpp")
_log = logging.getLogger(__name__)


def own_cores(num_threads: int, rank: int, world_size: int) -> tuple[int, ...] | None:
    """The cores of a rank's threads, one for each.

    None where a rank has other than two; where those of all ranks are not as many as the process's
    cores, so that these may be meant for others as well; and where the system does not report them.
    """
    if not sys.platform.startswith("linux"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if num_threads != _NUM_THREADS or num_threads * world_size != len(cores):
        return None
    return tuple(cores[rank * num_threads : (rank + 1) * num_threads])


def roam() -> None:
    """Let the calling thread run on every core of the process.

    For threads that a bound one starts: they begin where it is bound.
    """
    if sys.platform.startswith("linux"):
        os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))


class Cores:
    """Owner of the affinity of steps' threads. Called from the thread that runs the steps."""

    def __init__(self, library: ctypes.CDLL, cores: Sequence[int]) -> None:
        self._place = library.tandem_place_threads
        self._place.argtypes = (*3 * (ctypes.c_int,), ctypes.POINTER(ctypes.c_int))
        self._cores = tuple(cores)
        self._all = sorted(os.sched_getaffinity(os.getpid()))

    def use(self, num_threads: int) -> None:
        """Set the number of threads, at most one for each core."""
        torch.set_num_threads(num_threads)
        most = len(self._cores)
        is_bound = num_threads == most
        cores = self._cores if is_bound else self._all
        # All threads that there are, also those that compute nothing now.
        num_failed = self._place(most, is_bound, len(cores), (ctypes.c_int * len(cores))(*cores))
        if num_failed:
            # A sandbox may forbid it, or take cores away: it is a matter of speed alone.
            _log.debug("%d threads could not be placed on cores %s", num_failed, cores)


def bound(cores: Sequence[int] | None) -> Cores | None:
    """Bind a thread to each of the cores. None where that is impossible, or not wanted."""
    if cores is None:
        return None
    try:
        placed = Cores(load_native(_SOURCE), cores)
    except NativeUnavailable as error:
        _log.info("the threads of steps may move from core to core: %s", error)
        return None
    placed.use(len(cores))
    return placed
