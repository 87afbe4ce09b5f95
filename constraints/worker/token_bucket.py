"""A token bucket of seconds that work may run at normal priority."""


class TokenBucket:
    """`rate`: seconds earned per second; `most`: seconds that can be saved up.

    Times are passed in.
    """

    def __init__(self, rate: float, most: float) -> None:
        self._rate = rate
        self._most = most
        self._saved_s = most
        self._seen_s: float | None = None

    def left_s(self, now_s: float) -> float:
        """The seconds saved; negative: a debt."""
        return self._fill(now_s)

    def spend(self, now_s: float, spent_s: float) -> None:
        """Subtract the time used; may become a debt."""
        self._saved_s = self._fill(now_s) - spent_s

    def _fill(self, now_s: float) -> float:
        if self._seen_s is not None:
            earned_s = self._rate * (now_s - self._seen_s)
            self._saved_s = min(self._most, self._saved_s + earned_s)
        self._seen_s = now_s
        return self._saved_s
