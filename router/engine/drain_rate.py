"""How fast slots come free when the server has much to do: what a refused client's time rests on.

Pure arithmetic: it knows no clock but the one passed in, and nothing of who holds the slots.

Only time in which at least half of the slots are taken counts, and only what ends in it: a server
with little to do ends few sequences because few come, which says nothing of what it could do. So
what one rush has taught is still known when the next one begins. Ends are good ends: those that
failed or were cancelled say nothing either. Both sums fade with that time,

    ends' = ends * exp(-t / memory_s) + new ends      seconds' likewise, with the seconds watched

and their quotient is the rate. They begin with a guess on the high side, every slot once in two
seconds: who comes back too early asks once more, who comes back too late leaves a slot empty.
"""

from math import exp

MEMORY_S = 20.0
# What the guess says of a sequence, and how many seconds it weighs.
_GUESSED_DURATION_S, _GUESS_S = 2.0, 1.0
# A server that hangs is not infinitely slow, only slower than anybody waits.
_SLOWEST_PER_S = 1e-6


class DrainRate:
    """Sequences ended per second. Its owner tells it of every change."""

    def __init__(self, num_slots: int, memory_s: float = MEMORY_S) -> None:
        self._num_slots = num_slots
        self._memory_s = memory_s
        self._num_ended = num_slots * _GUESS_S / _GUESSED_DURATION_S
        self._watched_s = _GUESS_S
        self._seen_s: float | None = None
        self._is_busy = False

    def observe(self, now_s: float, num_taken: int, num_ended: int = 0) -> None:
        """Until now nothing changed; now `num_ended` sequences ended, which leaves `num_taken`."""
        self._num_ended, self._watched_s = self._aged(now_s)
        if self._is_busy:
            self._num_ended += num_ended
        self._is_busy = 2 * num_taken >= self._num_slots
        self._seen_s = now_s

    def per_second(self, now_s: float) -> float:
        """The rate, above 0."""
        num_ended, watched_s = self._aged(now_s)
        return max(num_ended / watched_s, _SLOWEST_PER_S)

    def _aged(self, now_s: float) -> tuple[float, float]:
        """Both sums as of now."""
        if not self._is_busy or self._seen_s is None:
            return self._num_ended, self._watched_s
        kept = exp(-max(0.0, now_s - self._seen_s) / self._memory_s)
        return self._num_ended * kept, self._watched_s * kept + self._memory_s * (1.0 - kept)
