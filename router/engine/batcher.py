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

    a shard failed:  what ran waits again, in its place ------+
    a turn failed:   all has failed, the scheduler is empty --+--> broken --> the shards are reset
                                                                  ^    |
                                  no answer: they are reset later +----+

A request that was in a step each time when the shards failed is computed alone (router/scheduler),
and fails if they do so again. All fail when the shards do not come back for long.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import TypeAlias

from proto.contract import Batch, FinishReason, Generation, PlainRow, StepResult
from router.engine.adapters import Adapters
from router.engine.admission import Admission, KeyLimits, unhealthy
from router.engine.constraints import Preparing
from router.engine.launcher import Launcher
from router.engine.looking import Looking
from router.engine.observer import StepObserver
from router.engine.stream import Stream, StreamGroup
from router.request.errors import (
    Cancelled,
    ConstraintRefused,
    Displaced,
    FailedAlone,
    GenerationFailed,
    Refused,
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

_logger = logging.getLogger(__name__)

# A stream with so many unread events is paused.
MANY_UNREAD = 64
_READ_POLL_S = 0.01
# Of a router that nobody started.
NO_LAUNCHER = Launcher(None)

# The output's text so far of each request, where it is known.
Texts: TypeAlias = Sequence[OutputText | None] | None


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
    retry_s: float = 0.1
    restart_s: float = 300.0
    progress_s: float = 4.0
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
        launcher: Launcher = NO_LAUNCHER,
        keys: KeyLimits | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._shards = shards
        self._adapters = adapters or Adapters(shards)
        self._tokenizer = tokenizer
        self._observer = observer
        self._limits = limits
        self._clock = clock
        self._launcher = launcher
        self.admission = Admission(limits.max_concurrent_requests, limits.restart_s, keys)
        self._progress = Progress(limits.progress_s, limits.patience_s, limits.restart_s)
        self._steps = StepsInFlight(shards, self._progress, observer, clock)
        self._backpressure = Backpressure(scheduler)
        self._cancel_latency = CancelLatency(scheduler, observer)
        self._preparing = Preparing(shards, observer, clock)
        self._looking = Looking(shards, observer)
        # By request id: those that have not ended, and those that wait for what shards prepare.
        self._streams: dict[int, Stream] = {}
        self._unprepared: dict[int, asyncio.Task[None]] = {}
        # Ended ones with an adapter, which a shard may still compute.
        self._lingering: list[Stream] = []
        self._groups: dict[StreamGroup, None] = {}
        # Streams with events whose readers have not been woken.
        self._to_wake: list[Stream] = []
        self._num_submitted = 0
        # As many had been submitted when the scheduler's invariants were checked last.
        self._num_checked = 0
        self._heard_s = clock()
        self._wake = asyncio.Event()
        self._emptied = asyncio.Event()
        self._stopping = asyncio.Event()
        self._has_ended = False

    @property
    def is_alive(self) -> bool:
        """False while the shards do not answer."""
        return self._progress.is_answering(self._clock())

    @property
    def trouble(self) -> str | None:
        """Why no step gets done although there is work, or the shards stay broken; else None."""
        return self._progress.trouble(self._clock())

    @property
    def is_draining(self) -> bool:
        """True once nothing new is accepted."""
        return self.admission.is_closed

    @property
    def num_streams(self) -> int:
        """Accepted requests that have not ended."""
        return len(self._streams)

    # Requests and their readers

    def submit(self, request: GenerateRequest) -> Stream:
        """Accepts a request; its events come in the stream. Raises as `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[GenerateRequest]) -> list[Stream]:
        """Accepts the sequences of one client's request together, or none of them.

        Raises Refused (Draining, Unhealthy, Overloaded), InvalidRequest for a request that
        could never run, and AdapterLost for one whose adapter is lost.
        """
        key = requests[0].key
        self._take_slots(len(requests), key)
        num_accepted = self._num_submitted
        try:
            return self._accept_all(requests, None, None)
        except Exception:
            num_missing = len(requests) - (self._num_submitted - num_accepted)
            self.admission.free(num_missing, self._clock(), key)
            raise

    def cancel(self, stream: Stream) -> None:
        """The reader has left; the next step is without its request. Nothing if it has ended."""
        if stream.end is None:
            now_s = self._clock()
            self._fail(stream, Cancelled("the client left"))
            self._cancel_latency.start(stream.request_id, now_s, self._clock())
            self._wake.set()

    def place(self, stream: Stream) -> int | None:
        """Where a request that was never in a step waits, 1 for the next one; else None."""
        if stream.first_scheduled_s is not None:
            return None
        return self._scheduler.place(stream.request_id)

    def open_group(self, group: StreamGroup) -> None:
        """The group has its slots from now on. Raises as `submit_all`."""
        self._adapters.check(group.adapter_id)
        self._take_slots(group.num_slots, group.key)
        self._groups[group] = None
        self._adapters.hold(group.adapter_id, group)

    def submit_in(
        self, group: StreamGroup, requests: Sequence[GenerateRequest], texts: Texts = None
    ) -> list[Stream]:
        """At most as many as the group has free slots. `texts`: as of a Stream, for each.

        Raises InvalidRequest for a request that could never run, ServerStopped after the end.
        """
        assert group in self._groups, "the group was closed"
        assert len(group.open_ids) + len(requests) <= group.num_slots, "more streams than slots"
        if self._has_ended:
            raise ServerStopped("the server stopped")
        group.is_settled = False
        return self._accept_all(requests, texts, group)

    def close_group(self, group: StreamGroup, *, is_good: bool) -> None:
        """Frees its slots, once its streams have ended. Does nothing the second time."""
        assert not group.open_ids, "streams are open in a group that closes"
        if group in self._groups:
            del self._groups[group]
            self._adapters.release(group.adapter_id, group)
            self.admission.free(group.num_slots, self._clock(), group.key, is_good=is_good)
            self._note_emptied()

    def check_admitted(self, key: ApiKey) -> None:
        """Raises as `submit_all` where one more sequence of the key would not get a slot now."""
        now_s = self._clock()
        try:
            self.admission.check(1, now_s, key, self._progress.broken_s(now_s))
        except Refused as error:
            self._observer.rejected(error, key)
            raise

    def _take_slots(self, num_slots: int, key: ApiKey) -> None:
        now_s = self._clock()
        try:
            self.admission.take(num_slots, now_s, key, self._progress.broken_s(now_s))
        except Refused as error:
            self._observer.rejected(error, key)
            raise

    def _accept_all(
        self, requests: Sequence[GenerateRequest], texts: Texts, group: StreamGroup | None
    ) -> list[Stream]:
        """Accepts all or none; they have slots. Raises InvalidRequest."""
        now_s = self._clock()
        streams: list[Stream] = []
        try:
            for request, text in zip(requests, texts or [None] * len(requests), strict=True):
                streams.append(self._accept(request, text, group, now_s))
        except Exception:
            for stream in streams:
                self.cancel(stream)
            raise
        self._wake.set()
        return streams

    def _accept(
        self,
        request: GenerateRequest,
        text: OutputText | None,
        group: StreamGroup | None,
        now_s: float,
    ) -> Stream:
        request_id = self._num_submitted + 1
        self._adapters.check(request.adapter_id)
        constraint = request.constraint
        if constraint is not None and self._preparing.is_ready(constraint):
            constraint = None
        is_ready = constraint is None and self._looking.is_done(request.images)
        work = self._scheduler.add(request_id, request, now_s, is_ready=is_ready)
        self._num_submitted = request_id
        stream = Stream(request_id, request, self._tokenizer, now_s, text, work, group)
        self._streams[request_id] = stream
        self._adapters.hold(request.adapter_id, request_id)
        if group is not None:
            group.open_ids.add(request_id)
        if not is_ready:
            waiting = asyncio.create_task(self._prepare(stream, constraint))
            self._unprepared[request_id] = waiting
        return stream

    async def _prepare(self, stream: Stream, constraint: Constraint | None) -> None:
        """Holds a request until the shards have its constraint, if it waits for one, and have seen
        its images; fails it where they cannot compile.
        """
        try:
            if constraint is not None:
                await self._preparing.compiled(constraint)
            await self._looking.done(stream.request.images, stream.request.prompt_ids)
        except Exception as error:  # noqa: BLE001 (whatever it is, the request fails with it)
            del self._unprepared[stream.request_id]
            if isinstance(error, ConstraintRefused):
                self._observer.refused(error)
            if not isinstance(error, RouterError):
                error = failed_by_bug(stream, error)
            self._fail(stream, error)
            self._wake_readers()
        else:
            del self._unprepared[stream.request_id]
            self._scheduler.release(stream.request_id)
            self._wake.set()

    def _publish(self, stream: Stream) -> None:
        """The stream has events; if its end is among them, it leaves. The one way out."""
        self._to_wake.append(stream)
        if stream.end is not None:
            self._retire(stream)
        elif stream.num_unread >= MANY_UNREAD:
            self._backpressure.check(stream)

    def _retire(self, stream: Stream) -> None:
        """An ended stream leaves, and releases what it holds elsewhere."""
        now_s = self._clock()
        request_id = stream.request_id
        key = stream.request.key
        del self._streams[request_id]
        self._scheduler.finish(request_id)
        self._backpressure.remove(stream)
        if stream.request.adapter_id is not None:
            self._lingering.append(stream)
            self._release_adapters()
        self.admission.keys.spend(key, now_s, tokens=stream.num_computed)
        preparing = self._unprepared.pop(request_id, None)
        if preparing is not None:
            preparing.cancel()
        group = stream.group
        if group is not None:
            group.open_ids.discard(request_id)
            group.is_settled = not group.open_ids
            self._wake.set()
            return
        self.admission.free(1, now_s, key, is_good=isinstance(stream.end, Finished))
        self._observer.ended(stream)
        self._note_emptied()

    def _release_adapters(self) -> None:
        """Of ended requests that no shard has, or computes in a step that was sent."""
        gone = [each for each in self._lingering if self._scheduler.has_left(each.request_id)]
        for stream in gone:
            self._lingering.remove(stream)
            self._adapters.release(stream.request.adapter_id, stream.request_id)

    def _note_emptied(self) -> None:
        if not self._streams and not self._groups:
            self._emptied.set()

    def _fail(self, stream: Stream, error: RouterError) -> None:
        stream.fail(error)
        self._publish(stream)

    def _fail_all(self, error: RouterError) -> None:
        for stream in list(self._streams.values()):
            self._fail(stream, error)

    def _wake_readers(self) -> None:
        for stream in self._to_wake:
            stream.wake()
        self._to_wake.clear()

    def _advance_groups(self) -> None:
        """Lets the groups go on whose streams have all ended."""
        for group in [group for group in self._groups if group.is_settled]:
            group.is_settled = False
            group.advance()

    # Steps

    async def drain(self, timeout_s: float) -> None:
        """Accepts nothing new, waits for what runs, fails what is left; then `run` returns."""
        self.admission.close()
        try:
            await asyncio.wait_for(self._until_empty(), timeout_s)
        except TimeoutError:
            waited = f"; it waited {timeout_s:g} s" if timeout_s else ""
            self._fail_all(ServerStopped(f"the server stopped{waited}"))
        self._wake_readers()
        self._stopping.set()
        self._wake.set()

    async def _until_empty(self) -> None:
        while self._streams or self._groups:
            self._emptied.clear()
            await self._emptied.wait()

    async def run(self) -> None:
        """Steps until drained.

        Raises Displaced when another router has the shards, and AssertionError when the scheduler
        is inconsistent even when empty.
        """
        besides = [
            asyncio.ensure_future(self._tick()),
            asyncio.ensure_future(self._watch_shards()),
        ]
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
            self.admission.close()
            self._has_ended = True
            self._fail_all(ServerStopped("the server stopped"))
            self._advance_groups()
            self._wake_readers()

    async def _turn(self) -> None:
        try:
            begun_s = self._clock()
            self._expire(begun_s)
            self._advance_groups()
            if self._progress.is_broken:
                await self._reset_shards()
                return
            self._steps.check()
            self._backpressure.resume()
            self._send_steps()
            self._wake_readers()
            if self._steps:
                await self._receive()
            else:
                await self._idle()
        except Displaced:
            raise
        except ShardFailed as error:
            self._lose_shards(error)
        except Exception as error:
            _logger.exception("a step failed by a bug; every request is ended")
            self._start_over(error)

    def _send_steps(self) -> None:
        """Sends what there is to compute, as many steps ahead as the scheduler allows."""
        while True:
            begun_s = self._clock()
            batch = self._scheduler.schedule(begun_s)
            if batch is None:
                return
            sent_s = self._clock()
            self._observer.scheduled(batch, sent_s - begun_s)
            for new in batch.new:
                stream = self._streams[new.request_id]
                # One that was preempted enters once more.
                if stream.first_scheduled_s is None:
                    stream.first_scheduled_s = begun_s
                    stream.cached_len = new.cached_len
                self._observer.admitted(stream, batch.step_id, sent_s - begun_s)
            self._steps.send(batch, sent_s)

    async def _receive(self) -> None:
        """Takes the answer to the oldest step in flight."""
        step = await self._steps.receive()
        answered_s = step.answered_s
        self._heard_s = answered_s
        plain, others = self._scheduler.apply(step.result, answered_s)
        self._append(plain, others, answered_s)
        self._cancel_latency.check(answered_s)
        self._release_adapters()
        applied_s = self._clock() - answered_s
        self._observer.finished(step.batch, step.result, answered_s - step.begun_s, applied_s)
        self._observer.scheduler_stats(self._scheduler.stats(), len(self._backpressure))

    def _append(
        self, plain: Iterable[PlainRow], others: Iterable[Generation], now_s: float
    ) -> None:
        """Appends what a step brought to the streams."""
        # A request may have been cancelled or expired while its step was under way.
        streams = self._streams
        num_tokens = 0
        # Nearly all had their last token at the same time.
        lasts_s: dict[float | None, int] = {}
        for request_id, token_id, logprob in plain:
            stream = streams.get(request_id)
            if stream is None:
                continue
            last_s = stream.last_token_s
            try:
                stream.add_token(token_id, logprob, now_s)
            except Exception as error:  # noqa: BLE001 (it is logged)
                self._fail(stream, failed_by_bug(stream, error))
                continue
            num_tokens += 1
            lasts_s[last_s] = lasts_s.get(last_s, 0) + 1
            self._publish(stream)
        for generation in others:
            stream = streams.get(generation.request_id)
            if stream is None:
                continue
            if generation.error is not None:
                self._fail(stream, failed_row(stream, generation, generation.error))
                continue
            last_s = stream.last_token_s
            try:
                stream.add(generation, now_s)
            except Exception as error:  # noqa: BLE001 (it is logged)
                self._fail(stream, failed_by_bug(stream, error))
                continue
            if generation.tokens:
                num_tokens += len(generation.tokens)
                lasts_s[last_s] = lasts_s.get(last_s, 0) + 1
                if len(generation.tokens) > 1 or generation.num_drafts:
                    self._observer.several(generation)
            self._publish(stream)
        waited_s = {now_s - last_s: num for last_s, num in lasts_s.items() if last_s is not None}
        self._observer.generated(num_tokens, waited_s)

    def _expire(self, now_s: float) -> None:
        for request_id in self._scheduler.expired(now_s):
            stream = self._streams[request_id]
            try:
                stream.finish(FinishReason.DEADLINE, now_s)
            except Exception as error:  # noqa: BLE001 (it is logged)
                self._fail(stream, failed_by_bug(stream, error))
                continue
            self._publish(stream)

    async def _tick(self) -> None:
        """Ends requests past their deadlines while a step takes long."""
        while True:
            await asyncio.sleep(self._limits.tick_s)
            now_s = self._clock()
            self._expire(now_s)
            self._advance_groups()
            self._wake_readers()
            self._observer.drain_rate(self.admission.drain_rate(now_s))
            self._observer.key_uses(self._scheduler.key_uses())
            if self._adapters.max_loras:
                self._observe_adapters()

    def _observe_adapters(self) -> None:
        """Whose requests are running, and whose wait for their first step."""
        running: set[str] = set()
        waiting: set[str] = set()
        for stream in self._streams.values():
            adapter_id = stream.request.adapter_id
            if adapter_id is not None:
                names = waiting if stream.first_scheduled_s is None else running
                names.add(self._adapters.name_of(adapter_id))
        self._observer.adapters(self._adapters.max_loras, running, waiting)

    async def _idle(self) -> None:
        """Waits for a request."""
        if self._streams and not self._backpressure and not self._unprepared:
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
            # Once after each busy period: it takes a while with a large pool, so only when idle.
            if self._num_checked < self._num_submitted:
                self._num_checked = self._num_submitted
                self._scheduler.check_invariants()

    # Shards that fail, and bugs

    async def _watch_shards(self) -> None:
        """Asks the shards for a sign of life when nothing was heard of them for `health_s`.

        They give it while they compute, too, so a long step does not count. Where they do not, the
        turn that waits for them fails.
        """
        while True:
            left_s = self._heard_s + self._limits.health_s - self._clock()
            if left_s > 0.0 or self._progress.is_broken:
                await asyncio.sleep(left_s if left_s > 0.0 else self._limits.health_s)
                continue
            self._progress.start_wait(Wait.CHECK, self._clock())
            try:
                await self._shards.check_health()
            except ShardFailed as error:
                # A failure that is known already is being mended.
                if not self._progress.is_broken:
                    self._steps.abort(error)
                    self._wake.set()
            finally:
                self._progress.end_wait(Wait.CHECK)
            self._heard_s = self._clock()

    def _lose_shards(self, error: ShardFailed) -> None:
        """The shards' state is unknown: what ran waits again, and what waits stays."""
        self._steps.forget()
        _logger.error("%s; %d requests wait for the shards", error, len(self._streams))
        self._progress.mark_broken(self._clock())
        self._observer.shards_failed()
        failed_ids = self._scheduler.fail()
        alone = f"the shards failed each time with this request, at last with it alone: {error}"
        for request_id in failed_ids:
            # Those that were cancelled during their step have left already.
            stream = self._streams.get(request_id)
            if stream is not None:
                self._fail(stream, FailedAlone(alone))
        if failed_ids:
            self._wake_readers()

    def _start_over(self, error: Exception) -> None:
        """After a bug: ends everything, and goes on if the scheduler is consistent when empty.

        Raises AssertionError when it is not.
        """
        self._steps.forget()
        self._progress.mark_broken(self._clock())
        self._scheduler.fail()
        self._end_all(bug_error(error))
        self._scheduler.check_invariants()

    async def _reset_shards(self) -> None:
        """Resets the shards, or waits until it is time for the next attempt.

        Raises Displaced.
        """
        try:
            lost = await self._adapters.restore(have_forgotten=await self._shards.reset())
        except Displaced as error:
            self._fail_all(error)
            raise
        except ShardFailed as error:
            if isinstance(error, ShardUnfit):
                _logger.error("%s", error)
                self._launcher.restart_shards()
            await self._retry_later(error)
        except Exception as error:
            _logger.exception("the shards could not be reset, by a bug")
            await self._retry_later(bug_error(error))
        else:
            now_s = self._clock()
            broken_s = self._progress.broken_s(now_s) or 0.0
            self._progress.mark_recovered()
            self._observer.recovered(broken_s)
            # They may be new processes, and hold nothing.
            self._heard_s = now_s
            self._preparing.forget()
            self._looking.forget()
            self._cancel_latency.check(now_s)
            self._release_adapters()
            for stream in list(self._streams.values()):
                adapter_id = stream.request.adapter_id
                if adapter_id is not None and adapter_id in lost:
                    self._fail(stream, lost[adapter_id])
            _logger.warning("the shards answer again, after %.1f s", broken_s)

    async def _retry_later(self, error: GenerationFailed) -> None:
        broken_s = self._progress.broken_s(self._clock()) or 0.0
        if broken_s > self._limits.restart_s and self._streams:
            _logger.error("%s", error)
            self._end_all(unhealthy(f"the shards do not answer: {error}"))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self._limits.retry_s)

    def _end_all(self, error: RouterError) -> None:
        """Fails all streams, and lets the groups go on at once."""
        self._fail_all(error)
        self._advance_groups()
        self._wake_readers()


