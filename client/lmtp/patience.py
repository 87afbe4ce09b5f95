"""How often a request is sent again, and how long is waited in between."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from client.errors import ConnectionLost, Overloaded, ServerFailed, TandemError, Unreachable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of trying again; times in seconds.

    `max_tries`: in a row, without a token in between, after a lost connection or a failure that
    may pass; 1: never again. The pauses double from `first_pause_s` to `max_pause_s`: with these
    values a server may be away for some 25 seconds.
    `max_wait_s`: for a server that has no room, in all; 0: Overloaded is raised at once.
    """

    max_tries: int = 12
    first_pause_s: float = 0.1
    max_pause_s: float = 5.0
    max_wait_s: float = 30.0


class Patience:
    """What is left of a policy for one request. `sleep` waits, `draw` spreads pauses (0 to 1)."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._sleep = sleep
        self._draw = draw
        self._num_failures = 0
        self._waited_s = 0.0

    def renew(self) -> None:
        """There was progress: all tries are there again."""
        self._num_failures = 0

    async def bear(self, error: TandemError) -> None:
        """Waits until the request may be sent again; raises `error` if it may not."""
        if isinstance(error, Overloaded):
            await self._queue(error)
        elif not _may_pass(error):
            raise error
        else:
            self._num_failures += 1
            if self._num_failures >= self._policy.max_tries:
                raise error
            await self._sleep(self._pause_s(self._num_failures))

    async def _queue(self, error: Overloaded) -> None:
        self._num_failures += 1
        pause_s = error.retry_after_s or self._pause_s(self._num_failures)
        if self._waited_s + pause_s > self._policy.max_wait_s:
            raise error
        self._waited_s += pause_s
        await self._sleep(pause_s)

    def _pause_s(self, num_failures: int) -> float:
        # Clients that lost the same server do not come back all at once.
        longest_s = self._policy.first_pause_s * 2.0 ** min(num_failures - 1, 30)
        return min(longest_s, self._policy.max_pause_s) * (0.5 + self._draw() / 2)


def _may_pass(error: TandemError) -> bool:
    if isinstance(error, ServerFailed):
        return error.is_retryable
    return isinstance(error, ConnectionLost | Unreachable)
