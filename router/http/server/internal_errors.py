"""Whether the server fails by bugs again and again, so that it should get no more requests."""

import time
from collections.abc import Callable

_MANY = 5
_WITHIN_S = 60.0


class InternalErrors:
    """Requests that failed by a bug, with no other that succeeded since the first of them.

    Owned by the access layer, read by the health routes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_failed = 0
        self._last_s = 0.0

    @property
    def are_many(self) -> bool:
        """True from the fifth in a row on, until one succeeds or a minute passes without any."""
        return self._num_failed >= _MANY and self._clock() - self._last_s < _WITHIN_S

    def ended(self, method: str, error_type: str | None) -> None:
        """A request has ended. Those that only read, probes among them, prove nothing."""
        if error_type == "internal_error":
            now_s = self._clock()
            is_recent = now_s - self._last_s < _WITHIN_S
            self._num_failed = self._num_failed + 1 if is_recent else 1
            self._last_s = now_s
        elif error_type is None and method == "POST":
            self._num_failed = 0
