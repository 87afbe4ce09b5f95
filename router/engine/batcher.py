"""The task that steps: schedule, compute, apply, publish. It alone calls the scheduler.

    submit -> scheduler -> Batch -> shards -> StepResult -> scheduler -> Stream -> reader
                  ^                                             |
                  +---- a stop string was found, the reader left, a deadline passed

It knows no HTTP and no protobuf. It guarantees: every submitted stream gets exactly one terminal
event, whatever happens; a reader that leaves costs at most the step under way; a shard that fails
costs a pause: once the shards have begun anew, what ran is computed from the tokens that are known.

It runs ahead: the shards have the next step before they have answered the one that they compute.

    shards:   | step 1 .............| step 2 .............| step 3 .............|
    batcher:  send 1, 2              apply 1, send 3, wake  apply 2, send 4, wake

The order within a turn matters. A step's texts are searched before the next step is scheduled, so
that a stop string costs one token, that of the step under way; but readers are woken after the next
step was sent, so that they write while the shards compute.

The steps that the shards have and have not answered yet, oldest first.

It decides no step and applies no answer.

The watch over shards that say nothing: a stopped process answers no step, and fails none.

It decides nothing; the batcher hears of a failure.

Failures of shards, rows and of the batcher: what is computed anew, and which requests fail.

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
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from proto.contract import Batch, FinishReason, Generation, StepResult
from router.engine.admission import Admission, KeyLimits, Progress, Slots, Wait
from router.engine.constraints import Preparing
from router.engine.observer import StepObserver
from router.engine.stream import Backpressure, CancelLatency, OpenStreams, Stream
from router.engine.stream_groups import StreamGroups, Texts
from router.request.errors import (
    Cancelled,
    ConstraintRefused,
    Displaced,
    FailedAlone,
    GenerationFailed,
    InvalidRequest,
    RouterError,
    RowFailed,
    ServerStopped,
    ShardFailed,
    ShardUnfit,
)
from router.request.request import ApiKey, Constraint, Finished, GenerateRequest
from router.scheduler.scheduler import Scheduler
from router.shards.shards import Shards
from router.text.output_text import OutputText
from router.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step under way."""

    batch: Batch
    answer: "asyncio.Task[StepResult]"
    sent_s: float


@dataclass(frozen=True, slots=True)
class AnsweredStep:
    """A step's result. The shards had nothing before it to compute since `begun_s`."""

    batch: Batch
    result: StepResult
    begun_s: float
    answered_s: float


class StepsInFlight:
    """Sends steps and takes their answers in the same order. False while there are none."""

    def __init__(
        self,
        shards: Shards,
        progress: Progress,
        observer: StepObserver,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._progress = progress
        self._observer = observer
        self._clock = clock
        self._sent: deque[SentStep] = deque()
        self._failure: ShardFailed | None = None
        self._answered_s = 0.0

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, batch: Batch, now_s: float) -> None:
        """Sends a step behind the others. Raises ShardFailed."""
        self._observer.began(batch)
        self._sent.append(SentStep(batch, self._shards.step(batch), now_s))

    async def receive(self) -> AnsweredStep:
        """The answer to the oldest. Raises ShardFailed; then `forget` the others."""
        self.check()
        step = self._sent[0]
        begun_s = max(step.sent_s, self._answered_s)
        self._progress.start_wait(Wait.STEP, begun_s)
        try:
            result = await step.answer
        except ShardFailed:
            self._note_failed()
            raise
        except asyncio.CancelledError:
            # By `abort`, or with the batcher itself.
            self.check()
            raise
        finally:
            self._progress.end_wait(Wait.STEP)
        self._sent.popleft()
        self._answered_s = self._clock()
        return AnsweredStep(step.batch, result, begun_s, self._answered_s)

    def abort(self, failure: ShardFailed) -> None:
        """The shards will answer nothing any more: whoever waits for them gets the failure."""
        self._failure = failure
        self._note_failed()
        for step in self._sent:
            step.answer.cancel()

    def check(self) -> None:
        """Raises the failure, if they were aborted."""
        if self._failure is not None:
            raise self._failure

    def forget(self) -> None:
        """The shards' state is void, and so is what they answer to the steps that they have."""
        self._failure = None
        for step in self._sent:
            # Its failure, if it has failed already, says no more than that of the first one.
            step.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            step.answer.cancel()
        self._sent.clear()

    def _note_failed(self) -> None:
        for failed in self._sent:
            self._observer.failed(failed.batch)


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


