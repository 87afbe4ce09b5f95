"""The slow-sender rule: how long a client may take to say what it wants.

* Its head, request line and headers, must be whole `head_timeout_s` after the connection was made;
  of a further request, after its first byte.
* Of its body `MIN_BODY_LEN` bytes, or the rest, must come in every `body_timeout_s`.

Time in which we do not read, since an answer is under way, does not count.
"""

import asyncio
from collections.abc import Callable
from enum import Enum

MIN_BODY_LEN = 16_384


class Expected(Enum):
    """What a connection has to bring next; the value is the word for its coming too slowly."""

    HEAD = "slow_head"
    BODY = "slow_body"


class Inflow:
    """What one connection still has to bring. Tells `too_slow`, once, what did not come."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeouts_s: dict[Expected, float],
        is_due: Callable[[Expected], bool],
        too_slow: Callable[[Expected], None],
    ) -> None:
        self._loop = loop
        self._timeouts_s = timeouts_s
        self._is_due = is_due
        self._too_slow = too_slow
        self._timer: asyncio.TimerHandle | None = None
        self._timed: Expected | None = None
        self._body_len = 0
        self.expected: Expected | None = None

    def expect(self, expected: Expected | None) -> None:
        """The next part begins, or nothing more is due. It is timed from the next `settle`."""
        self.expected = expected
        self._timed = None
        self._body_len = 0

    def take_body(self, body_len: int) -> None:
        """So much of the body came."""
        self._body_len += body_len

    def settle(self) -> None:
        """All that is here was looked at: time what is not."""
        if self.expected is None:
            self.close()
        elif self._timed is not self.expected:
            self._start()

    def close(self) -> None:
        """Nothing more is timed."""
        self._timed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        expected = self.expected
        assert expected is not None
        self.close()
        self._timed = expected
        self._body_len = 0
        self._timer = self._loop.call_later(self._timeouts_s[expected], self._check, expected)

    def _check(self, expected: Expected) -> None:
        if self._body_len >= MIN_BODY_LEN or not self._is_due(expected):
            self._start()
        else:
            self.close()
            self._too_slow(expected)
