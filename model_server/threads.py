"""How many threads compute a step: all, or fewer while others want the cores.

The threads of a step wait for each other some hundred times. If one of them shares its core with a
busy neighbour (the router, a client, another server), all of them wait for its turn, and fewer
threads are quicker. Whether that is so is tried on steps that are to be computed anyway, and only
while the kernel says that threads had to wait for a core:

    window of steps, as usual -> waited much?  a few steps with fewer threads -> quicker? stay
                              -> fewer now?    after a pause, a few with more -> quicker? stay

What was tried in vain is tried again after a pause twice as long. It knows no model and no clock.
"""

import logging
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

_WINDOW = 12
# The first of them is left out: some of its kernels are made anew.
_TRIAL = 5
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

    0.0 where the kernel does not tell. A thread that has ended counts no more.
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
    ) -> None:
        self._counts = tuple(counts)
        self._use = use
        self._waited_s = waited_s
        self._index = 0
        self._tried: int | None = None
        self._pauses = {_MORE: _PAUSE, _FEWER: 0}
        self._next_pauses = {_MORE: _PAUSE, _FEWER: _PAUSE}
        self._num_rows = 0
        self._durations_s: list[float] = []
        self._usual_s = 0.0
        self._waited_before_s = 0.0

    @property
    def count(self) -> int:
        """The number in effect."""
        return self._counts[self._index if self._tried is None else self._tried]

    def stepped(self, num_rows: int, duration_s: float) -> None:
        """A decode step of so many sequences took so long."""
        if 4 * abs(num_rows - self._num_rows) > self._num_rows:
            # Another kind of step: what was measured says nothing of it.
            self._num_rows = num_rows
            self._settle(self._index)
            return
        self._durations_s.append(duration_s)
        if self._tried is not None:
            if len(self._durations_s) == _TRIAL:
                self._judge(self._tried)
        elif len(self._durations_s) == _WINDOW:
            self._consider()

    def _consider(self) -> None:
        """At the end of a window: try another number, or go on."""
        self._usual_s = statistics.median(self._durations_s)
        waited_s = self._waited_s() - self._waited_before_s
        had_to_wait = waited_s > _WAITED * sum(self._durations_s)
        for way in self._pauses:
            self._pauses[way] = max(0, self._pauses[way] - 1)
        for way, is_wanted in ((_FEWER, had_to_wait), (_MORE, True)):
            index = self._index + way
            if is_wanted and 0 <= index < len(self._counts) and not self._pauses[way]:
                self._tried = index
                self._durations_s = []
                self._use(self._counts[index])
                return
        self._settle(self._index)

    def _judge(self, tried: int) -> None:
        way = tried - self._index
        if statistics.median(self._durations_s[1:]) < _QUICKER * self._usual_s:
            self._pauses = {_MORE: _PAUSE, _FEWER: _PAUSE}
            self._next_pauses = {_MORE: _PAUSE, _FEWER: _PAUSE}
            _log.debug("threads that compute a step: %d", self._counts[tried])
            self._settle(tried)
        else:
            self._pauses[way] = self._next_pauses[way]
            self._next_pauses[way] = min(2 * self._next_pauses[way], _LONGEST_PAUSE)
            self._settle(self._index)

    def _settle(self, index: int) -> None:
        """Go on, or back, to a number, with a window that begins."""
        if self.count != self._counts[index]:
            self._use(self._counts[index])
        self._index, self._tried = index, None
        self._durations_s = []
        self._waited_before_s = self._waited_s()
