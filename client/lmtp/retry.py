"""How often a request is sent again after an error, and the pauses before that."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from client.errors import ConnectionLost, Overloaded, ServerFailed, TandemError, Unreachable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The bounds of retries; times in seconds.

    `max_tries`: in a row, without a token in between, after a lost connection or a failure that
    may be temporary; 1: no retries. The pauses double from `first_pause_s` to `max_pause_s`: with
    these values a server may be away for about 25 seconds.
    `max_wait_s`: the time to wait for an overloaded server, in all; 0: Overloaded is raised.
    """

    max_tries: int = 12
    first_pause_s: float = 0.1
    max_pause_s: float = 5.0
    max_wait_s: float = 30.0


class Retries:
    """The retries of one request. `on_lost` is called before a pause without a server.

    `sleep` waits, `draw` makes pauses random (0 to 1).
    """

    def __init__(
        self,
        policy: RetryPolicy,
        on_lost: Callable[[TandemError], None] = lambda _: None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._on_lost = on_lost
        self._sleep = sleep
        self._draw = draw
        self._num_failures = 0
        self._waited_s = 0.0

    def reset(self) -> None:
        """The request made progress: its number of tries counts from the start."""
        self._num_failures = 0

    async def wait(self, error: TandemError) -> None:
        """Waits until the request may be sent again; raises `error` if it may not."""
        if isinstance(error, Overloaded):
            await self._wait_for_room(error)
        elif not _is_temporary(error):
            raise error
        else:
            self._num_failures += 1
            if self._num_failures >= self._policy.max_tries:
                raise error
            if not isinstance(error, ServerFailed):
                self._on_lost(error)
            await self._sleep(self._pause_s(self._num_failures))

    async def _wait_for_room(self, error: Overloaded) -> None:
        self._num_failures += 1
        pause_s = error.retry_after_s or self._pause_s(self._num_failures)
        if self._waited_s + pause_s > self._policy.max_wait_s:
            raise error
        self._waited_s += pause_s
        await self._sleep(pause_s)

    def _pause_s(self, num_failures: int) -> float:
        # Random, so that clients which lost the same server do not all return at once.
        longest_s = self._policy.first_pause_s * 2.0 ** min(num_failures - 1, 30)
        return min(longest_s, self._policy.max_pause_s) * (0.5 + self._draw() / 2)


def _is_temporary(error: TandemError) -> bool:
    if isinstance(error, ServerFailed):
        return error.is_retryable
    return isinstance(error, ConnectionLost | Unreachable)
