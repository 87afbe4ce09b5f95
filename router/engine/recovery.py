"""Failures of shards, rows and of the batcher: what is computed anew, and which requests fail.

    a shard failed:  what ran waits again, in its place ------+
    a turn failed:   all has failed, the scheduler is empty --+--> broken --> the shards are reset
                                                                  ^    |
                                  no answer: they are reset later +----+

A request that was in a step each time when the shards failed is computed alone (router/scheduler),
and fails if they do so again. All fail when the shards do not come back for long. It decides no
step and knows no step's answer.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from proto.contract import Generation
from router.engine.admission import Admission, Progress
from router.engine.stream import Stream
from router.engine.stream_groups import StreamGroups
from router.engine.streams import OpenStreams
from router.request.errors import (
    ConstraintRefused,
    Displaced,
    FailedAlone,
    GenerationFailed,
    RouterError,
    RowFailed,
    ShardFailed,
    ShardUnfit,
)
from router.scheduler.scheduler import Scheduler
from router.shards.shards import Shards
from router.telemetry.step_observer import StepObserver

_logger = logging.getLogger(__name__)
# Log lines of single requests keep the name that operators filter by.
_batcher_logger = logging.getLogger("router.engine.batcher")


class Recovery:
    """Decides whether the shards are broken, and records it in `progress`. Called by the batcher.

    `recovered` is called when they were reset, `ask_restart` when only new processes can help. They
    are tried every `retry_s` seconds, and no more once `stopping` is set; after `restart_s` seconds
    in vain all requests fail.
    """

    def __init__(
        self,
        shards: Shards,
        scheduler: Scheduler,
        streams: OpenStreams,
        groups: StreamGroups,
        admission: Admission,
        progress: Progress,
        observer: StepObserver,
        *,
        recovered: Callable[[], None],
        ask_restart: Callable[[], None],
        stopping: asyncio.Event,
        retry_s: float,
        restart_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._scheduler = scheduler
        self._streams = streams
        self._groups = groups
        self._admission = admission
        self._progress = progress
        self._observer = observer
        self._recovered = recovered
        self._ask_restart = ask_restart
        self._stopping = stopping
        self._retry_s = retry_s
        self._restart_s = restart_s
        self._clock = clock

    def lose_shards(self, error: ShardFailed) -> None:
        """The shards' state is unknown: what ran waits again, and what waits stays."""
        _logger.error("%s; %d requests wait for the shards", error, len(self._streams))
        self._progress.mark_broken(self._clock())
        self._observer.shards_failed()
        failed_ids = self._scheduler.fail()
        if failed_ids:
            alone = f"the shards failed each time with this request, at last with it alone: {error}"
            self._streams.fail_some(failed_ids, FailedAlone(alone))
            self._streams.wake_readers()

    def start_over(self, error: Exception) -> None:
        """After a bug: ends everything, and goes on if the scheduler is consistent when empty.

        Raises AssertionError when they are not.
        """
        self._progress.mark_broken(self._clock())
        self._scheduler.fail()
        self._end_all(bug_error(error))
        self._scheduler.check_invariants()

    async def attempt(self) -> None:
        """Resets the shards, or waits until it is time for the next attempt.

        Raises Displaced.
        """
        try:
            await self._shards.reset()
        except Displaced as error:
            self._streams.fail_all(error)
            raise
        except ShardFailed as error:
            if isinstance(error, ShardUnfit):
                _logger.error("%s", error)
                self._ask_restart()
            await self._retry_later(error)
        except Exception as error:
            _logger.exception("the shards could not be reset, by a bug")
            await self._retry_later(bug_error(error))
        else:
            broken_s = self._broken_s()
            self._progress.mark_recovered()
            self._observer.recovered(broken_s)
            self._recovered()
            _logger.warning("the shards answer again, after %.1f s", broken_s)

    async def _retry_later(self, error: GenerationFailed) -> None:
        if self._broken_s() > self._restart_s and self._streams:
            _logger.error("%s", error)
            self._end_all(self._admission.unhealthy(f"the shards do not answer: {error}"))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self._retry_s)

    def _broken_s(self) -> float:
        return self._progress.broken_s(self._clock()) or 0.0

    def _end_all(self, error: RouterError) -> None:
        """Fails all streams, and advances the groups at once."""
        self._streams.fail_all(error)
        self._groups.advance()
        self._streams.wake_readers()


def failed_row(stream: Stream, generation: Generation, reason: str) -> RouterError:
    """The error of a row that failed alone, logged with the request's ids in both tiers.

    Earlier output that cannot be continued is the client's mistake, and not logged.
    """
    if generation.is_refused:
        return ConstraintRefused(reason, "broken")
    ids = {"request_id": stream.request.trace_id, "shard_request_id": stream.request_id}
    _batcher_logger.error(
        "request_id=%s failed alone: %s (shard_request_id=%d)",
        stream.request.trace_id,
        reason,
        stream.request_id,
        extra=ids,
    )
    return RowFailed(reason)


def failed_by_bug(stream: Stream, error: Exception) -> GenerationFailed:
    """The error of a request that failed by a bug, logged with its traceback."""
    _batcher_logger.error("request_id=%s failed by a bug", stream.request.trace_id, exc_info=error)
    return bug_error(error)


def bug_error(error: Exception) -> GenerationFailed:
    """The error that clients see for a bug."""
    return GenerationFailed(f"a bug of the server ended it: {type(error).__name__}: {error}")
