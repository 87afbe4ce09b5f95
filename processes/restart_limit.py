"""How often what ends by itself is started anew, and how soon."""

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 600.0
# Who lives for so long did not end because of how it was started.
_STABLE_S = 2.0
_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 30.0


class RestartLimit:
    """At most `max_restarts` within `WINDOW_S`: at once, but later where the last was in vain."""

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._restarted_s: deque[float] = deque()
        self._ready_s: float | None = None
        self._num_in_vain = 0

    def note_ready(self) -> None:
        """What was started is ready now."""
        self._ready_s = self._clock()

    def next_delay_s(self) -> float | None:
        """Seconds until the next start, which counts as made; None: there were too many."""
        now_s = self._clock()
        while self._restarted_s and now_s - self._restarted_s[0] > WINDOW_S:
            self._restarted_s.popleft()
        if len(self._restarted_s) >= self.max_restarts:
            return None
        is_stable = self._ready_s is not None and now_s - self._ready_s >= _STABLE_S
        self._num_in_vain = 0 if is_stable else self._num_in_vain + 1
        self._ready_s = None
        self._restarted_s.append(now_s)
        # The first one is soon, whatever it was.
        num_doubled = self._num_in_vain - 2
        return 0.0 if num_doubled < 0 else min(_FIRST_DELAY_S * 2.0**num_doubled, _MAX_DELAY_S)
