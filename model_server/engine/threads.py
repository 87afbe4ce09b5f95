"""How many threads compute a step on a CPU, and which core each of them keeps."""

import ctypes
import logging
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
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


_log = logging.getLogger(__name__)

_WINDOW = 12
# How long a window lasts at least: the kernel is asked at its end, which takes up to a millisecond.
_WINDOW_S = 0.2
# Steps of a kind differ in their sequences by about this factor; a window shows what is usual for
# a kind by so many of its steps.
_KIND_RATIO = 1.25
_FEW = 3
# The first of a trial is left out: some of its kernels are made anew. Steps of kinds that the
# window did not see are left out too, but the trial does not wait for others without end.
_TRIAL = 5
_LONGEST_TRIAL = 15
# What a trial's steps may take of the usual, so that one stays with it.
_QUICKER = 0.93
# The part of a window that threads must have waited for cores before fewer are tried.
_WAITED = 0.1
# Windows between trials of the same kind: at first, and at most.
_PAUSE = 4
_LONGEST_PAUSE = 32

_MORE, _FEWER = -1, 1


def waited_for_cores_s(tasks: Path = Path("/proc/self/task")) -> float:
    """Seconds for which this process's threads together could have run and had no core.

    0.0 where the kernel does not report it. Ended threads do not count.
    """
    total_ns = 0
    for task in tasks.glob("*/schedstat"):
        try:
            total_ns += int(task.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended, or the kernel counts nothing
    return total_ns / 1e9


class ThreadCount:
    """Owner of the number of threads. Called from the thread that runs the steps.

    `counts`: which numbers may be used, the usual one first, falling. `use` puts one into effect.
    """

    def __init__(
        self,
        counts: Sequence[int],
        use: Callable[[int], None],
        waited_s: Callable[[], float] = waited_for_cores_s,
        least_window_s: float = _WINDOW_S,
    ) -> None:
        self._counts = tuple(counts)
        self._use = use
        self._waited_s = waited_s
        self._least_window_s = least_window_s
        self._index = 0
        self._tried: int | None = None
        self._pauses = {_MORE: _PAUSE, _FEWER: 0}
        self._next_pauses = {_MORE: _PAUSE, _FEWER: _PAUSE}
        # Of the window: durations by kind of step. None of it is kept for longer than a window.
        self._num_steps = 0
        self._durations_s: dict[int, list[float]] = {}
        self._window_s = 0.0
        self._waited_before_s: float | None = None
        # Of the trial: what its steps took of the usual.
        self._usual_s: dict[int, float] = {}
        self._shares: list[float] = []

    @property
    def count(self) -> int:
        """The number in effect."""
        return self._counts[self._index if self._tried is None else self._tried]

    def stepped(self, num_rows: int, duration_s: float) -> None:
        """Record the time of a decode step."""
        kind = round(math.log(max(num_rows, 1), _KIND_RATIO))
        self._num_steps += 1
        if self._tried is None:
            self._observe(kind, duration_s)
        else:
            self._try(self._tried, kind, duration_s)

    def _observe(self, kind: int, duration_s: float) -> None:
        if self._waited_before_s is None:
            self._waited_before_s = self._waited_s()
        self._durations_s.setdefault(kind, []).append(duration_s)
        self._window_s += duration_s
        if self._num_steps >= _WINDOW and self._window_s >= self._least_window_s:
            self._consider(self._waited_before_s)

    def _consider(self, waited_before_s: float) -> None:
        """At the end of a window: try another number, or go on."""
        waited_s = self._waited_s()
        had_to_wait = waited_s - waited_before_s > _WAITED * self._window_s
        self._usual_s = {
            kind: statistics.median(durations_s)
            for kind, durations_s in self._durations_s.items()
            if len(durations_s) >= _FEW
        }
        for way in self._pauses:
            self._pauses[way] = max(0, self._pauses[way] - 1)
        for way, is_wanted in ((_FEWER, had_to_wait), (_MORE, True)):
            index = self._index + way
            if not is_wanted or not self._usual_s or self._pauses[way]:
                continue
            if 0 <= index < len(self._counts):
                self._begin_trial(index)
                return
        self._settle(self._index, waited_s)

    def _begin_trial(self, index: int) -> None:
        self._tried = index
        self._num_steps = 0
        self._shares = []
        self._use(self._counts[index])

    def _try(self, tried: int, kind: int, duration_s: float) -> None:
        if self._num_steps > 1 and kind in self._usual_s:
            self._shares.append(duration_s / self._usual_s[kind])
        if len(self._shares) == _TRIAL - 1 or self._num_steps == _LONGEST_TRIAL:
            self._judge(tried)

    def _judge(self, tried: int) -> None:
        way = tried - self._index
        if len(self._shares) >= _FEW and statistics.median(self._shares) < _QUICKER:
            self._pauses = {_MORE: _PAUSE, _FEWER: _PAUSE}
            self._next_pauses = {_MORE: _PAUSE, _FEWER: _PAUSE}
            _log.debug("threads that compute a step: %d", self._counts[tried])
            self._settle(tried)
        else:
            self._pauses[way] = self._next_pauses[way]
            self._next_pauses[way] = min(2 * self._next_pauses[way], _LONGEST_PAUSE)
            self._settle(self._index)

    def _settle(self, index: int, waited_s: float | None = None) -> None:
        """Go on, or back, to a number, with a window that begins.

        waited_s: what the kernel said just now; None: it is asked with the window's first step
        """
        if self.count != self._counts[index]:
            self._use(self._counts[index])
        self._index, self._tried = index, None
        self._num_steps = 0
        self._durations_s = {}
        self._window_s = 0.0
        self._waited_before_s = waited_s