def failed_row(stream: Stream, generation: Generation, reason: str) -> RouterError:
    """The error of a row that failed alone, logged with the request's ids in both tiers.

    Earlier output that cannot be continued is the client's mistake, as is a constraint that takes
    too long to follow; neither is logged.
    """
    if generation.is_refused:
        return ConstraintRefused(reason, "broken" if stream.request.output_ids else "too_complex")
    ids = {"request_id": stream.request.trace_id, "shard_request_id": stream.request_id}
    _logger.error(
        "request_id=%s failed alone: %s (shard_request_id=%d)",
        stream.request.trace_id,
        reason,
        stream.request_id,
        extra=ids,
    )
    return RowFailed(reason)


def failed_by_bug(stream: Stream, error: Exception) -> GenerationFailed:
    """The error of a request that failed by a bug, logged with its traceback."""
    _logger.error("request_id=%s failed by a bug", stream.request.trace_id, exc_info=error)
    return bug_error(error)


def bug_error(error: Exception) -> GenerationFailed:
    """The error that clients see for a bug."""
    return GenerationFailed(f"a bug of the server ended it: {type(error).__name__}: {error}")


class Wait(Enum):
    """The calls that the batcher waits for."""

    STEP = "a step"
    CHECK = "the shards' sign of life"


class Progress:
    """Owned and written by the batcher; read by its health routes.

    A step may take `timeout_s` before it counts as stuck; a check, which is no work, `patience_s`.
    Broken shards are on their way back for `restart_s`.
    """

    def __init__(self, timeout_s: float, patience_s: float, restart_s: float) -> None:
        self._limits_s = {Wait.STEP: timeout_s, Wait.CHECK: patience_s}
        self._restart_s = restart_s
        self._since_s: dict[Wait, float] = {}
        self._broken_since_s: float | None = None

    @property
    def is_broken(self) -> bool:
        """True from a failure of the shards until they are reset."""
        return self._broken_since_s is not None

    def start_wait(self, wait: Wait, now_s: float) -> None:
        """A call was sent."""
        self._since_s[wait] = now_s

    def end_wait(self, wait: Wait) -> None:
        """The call was answered, or failed."""
        self._since_s.pop(wait, None)

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
        return not self.is_broken and self._overdue_s(Wait.CHECK, now_s) is None

    def trouble(self, now_s: float) -> str | None:
        """Why there is no progress, and for how long; None: there is, or there is no work.

        Shards that come back in time are none: whoever starts the server anew for that, as
        Kubernetes would, loses the requests that wait for them.
        """
        broken_s = self.broken_s(now_s)
        if broken_s is not None and broken_s > self._restart_s:
            return f"the shards failed {broken_s:.1f} s ago and have not begun anew"
        for wait, limit_s in self._limits_s.items():
            waited_s = self._overdue_s(wait, now_s)
            if waited_s is not None:
                return (
                    f"{wait.value} has been under way for {waited_s:.1f} s; {limit_s:g} s is usual"
                )
        return None

    def _overdue_s(self, wait: Wait, now_s: float) -> float | None:
        """How long a call has been under way that takes longer than usual."""
        waited_s = now_s - self._since_s.get(wait, now_s)
        return waited_s if waited_s > self._limits_s[wait] else None


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


