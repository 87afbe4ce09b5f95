"""The watch over shards that say nothing: a stopped process answers no step, and fails none.

It decides nothing; the batcher hears of a failure.
"""

import asyncio
from collections.abc import Callable

from router.engine.admission import Progress, Wait
from router.request.errors import ShardFailed
from router.shards.shards import Shards


class HealthWatch:
    """Asks the shards for a sign of life when nothing was heard of them for `interval_s`.

    They give it while they compute, too, so a long step does not count. `failed` is called with the
    reason when they do not.
    """

    def __init__(
        self,
        shards: Shards,
        progress: Progress,
        failed: Callable[[ShardFailed], None],
        *,
        interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._progress = progress
        self._failed = failed
        self._interval_s = interval_s
        self._clock = clock
        self._heard_s = clock()

    def heard(self, now_s: float) -> None:
        """They have answered something."""
        self._heard_s = now_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            left_s = self._heard_s + self._interval_s - self._clock()
            if left_s > 0.0 or self._progress.is_broken:
                await asyncio.sleep(left_s if left_s > 0.0 else self._interval_s)
                continue
            await self._ask()
            self._heard_s = self._clock()

    async def _ask(self) -> None:
        self._progress.start_wait(Wait.CHECK, self._clock())
        try:
            await self._shards.check_health()
        except ShardFailed as error:
            # A failure that is known already is being mended.
            if not self._progress.is_broken:
                self._failed(error)
        finally:
            self._progress.end_wait(Wait.CHECK)
