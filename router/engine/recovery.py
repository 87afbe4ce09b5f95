"""What becomes of everybody when the shards fail, or a turn does by a bug, and how all begins anew.

    a shard failed:  what ran has failed, what waits stays --+
    a turn failed:   all has failed, the books are empty ----+--> broken --> the shards begin anew
                                                                 ^    |
                             none of them answers: what waits fails, and they are asked later

It decides no step and knows no step's answer.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from router.engine.admission import Admission
from router.engine.open_streams import OpenStreams
from router.engine.progress import Progress
from router.engine.row_errors import internal
from router.engine.stream_groups import StreamGroups
from router.request.errors import Displaced, GenerationFailed, RouterError, ShardFailed
from router.scheduler.scheduler import Scheduler
from router.shards.shards import Shards

_logger = logging.getLogger(__name__)


class Recovery:
    """Owner of whether the shards are broken, which `progress` tells. Called by the batcher alone.

    `mended` is called when they have begun anew. They are asked every `retry_s` seconds, and no
    more once `stopping` is set.
    """

    def __init__(
        self,
        shards: Shards,
        scheduler: Scheduler,
        streams: OpenStreams,
        groups: StreamGroups,
        admission: Admission,
        progress: Progress,
        mended: Callable[[], None],
        *,
        stopping: asyncio.Event,
        retry_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._scheduler = scheduler
        self._streams = streams
        self._groups = groups
        self._admission = admission
        self._progress = progress
        self._mended = mended
        self._stopping = stopping
        self._retry_s = retry_s
        self._clock = clock

    def lose_shards(self, error: ShardFailed) -> None:
        """The shards' state is unknown: what ran in them has failed, what waits stays."""
        _logger.error("%s", error)
        self._progress.breaks(self._clock())
        self._streams.fail_some(self._scheduler.fail(), error)
        self._streams.tell()

    def start_over(self, error: Exception) -> None:
        """After a bug: ends everything, and goes on if the books are sound when empty.

        Raises AssertionError when they are not.
        """
        self._progress.breaks(self._clock())
        self._scheduler.fail()
        self._end_all(internal(error))
        self._scheduler.check_invariants()

    async def attempt(self) -> None:
        """Begins anew with the shards; if they do not answer, nobody waits for them.

        Raises Displaced.
        """
        try:
            await self._shards.reset()
        except Displaced as error:
            self._streams.fail_all(error)
            raise
        except ShardFailed as error:
            if self._streams:
                _logger.error("%s", error)
            await self._retry_later(error)
        except Exception as error:
            _logger.exception("the shards could not be asked to begin anew, by a bug")
            await self._retry_later(internal(error))
        else:
            self._progress.mends()
            self._mended()
            _logger.warning("the shards answer again")

    async def _retry_later(self, error: GenerationFailed) -> None:
        # What ran has failed before; these wait.
        self._end_all(self._admission.unhealthy(f"the shards do not answer: {error}"))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self._retry_s)

    def _end_all(self, error: RouterError) -> None:
        """All streams fail, and whoever submits them one after the other hears of it at once."""
        self._streams.fail_all(error)
        self._groups.advance()
        self._streams.tell()