class Backpressure:
    """Pauses the sequences of streams whose readers do not keep up.

        reader takes  ->  events are few   ->  the sequence samples
        reader waits  ->  events are many  ->  it sits the steps out, in its place, with its blocks

    So a slow reader costs the others next to nothing, and an unread answer has a bounded length.
    The connection's own limit cuts one that does not read at all.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._paused: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._paused)

    def check(self, stream: Stream) -> None:
        """Pauses a stream, which has too many unread events."""
        if stream.request_id not in self._paused:
            self._paused[stream.request_id] = stream
            self._scheduler.pause(stream.request_id, True)
            # What comes next is not late.
            stream.last_token_s = None

    def resume(self) -> None:
        """Continues the streams whose readers took what was there."""
        read = [key for key, stream in self._paused.items() if stream.num_unread < MANY_UNREAD]
        for request_id in read:
            del self._paused[request_id]
            self._scheduler.pause(request_id, False)

    def remove(self, stream: Stream) -> None:
        """The stream has ended."""
        self._paused.pop(stream.request_id, None)


class CancelLatency:
    """Measures the time from a cancel until neither shards nor scheduler hold the request."""

    def __init__(self, scheduler: Scheduler, observer: StepObserver) -> None:
        self._scheduler = scheduler
        self._observer = observer
        self._since_s: dict[int, float] = {}

    def start(self, request_id: int, since_s: float, now_s: float) -> None:
        """A request was cancelled at `since_s`; one that never ran has left at once."""
        if self._scheduler.has_left(request_id):
            self._observer.freed(now_s - since_s)
        else:
            self._since_s[request_id] = since_s

    def check(self, now_s: float) -> None:
        """Observes the requests that have left: after a drop, an answer, or a reset."""
        for request_id in [each for each in self._since_s if self._scheduler.has_left(each)]:
            self._observer.freed(now_s - self._since_s.pop(request_id))