_READ_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    """`max_concurrent_requests` wait and run together; the rest is in seconds.

    Shards of which nothing was heard for `health_s` are asked for a sign of life, and do not count
    as ready when they have not answered after `patience_s`; failed shards are tried again every
    `retry_s`, and requests fail once they have been failed for `restart_s`; a step that takes
    longer than `progress_s` counts as stuck, which /health/progress reports; `tick_s` is how late a
    deadline may be noticed while a step takes long.
    """

    max_concurrent_requests: int = 128
    health_s: float = 1.0
    patience_s: float = 2.0
    retry_s: float = 0.25
    restart_s: float = 300.0
    progress_s: float = 4.0
    tick_s: float = 0.25


class Batcher:
    """The only mutator of the scheduler and of streams. `run` is its task; the rest is quick.

    `groups` are for searches, which submit one stream after the other. `ask_restart` asks whoever
    owns the shards' processes for new ones.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        shards: Shards,
        tokenizer: Tokenizer,
        observer: StepObserver,
        limits: BatcherLimits,
        clock: Callable[[], float] = monotonic,
        ask_restart: Callable[[], None] = lambda: None,
        keys: KeyLimits | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._shards = shards
        self._tokenizer = tokenizer
        self._observer = observer
        self._limits = limits
        self._clock = clock
        self._admission = Admission(limits.max_concurrent_requests, limits.restart_s, keys)
        self._progress = Progress(limits.progress_s, limits.patience_s)
        self._streams = OpenStreams(self._retire)
        self._slots = Slots(self._admission, self._progress, observer, self.taken_slots, clock)
        self.groups = StreamGroups(self._accept_all, self._slots)
        self._backpressure = Backpressure(scheduler.pause)
        self._preparing = Preparing(self._prepare, self._release, self._fail_unprepared)
        self._cancel_latency = CancelLatency(scheduler.has_left, observer.freed)
        self._num_submitted = 0
        self._num_checked = 0
        self._steps = StepsInFlight(shards, self._progress, observer, clock)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._recovery = Recovery(
            *(shards, scheduler, self._streams, self.groups, self._admission, self._progress),
            observer,
            recovered=self._after_reset,
            ask_restart=ask_restart,
            stopping=self._stopping,
            retry_s=limits.retry_s,
            restart_s=limits.restart_s,
            clock=clock,
        )
        self._watch = HealthWatch(
            *(shards, self._progress, self._lose_contact), interval_s=limits.health_s, clock=clock
        )

    @property
    def is_alive(self) -> bool:
        """False while the shards do not answer."""
        return self._progress.is_answering(self._clock())

    @property
    def trouble(self) -> str | None:
        """Why no step gets done although there is work, or the shards are broken; else None."""
        return self._progress.trouble(self._clock())

    @property
    def is_draining(self) -> bool:
        """True once nothing new is accepted."""
        return self._admission.is_closed

    @property
    def num_streams(self) -> int:
        """Accepted requests that have not ended."""
        return len(self._streams)

    def taken_slots(self) -> list[ApiKey]:
        """The keys of the slots that are taken by streams and groups."""
        return [stream.request.key for stream in self._streams] + self.groups.idle_slots

    def submit(self, request: GenerateRequest) -> Stream:
        """Accepts a request; its events come in the stream. Raises as `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[GenerateRequest]) -> list[Stream]:
        """Accepts the sequences of one client's request together, or none of them.

        Raises Refused (Draining, Unhealthy, Overloaded), and InvalidRequest for a request that
        could never run.
        """
        self._slots.take(len(requests), requests[0].key)
        return self._accept_all(requests)

    def _accept_all(self, requests: Sequence[GenerateRequest], texts: Texts = None) -> list[Stream]:
        now_s = self._clock()
        streams: list[Stream] = []
        try:
            for request, text in zip(requests, texts or [None] * len(requests), strict=True):
                streams.append(self._accept(request, text, now_s))
        except InvalidRequest:
            for stream in streams:
                self.cancel(stream)
            raise
        self._wake.set()
        return streams

    def _accept(self, request: GenerateRequest, text: OutputText | None, now_s: float) -> Stream:
        request_id = self._num_submitted + 1
        constraint = request.constraint
        is_ready = constraint is None or self._preparing.is_ready(constraint)
        work = self._scheduler.add(request_id, request, now_s, is_ready=is_ready)
        self._num_submitted = request_id
        stream = Stream(request_id, request, self._tokenizer, now_s, text, work)
        self._streams.add(stream)
        if constraint is not None and not is_ready:
            self._preparing.start(request_id, constraint)
        return stream

    async def _prepare(self, constraint: Constraint) -> None:
        """Raises what `Shards.prepare` does."""
        begun_s = self._clock()
        prepared = await self._shards.prepare(constraint)
        self._observer.prepared(prepared, self._clock() - begun_s)

    def _release(self, request_id: int) -> None:
        self._scheduler.release(request_id)
        self._wake.set()

    def _fail_unprepared(self, request_id: int, error: Exception) -> None:
        if isinstance(error, ConstraintRefused):
            self._observer.refused(error)
        stream = self._streams[request_id]
        if not isinstance(error, RouterError):
            error = failed_by_bug(stream, error)
        self._streams.fail(stream, error)
        self._streams.wake_readers()

    def cancel(self, stream: Stream) -> None:
        """The reader has left; the next step is without its request. Nothing if it has ended."""
        if stream.end is None:
            now_s = self._clock()
            self._streams.fail(stream, Cancelled("the client left"))
            self._cancel_latency.start(stream.request_id, now_s, self._clock())
            self._wake.set()

    def place(self, stream: Stream) -> int | None:
        """Where a request that was never in a step waits, 1 for the next one; else None."""
        if stream.first_scheduled_s is not None:
            return None
        return self._scheduler.place(stream.request_id)

    async def drain(self, timeout_s: float) -> None:
        """Accepts nothing new, waits for what runs, fails what is left; then `run` returns."""
        self._admission.close()
        try:
            await asyncio.wait_for(self._until_empty(), timeout_s)
        except TimeoutError:
            self._streams.fail_all(ServerStopped(f"the server stopped; it waited {timeout_s:g} s"))
        self._streams.wake_readers()
        self._stopping.set()
        self._wake.set()

    async def _until_empty(self) -> None:
        await self.groups.until_empty()
        await self._streams.until_empty()

    async def run(self) -> None:
        """Steps until drained.

        Raises Displaced when another router has the shards, and AssertionError when the scheduler
        is inconsistent even when empty.
        """
        besides = [asyncio.ensure_future(self._tick()), asyncio.ensure_future(self._watch.run())]
        try:
            while not self._stopping.is_set():
                await self._turn()
                for task in besides:
                    if task.done():
                        task.result()
        finally:
            for task in besides:
                task.cancel()
            self._steps.forget()
            self._admission.close()
            stopped = ServerStopped("the server stopped")
            self._streams.fail_all(stopped)
            self.groups.stop(stopped)
            self._streams.wake_readers()

    async def _turn(self) -> None:
        try:
            begun_s = self._clock()
            self._expire(begun_s)
            self.groups.advance()
            if self._progress.is_broken:
                await self._recovery.attempt()
                return
            self._steps.check()
            self._backpressure.resume()
            self._send_steps()
            self._streams.wake_readers()
            if self._steps:
                await self._receive()
            else:
                await self._idle()
        except Displaced:
            raise
        except ShardFailed as error:
            self._steps.forget()
            self._recovery.lose_shards(error)
        except Exception as error:
            _logger.exception("a step failed by a bug; every request is ended")
            self._steps.forget()
            self._recovery.start_over(error)

    def _lose_contact(self, error: ShardFailed) -> None:
        """The shards give no sign of life; the turn that waits for them fails with the error."""
        self._steps.abort(error)
        self._wake.set()

    def _after_reset(self) -> None:
        """The shards may be new processes, and hold nothing."""
        self._watch.heard(self._clock())
        self._preparing.forget()
        self._cancel_latency.check(self._clock())

    def _send_steps(self) -> None:
        """Sends what there is to compute, as many steps ahead as the scheduler allows."""
        while True:
            begun_s = self._clock()
            batch = self._scheduler.schedule(begun_s)
            if batch is None:
                return
            sent_s = self._clock()
            self._observer.scheduled(batch, sent_s - begun_s)
            for stream in self._streams.admit(batch.new, begun_s):
                self._observer.admitted(stream, batch.step_id, sent_s - begun_s)
            self._steps.send(batch, sent_s)

    async def _receive(self) -> None:
        """Takes the answer to the oldest step in flight."""
        step = await self._steps.receive()
        answered_s = step.answered_s
        self._watch.heard(answered_s)
        self._append(self._scheduler.apply(step.result, answered_s), answered_s)
        self._cancel_latency.check(answered_s)
        applied_s = self._clock() - answered_s
        self._observer.finished(step.batch, step.result, answered_s - step.begun_s, applied_s)
        self._observer.scheduler_stats(self._scheduler.stats(), len(self._backpressure))

    def _append(self, generations: Iterable[Generation], now_s: float) -> None:
        """Appends a step's generations to their streams."""
        for generation in generations:
            # A request may have been cancelled or expired while its step was under way.
            stream = self._streams.get(generation.request_id)
            if stream is None:
                continue
            if generation.error is not None:
                self._streams.fail(stream, failed_row(stream, generation, generation.error))
                continue
            last_s = stream.last_token_s
            try:
                stream.add(generation, now_s)
            except Exception as error:  # noqa: BLE001 (it is logged)
                self._streams.fail(stream, failed_by_bug(stream, error))
                continue
            if generation.tokens:
                self._observer.generated(generation, last_s, now_s)
            self._streams.publish(stream)
            if stream.end is None:
                self._backpressure.check(stream)

    def _retire(self, stream: Stream) -> None:
        """Releases what an ended stream holds elsewhere."""
        self._scheduler.finish(stream.request_id)
        self._backpressure.remove(stream)
        self._admission.keys.spend(stream.request.key, self._clock(), tokens=stream.num_computed)
        self._preparing.remove(stream.request_id)
        if self.groups.remove(stream.request_id):
            self._wake.set()
            return
        self._slots.free(1, is_good=isinstance(stream.end, Finished))
        self._observer.ended(stream)

    def _expire(self, now_s: float) -> None:
        for request_id in self._scheduler.expired(now_s):
            stream = self._streams[request_id]
            try:
                stream.finish(FinishReason.DEADLINE, now_s)
            except Exception as error:  # noqa: BLE001 (it is logged)
                self._streams.fail(stream, failed_by_bug(stream, error))
                continue
            self._streams.publish(stream)

    async def _tick(self) -> None:
        """Ends requests past their deadlines while a step takes long."""
        while True:
            await asyncio.sleep(self._limits.tick_s)
            now_s = self._clock()
            self._expire(now_s)
            self.groups.advance()
            self._streams.wake_readers()
            self._observer.drain_rate(self._admission.drain_rate(now_s))
            self._observer.key_uses(self._scheduler.key_uses())

    async def _idle(self) -> None:
        """Waits for a request."""
        if self._streams and not self._backpressure and not self._preparing:
            raise RuntimeError(f"{len(self._streams)} requests, but nothing to schedule")
        self._observer.scheduler_stats(self._scheduler.stats(), len(self._backpressure))
        self._wake.clear()
        if self._backpressure:
            # Readers do not signal that they took events.
            await asyncio.sleep(_READ_POLL_S)
            return
        if self._stopping.is_set():
            return
        try:
            await asyncio.wait_for(self._wake.wait(), self._limits.health_s)
        except TimeoutError:
            self._check_scheduler()

    def _check_scheduler(self) -> None:
        """Once after each busy period: it takes a while with a large pool, so only when idle."""
        if self._num_checked < self._num_submitted:
            self._num_checked = self._num_submitted
            self._scheduler.check_invariants()
