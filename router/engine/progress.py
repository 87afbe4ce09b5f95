"""The batcher's progress: what it waits for, since when, and whether that is too long.

Pure: it knows no clock but the one passed in, and calls no shard. So a health probe costs nothing,
and never hangs with the shards.
"""

from enum import Enum


class Wait(Enum):
    """The calls that the batcher waits for."""

    STEP = "a step"
    CHECK = "an idle shard's sign of life"


class Progress:
    """Owned and written by the batcher; read by its health routes.

    A step may take `timeout_s` before it counts as stuck; a check, which is no work, `patience_s`.
    """

    def __init__(self, timeout_s: float, patience_s: float) -> None:
        self._limits_s = {Wait.STEP: timeout_s, Wait.CHECK: patience_s}
        self._wait: Wait | None = None
        self._since_s = 0.0
        self._broken_since_s: float | None = None

    @property
    def is_broken(self) -> bool:
        """True from a failure of the shards until they are reset."""
        return self._broken_since_s is not None

    def start_wait(self, wait: Wait, now_s: float) -> None:
        """A call was sent."""
        self._wait, self._since_s = wait, now_s

    def end_wait(self) -> None:
        """The call was answered, or failed."""
        self._wait = None

    def mark_broken(self, now_s: float) -> None:
        """The shards failed; no effect if they had before."""
        if self._broken_since_s is None:
            self._broken_since_s = now_s

    def mark_recovered(self) -> None:
        """The shards were reset."""
        self._broken_since_s = None

    def broken_s(self, now_s: float) -> float | None:
        """How long the shards have been broken."""
        return None if self._broken_since_s is None else now_s - self._broken_since_s

    def is_answering(self, now_s: float) -> bool:
        """False while the shards are broken or miss a health check; a long step does not count."""
        return not self.is_broken and not (self._wait is Wait.CHECK and self._is_overdue(now_s))

    def trouble(self, now_s: float) -> str | None:
        """Why there is no progress, and for how long; None: there is, or there is no work."""
        broken_s = self.broken_s(now_s)
        if broken_s is not None:
            return f"the shards failed {broken_s:.1f} s ago and have not begun anew"
        if self._wait is None or not self._is_overdue(now_s):
            return None
        limit_s, waited_s = self._limits_s[self._wait], now_s - self._since_s
        return f"{self._wait.value} has been under way for {waited_s:.1f} s; {limit_s:g} s is usual"

    def _is_overdue(self, now_s: float) -> bool:
        return self._wait is not None and now_s - self._since_s > self._limits_s[self._wait]
