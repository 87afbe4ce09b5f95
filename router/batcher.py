"""The one task that steps: schedule, compute, apply, tell; and the only caller of the scheduler.

    submit -> scheduler -> Batch -> shards -> StepResult -> scheduler -> Stream -> reader
                  ^                                             |
                  +---- a stop string was found, the reader left, a deadline passed

It knows no HTTP and no protobuf. What it promises: every submitted stream gets exactly one
terminal event, whatever happens; a reader that leaves costs at most the step under way; a shard
that fails costs those that ran, and the others go on once the shards have begun anew.

The order within a turn matters. A step's texts are looked at before the next step is scheduled, so
that a stop string costs no step; but readers are woken after the next step is on its way, so that
their writing is done while the shards compute.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from router.batch import Batch, Generation
from router.books.scheduler import Scheduler
from router.errors import (
    Cancelled,
    Displaced,
    Draining,
    GenerationFailed,
    Overloaded,
    RouterError,
    RowFailed,
    ServerStopped,
    ShardFailed,
)
from router.events import FinishReason
from router.request import GenerateRequest
from router.shards import Shards
from router.step_observer import StepObserver
from router.stream import Stream
from router.text.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    """`max_concurrent_requests` wait and run together; the rest is in seconds.

    An idle router asks its shards every `health_s` how they are; failed shards are tried again
    every `retry_s`; `tick_s` is how late a deadline may be noticed while a step takes long.
    """

    max_concurrent_requests: int = 128
    health_s: float = 10.0
    retry_s: float = 1.0
    tick_s: float = 0.25


class Batcher:
    """The only mutator of the scheduler and of streams. `run` is its task; the rest is quick."""

    def __init__(
        self,
        scheduler: Scheduler,
        shards: Shards,
        tokenizer: Tokenizer,
        observer: StepObserver,
        limits: BatcherLimits,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._shards = shards
        self._tokenizer = tokenizer
        self._observer = observer
        self._limits = limits
        self._clock = clock
        # Streams without an end, by request.
        self._streams: dict[int, Stream] = {}
        # Streams with events of which their readers do not know yet.
        self._untold: list[Stream] = []
        self._num_submitted = 0
        self._num_checked = 0
        self._wake = asyncio.Event()
        self._emptied = asyncio.Event()
        self._is_draining = False
        self._is_stopping = False
        self._is_broken = False
        self._is_stepping = False

    @property
    def is_alive(self) -> bool:
        """False while the shards do not answer."""
        return not self._is_broken

    @property
    def is_draining(self) -> bool:
        """True once nothing new is taken."""
        return self._is_draining

    @property
    def num_streams(self) -> int:
        """Accepted requests that have not ended."""
        return len(self._streams)

    def submit(self, request: GenerateRequest) -> Stream:
        """Takes a request; its events come in the stream.

        Raises Overloaded, Draining, and InvalidRequest for one that could never run.
        """
        if self._is_draining:
            self._observer.rejected("draining")
            raise Draining("the server is shutting down")
        if len(self._streams) >= self._limits.max_concurrent_requests:
            self._observer.rejected("overloaded")
            raise Overloaded(
                f"{len(self._streams)} requests are waiting or running; at most "
                f"{self._limits.max_concurrent_requests} may"
            )
        now_s = self._clock()
        request_id = self._num_submitted + 1
        self._scheduler.add(request_id, request, now_s)
        self._num_submitted = request_id
        stream = Stream(request_id, request, self._tokenizer, now_s)
        self._streams[request_id] = stream
        self._emptied.clear()
        self._wake.set()
        return stream

    def cancel(self, stream: Stream) -> None:
        """The reader has left; the next step is without its request. Nothing if it has ended."""
        if stream.end is None:
            self._fail(stream, Cancelled("the client left"))
            self._wake.set()

    async def drain(self, timeout_s: float) -> None:
        """Takes nothing new, waits for what runs, fails what is left; then `run` returns."""
        self._is_draining = True
        try:
            await asyncio.wait_for(self._until_empty(), timeout_s)
        except TimeoutError:
            self._fail_all(ServerStopped(f"the server stopped; it waited {timeout_s:g} s"))
        self._tell()
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Steps until drained.

        Raises Displaced when another router has the shards, and AssertionError when the books are
        beyond repair.
        """
        ticker = asyncio.ensure_future(self._tick())
        try:
            while not self._is_stopping:
                await self._turn()
                if ticker.done():
                    ticker.result()
        finally:
            ticker.cancel()
            self._is_draining = True
            self._fail_all(ServerStopped("the server stopped"))
            self._tell()

    async def _until_empty(self) -> None:
        if self._streams:
            await self._emptied.wait()

    async def _turn(self) -> None:
        try:
            if self._is_broken:
                await self._recover()
                return
            begun_s = self._clock()
            self._expire(begun_s)
            batch = self._scheduler.schedule(begun_s)
            if batch is None:
                await self._idle()
                return
            self._note_admitted(batch, begun_s)
            await self._step(batch)
        except Displaced:
            raise
        except ShardFailed as error:
            self._lose_shards(error)
        except Exception as error:
            _logger.exception("a step failed by a bug; every request is ended")
            self._start_over(error)

    async def _step(self, batch: Batch) -> None:
        self._observer.began(batch)
        self._is_stepping = True
        try:
            begun_s = self._clock()
            if batch.dropped_ids:
                self._tell()
                await self._shards.drop(batch)
                dropped_s = self._clock()
                self._observer.dropped(batch, dropped_s - begun_s)
                begun_s = dropped_s
            answer = self._shards.step(batch)
            self._tell()
            result = await answer
        except ShardFailed:
            self._observer.failed(batch)
            raise
        finally:
            self._is_stepping = False
        answered_s = self._clock()
        self._add(self._scheduler.apply(result, answered_s), answered_s)
        applied_s = self._clock() - answered_s
        self._observer.finished(batch, result, answered_s - begun_s, applied_s)
        self._observer.books(self._scheduler.stats())

    def _add(self, generations: Iterable[Generation], now_s: float) -> None:
        """Gives each stream what a step brought it."""
        num_tokens = 0
        for generation in generations:
            # A request may have been cancelled or expired while its step was under way.
            stream = self._streams.get(generation.request_id)
            if stream is None:
                continue
            if generation.error is not None:
                trace_id = stream.request.trace_id
                _logger.error("request_id=%s failed alone: %s", trace_id, generation.error)
                self._fail(stream, RowFailed(generation.error))
                continue
            if stream.last_token_s is not None and generation.tokens:
                self._observer.gap(now_s - stream.last_token_s)
            try:
                stream.add(generation, now_s)
            except Exception as error:
                _logger.exception("request_id=%s failed by a bug", stream.request.trace_id)
                self._fail(stream, _internal(error))
                continue
            num_tokens += len(generation.tokens)
            if stream.end is not None:
                self._retire(stream)
            self._untold.append(stream)
        self._observer.generated(num_tokens)

    def _tell(self) -> None:
        """Wakes the readers that have something to read."""
        for stream in self._untold:
            stream.wake()
        self._untold.clear()

    def _fail(self, stream: Stream, error: RouterError) -> None:
        stream.fail(error)
        self._retire(stream)
        self._untold.append(stream)

    def _fail_all(self, error: RouterError) -> None:
        for stream in list(self._streams.values()):
            self._fail(stream, error)

    def _retire(self, stream: Stream) -> None:
        """The one way out for a stream that has its end."""
        self._scheduler.finish(stream.request_id)
        del self._streams[stream.request_id]
        if not self._streams:
            self._emptied.set()
        self._observer.ended(stream)

    def _expire(self, now_s: float) -> None:
        for request_id in self._scheduler.expired(now_s):
            stream = self._streams[request_id]
            stream.finish(FinishReason.DEADLINE, now_s)
            self._retire(stream)
            self._untold.append(stream)

    async def _tick(self) -> None:
        """Deadlines pass while a step hangs, too."""
        while True:
            await asyncio.sleep(self._limits.tick_s)
            if self._is_stepping:
                self._expire(self._clock())
                self._tell()

    async def _idle(self) -> None:
        """Nothing to do: waits for a request, and asks the shards now and then how they are."""
        self._tell()
        if self._streams:
            raise RuntimeError(f"{len(self._streams)} requests, but nothing to schedule")
        self._observer.books(self._scheduler.stats())
        self._wake.clear()
        if self._is_stopping:
            return
        try:
            await asyncio.wait_for(self._wake.wait(), self._limits.health_s)
        except TimeoutError:
            self._check_books()
            await self._shards.check_health()

    def _check_books(self) -> None:
        """Once after each spell of work; a large pool takes a while, so nobody may be waiting."""
        if self._num_checked < self._num_submitted:
            self._num_checked = self._num_submitted
            self._scheduler.check_invariants()

    def _lose_shards(self, error: ShardFailed) -> None:
        """The shards' state is unknown: what ran in them has failed, what waits stays."""
        _logger.error("%s", error)
        self._is_broken = True
        for request_id in self._scheduler.fail():
            # A stream that was cancelled during the step is gone already.
            stream = self._streams.get(request_id)
            if stream is not None:
                self._fail(stream, error)
        self._tell()

    async def _recover(self) -> None:
        """Begins anew with the shards; if they do not answer, nobody waits for them.

        Raises Displaced.
        """
        try:
            await self._shards.reset()
        except Displaced as error:
            self._fail_all(error)
            raise
        except ShardFailed as error:
            if self._streams:
                _logger.error("%s", error)
            await self._retry_later(error)
        except Exception as error:
            _logger.exception("the shards could not be asked to begin anew, by a bug")
            await self._retry_later(_internal(error))
        else:
            self._is_broken = False
            _logger.warning("the shards answer again")

    async def _retry_later(self, error: GenerationFailed) -> None:
        self._fail_all(error)
        self._tell()
        self._wake.clear()
        if not self._is_stopping:
            await asyncio.sleep(self._limits.retry_s)

    def _start_over(self, error: Exception) -> None:
        """After a bug: ends everything, and goes on if the books are sound when empty."""
        self._is_broken = True
        self._scheduler.fail()
        self._fail_all(_internal(error))
        self._tell()
        self._scheduler.check_invariants()

    def _note_admitted(self, batch: Batch, now_s: float) -> None:
        for new in batch.new:
            stream = self._streams[new.request_id]
            if stream.first_scheduled_s is None:
                stream.first_scheduled_s = now_s
                stream.cached_len = new.cached_len
        self._observer.scheduled(batch, self._clock() - now_s)


def _internal(error: Exception) -> GenerationFailed:
    return GenerationFailed(f"a bug of the server ended it: {type(error).__name__}: {error}")
