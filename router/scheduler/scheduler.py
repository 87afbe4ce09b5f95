"""Schedules the next step of all requests, and applies the answers of the steps before.

Pure: no async, no clock but the one passed in, no I/O, no text. Only the batcher calls it.

The scheduler may run ahead: prepare step n + 1 while step n is not answered. It needs no token
for that, since the shard knows what it sampled last; a token in flight is a count
(`Sequence.num_pending`). What follows from it:

  a sequence ends at step n while step n + 1 is in flight    its late token is cut in `apply`
  a sample may bring several tokens, or none, under a        the next step has room for some of
  constraint or with drafts                                them; the shard computes what there is
  a sequence leaves the batch while steps with it are in     its blocks stay taken until the last of
  flight                                                   them is answered, for it may write them
  a token limit is reached by a pending token              the sequence is scheduled no further
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from proto.contract import Batch, Generation, PlainRow, StepResult
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest, Work
from router.scheduler.allocator import Allocator
from router.scheduler.fair_shares import FairShares, KeyUse
from router.scheduler.planner import Planner
from router.scheduler.queues import (
    AnsweredChunk,
    RunningBatch,
    StepInFlight,
    WaitingQueue,
    has_ended,
)
from router.scheduler.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What a step may carry.

    `max_step_tokens` of prompts and decodes together, for at most `max_batch_size` requests;
    `max_steps_in_flight` steps may be unanswered. Each is at least 1; else ValueError. The shards
    may compute `max_drafts` draft tokens of a sequence in a step. `images_see_ahead`: the tokens of
    an image attend to each other, so that one must fit a step beside `max_batch_size` tokens.
    """

    max_step_tokens: int
    max_batch_size: int
    # While one is computed the next one is with the shards already.
    max_steps_in_flight: int = 2
    max_drafts: int = 0
    images_see_ahead: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name in ("max_drafts", "images_see_ahead") else 1
            if value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler in numbers.

    `num_blocks_used` are kept by requests, `num_blocks_cached` by the prefix cache alone; the
    rest is free. `num_constrained` of the running requests have a constraint. Cumulative:
    `num_preemptions`, and of first admissions `num_prompt_tokens` and `num_cached_tokens`, those
    of them that were found in the prefix cache. Of a model with states requests hold
    `num_states_used` of its slots, and the prefix cache `num_states_kept`.
    """

    num_waiting: int
    num_running: int
    num_blocks_total: int
    num_blocks_used: int
    num_blocks_cached: int
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_constrained: int
    num_states_total: int = 0
    num_states_used: int = 0
    num_states_kept: int = 0


class Scheduler:
    """The only mutator of sequences, of the queue, of the running batch and of the allocator.

    add -> waiting -> running -> retiring -> gone
              ^          |
              +----------+  preempted; its blocks retire
    """

    def __init__(
        self, limits: SchedulerLimits, allocator: Allocator, *, checks_steps: bool = False
    ) -> None:
        """`checks_steps`: checks the invariants with the answer to each step."""
        self._limits = limits
        self._checks_steps = checks_steps
        self._allocator = allocator
        self._shares = FairShares()
        self._waiting = WaitingQueue(self._shares)
        self._running = RunningBatch(allocator)
        self._planner = Planner(
            limits.max_step_tokens,
            limits.max_batch_size,
            limits.max_drafts,
            allocator,
            self._waiting,
            self._running,
            self._shares,
            images_see_ahead=limits.images_see_ahead,
        )
        self._live: dict[int, Sequence] = {}
        self._deadlines_s: dict[int, float] = {}
        self._in_flight: deque[StepInFlight] = deque()
        self._num_added = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._answered_s = 0.0
        self._key_uses: dict[str, KeyUse] = {}

    @property
    def has_work(self) -> bool:
        """True while anything waits, runs, is to be dropped or is unanswered."""
        return bool(self._live or self._running.has_drops or self._in_flight)

    def add(
        self, request_id: int, request: GenerateRequest, now_s: float, *, is_ready: bool = True
    ) -> Callable[[], Work]:
        """A new request, which waits from now on (admission is by arrival: no clock is read).

        Answers what says how much was done for it until now. One that is not ready enters no step
        before `release`.
        Raises InvalidRequest, with the numbers, if it could never run, and ValueError for the id
        of a request that is not gone yet.
        """
        if not self.has_left(request_id):
            raise ValueError(f"request {request_id} is not gone yet; its id cannot be used again")
        takes_drafts = self._limits.max_drafts > 0
        sequence = Sequence(request_id, request, self._num_added, takes_drafts)
        self._refuse_unfit(sequence)
        self._num_added += 1
        self._live[request_id] = sequence
        self._shares.arrive(request.key, now_s)
        if is_ready:
            self._waiting.add(sequence)
        else:
            self._waiting.hold(sequence)
        if request.deadline_s is not None:
            self._deadlines_s[request_id] = request.deadline_s
        return sequence.work

    def release(self, request_id: int) -> None:
        """A request that was not ready is; nothing happens for an id that is unknown."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._waiting.release(sequence)

    def place(self, request_id: int) -> int | None:
        """Where a request waits, 1 for the next one; None if it does not wait."""
        sequence = self._live.get(request_id)
        if sequence is None or sequence.state is not SequenceState.WAITING:
            return None
        return self._waiting.place(sequence)

    def finish(self, request_id: int) -> None:
        """The router ends a request: none of its tokens counts from now on.

        If a shard holds it, the next step drops it. Nothing happens for an id that is unknown or
        has ended.
        """
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._end(sequence, SequenceState.CANCELLED)

    def pause(self, request_id: int, is_paused: bool) -> None:
        """From the next step on a request that decodes samples no token, or samples again.

        It keeps its place and its blocks, unless they are taken for another. Nothing happens for an
        id that is unknown or has ended.
        """
        sequence = self._live.get(request_id)
        if sequence is not None:
            sequence.is_paused = is_paused

    def schedule(self, now_s: float) -> Batch | None:
        """The next step; None if there is nothing to do or enough steps are in flight.

        Every batch, one that only drops requests too, is in flight until `apply` gets its
        answer. A request in `running_ids` may turn out to have ended in a step that was not
        answered yet: the shard passes over it.
        """
        if len(self._in_flight) >= self._limits.max_steps_in_flight:
            return None
        plan = self._planner.plan(now_s)
        self._num_preemptions += plan.num_preemptions
        self._num_prompt_tokens += plan.num_prompt_tokens
        self._num_cached_tokens += plan.num_cached_tokens
        if not plan.chunks and (self._in_flight or not self._running.has_drops):
            return None
        self._num_steps += 1
        dropped_ids = self._running.take_drops()
        num_tokens = self._limits.max_step_tokens - plan.num_tokens_left
        self._in_flight.append(StepInFlight(self._num_steps, plan.chunks, dropped_ids, now_s))
        return Batch(
            step_id=self._num_steps,
            new=tuple(plan.new),
            updates=tuple(plan.updates),
            running_ids=plan.running_ids,
            dropped_ids=dropped_ids,
            num_tokens=num_tokens,
            num_decode_tokens=plan.num_decode_tokens,
        )

    def apply(self, result: StepResult, now_s: float) -> tuple[list[PlainRow], list[Generation]]:
        """Applies the answer of the oldest step in flight; the rows and the generations that count.

        A generation with a finish reason or an error ends its sequence. Those of sequences that had
        ended are cut, and so are prompt log-probabilities reported before a preemption.
        Raises ShardFailed, and changes nothing, for an answer that contradicts what was
        scheduled (the caller then calls `fail`), and ValueError when no step is in flight.
        """
        if not self._in_flight:
            raise ValueError(f"step {result.step_id} is not in flight; no step is")
        step = self._in_flight[0]
        plain, answered = step.read(result)
        self._in_flight.popleft()
        # Of two steps in flight, the second begins when the first is done.
        step_s = now_s - max(self._answered_s, step.begun_s)
        self._answered_s = now_s
        num_computed = [each.num_computed for each in answered]
        token_s = step_s / max(1, len(plain) + sum(num_computed))
        block_size = self._allocator.block_size
        for request_id, token_id, _ in plain:
            sequence = step.chunks[request_id].sequence
            sequence.take_token(token_id, step_s, token_s)
            if sequence.computed_len % block_size == 0:
                self._commit(sequence, sequence.computed_len)
        counted: list[Generation] = []
        for each, num_tokens in zip(answered, num_computed, strict=True):
            sequence = each.chunk.sequence
            sequence.num_steps_in_flight -= 1
            if sequence.is_live:
                sequence.take_part(num_tokens, step_s, token_s)
                if num_tokens != each.chunk.num_tokens:
                    self._shares.refund(sequence, each.chunk.num_tokens - num_tokens)
                kept = self._apply_chunk(each)
                if kept is not None:
                    counted.append(kept)
            if sequence.num_steps_in_flight == 0 or not each.remains:
                is_gone = has_ended(each.generation) and not each.remains
                self._running.answered(sequence, has_ended=is_gone)
        self._running.let_go_of_states()
        if self._checks_steps:
            self.check_invariants()
        return plain, counted

    def fail(self) -> tuple[int, ...]:
        """The shards lost their state: the cache is void, no step is in flight, nothing runs.

        What ran waits again, each in its place, to be computed from the tokens that are known. One
        with which alone the shards failed again ends; the ids of those.
        """
        self._in_flight.clear()
        self._running.clear()
        for sequence in self._live.values():
            if sequence.state is not SequenceState.WAITING:
                sequence.preempt()
                self._waiting.add(sequence)
        failed = [sequence for sequence in self._live.values() if sequence.has_failed_alone]
        for sequence in failed:
            self._end(sequence, SequenceState.FAILED)
        return tuple(sequence.request_id for sequence in failed)

    def expired(self, now_s: float) -> tuple[int, ...]:
        """Requests past their deadline that have not ended; the caller finishes them."""
        return tuple(
            request_id
            for request_id, deadline_s in self._deadlines_s.items()
            if deadline_s <= now_s
        )

    def has_left(self, request_id: int) -> bool:
        """True once an ended request has no blocks, and no shard must still drop it."""
        if request_id in self._live or not self._running.has_left(request_id):
            return False
        return all(request_id not in step.dropped_ids for step in self._in_flight)

    def key_uses(self) -> Mapping[str, KeyUse]:
        """What the ended requests of each key took, by its name."""
        return self._key_uses

    def stats(self) -> SchedulerStats:
        """The scheduler in numbers, now."""
        states = self._allocator.states
        return SchedulerStats(
            num_waiting=len(self._waiting),
            num_running=len(self._live) - len(self._waiting),
            num_blocks_total=self._allocator.num_blocks,
            num_blocks_used=self._allocator.num_used,
            num_blocks_cached=self._allocator.num_cached,
            num_preemptions=self._num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_constrained=self._running.num_constrained,
            num_states_total=0 if states is None else states.num_states,
            num_states_used=0 if states is None else states.num_used,
            num_states_kept=0 if states is None else states.num_kept,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself. Takes time by the block."""
        self._waiting.check_invariants()
        self._running.check_invariants()
        assert len(self._running) <= self._limits.max_batch_size
        assert len(self._running) <= self._limits.max_step_tokens, "more run than can take part"
        waiting_ids = {sequence.request_id for sequence in self._waiting}
        for request_id, sequence in self._live.items():
            assert sequence.is_live, f"request {request_id} ended and is still live"
            is_waiting = sequence.state is SequenceState.WAITING
            assert is_waiting == (request_id in waiting_ids), f"request {request_id} is misplaced"
            num_rows = sum(request_id in step.chunks for step in self._in_flight)
            assert sequence.num_steps_in_flight == num_rows, (
                f"request {request_id}: steps miscounted"
            )
            assert sequence.num_pending <= sequence.num_steps_in_flight
            if not is_waiting:
                assert sequence.computed_len <= sequence.scheduled_len
            if not sequence.is_multi_token:
                assert len(sequence.output_ids) + sequence.num_pending <= sequence.max_new_tokens
                assert is_waiting or sequence.num_unscheduled >= 0, (
                    f"request {request_id}: computes the unknown"
                )
        assert waiting_ids <= self._live.keys(), "an ended request waits"
        if not self.has_work:
            assert self._allocator.num_used == 0, "blocks are kept for nobody"
            assert self.stats().num_states_used == 0, "slots for states are held for nobody"

    def _refuse_unfit(self, sequence: Sequence) -> None:
        if sequence.prompt_len < 1:
            raise InvalidRequest("the prompt is empty; it must have at least 1 token")
        if sequence.max_new_tokens < 1:
            raise InvalidRequest(
                f"max_new_tokens is {sequence.max_new_tokens}; it must be at least 1"
            )
        num_made = len(sequence.output_ids)
        if num_made >= sequence.max_new_tokens:
            raise InvalidRequest(
                f"{num_made} tokens of output were made before and max_new_tokens is"
                f" {sequence.max_new_tokens}: nothing is left to be made"
            )
        num_blocks = self._allocator.num_blocks_of(sequence.max_computed_len)
        if num_blocks > self._allocator.num_blocks:
            raise InvalidRequest(
                f"{sequence.prompt_len} prompt tokens and {sequence.max_new_tokens} new ones need"
                f" {num_blocks} KV blocks; the pool has {self._allocator.num_blocks}"
            )

    def _apply_chunk(self, answered: AnsweredChunk) -> Generation | None:
        chunk, start_len, stop_len, _, generation, remains = answered
        sequence = chunk.sequence
        if chunk.samples:
            sequence.num_pending -= 1
        if generation is None:
            sequence.settle(chunk, stop_len)
            self._commit(sequence, stop_len)
            return None
        if generation.error is not None:
            sequence.has_doubtful_kv = not generation.is_refused
            # The fault may have been found on our side of the wire: then the shard goes on.
            self._end(sequence, SequenceState.FAILED, is_held=remains)
            return generation
        sequence.append([token.token_id for token in generation.tokens])
        sequence.num_forced += generation.num_forced
        stop_len += generation.num_accepted - generation.is_late
        sequence.settle(chunk, stop_len)
        self._commit(sequence, stop_len)
        if sequence.request.logprobs.prompt:
            generation = sequence.drop_reported_logprobs(generation, start_len)
        if generation.finish_reason is not None:
            self._end(sequence, SequenceState.FINISHED)
            return generation
        return generation if generation.tokens or generation.prompt_logprobs else None

    def _commit(self, sequence: Sequence, computed_len: int) -> None:
        allocation = sequence.allocation
        assert allocation is not None, f"request {sequence.request_id} has no blocks"
        if computed_len - allocation.committed_len >= self._allocator.block_size:
            key_ids = sequence.key_ids(allocation.committed_len, computed_len)
            self._allocator.commit(allocation, key_ids)

    def _end(self, sequence: Sequence, state: SequenceState, *, is_held: bool = False) -> None:
        """Ends a request that ends by itself or by the router, not by `fail`.

        `is_held`: the shards still hold it, although its answer ended it.
        """
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        elif is_held or state is SequenceState.CANCELLED:
            self._running.drop(sequence)
        else:
            self._running.leave(sequence)
        self._remove(sequence, state)

    def _remove(self, sequence: Sequence, state: SequenceState) -> None:
        sequence.move(state)
        del self._live[sequence.request_id]
        key = sequence.request.key
        self._shares.leave(key)
        if key.name:
            self._key_uses[key.name] = self._key_uses.get(key.name, KeyUse()).plus(sequence)
        self._deadlines_s.pop(sequence.request_id, None)
