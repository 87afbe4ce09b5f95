"""One request in the scheduler: its state, its tokens, its blocks.

It knows no other request, no budget and no queue. Only `router/scheduler` changes a sequence.

                 admitted             prompt scheduled to its end
    WAITING ---------------> PREFILLING -----------> DECODING
       ^                         |                       |
       +-------------------------+-----------------------+   preempted

    WAITING, DECODING                -> FINISHED    the shard ended it well
    WAITING, PREFILLING, DECODING    -> FAILED      its row failed, or the shards did with it alone
    WAITING, PREFILLING, DECODING    -> CANCELLED   the router ended it

WAITING -> FINISHED and WAITING -> FAILED are for preempted sequences: the steps in flight when it
was preempted are still answered, and their tokens count. All that run are preempted when the shards
lose their state; a sequence whose steps were lost time and again may be why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from proto.contract import Generation, Image
from router.request.images import prompt_keys
from router.request.request import GenerateRequest, Work
from router.scheduler.allocator import BlockAllocation
from router.scheduler.states import SequenceStates


class SequenceState(Enum):
    """The states of a sequence; the module's diagram shows the moves."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


# A sequence that was in a step each time when the shards failed so often is computed alone and ends
# if they fail once more.
_MAX_LOST = 2

_ENDS = frozenset({SequenceState.FINISHED, SequenceState.CANCELLED, SequenceState.FAILED})

LEGAL_MOVES: Mapping[SequenceState, frozenset[SequenceState]] = MappingProxyType(
    {
        SequenceState.WAITING: _ENDS | {SequenceState.PREFILLING},
        SequenceState.PREFILLING: frozenset(
            {
                SequenceState.DECODING,
                SequenceState.WAITING,
                SequenceState.CANCELLED,
                SequenceState.FAILED,
            }
        ),
        SequenceState.DECODING: _ENDS | {SequenceState.WAITING},
        SequenceState.FINISHED: frozenset(),
        SequenceState.CANCELLED: frozenset(),
        SequenceState.FAILED: frozenset(),
    }
)


class IllegalMove(RuntimeError):
    """A move that the state diagram does not have: a bug of the caller."""


class ScheduledChunk(NamedTuple):
    """What one step computes of a sequence: its next tokens, perhaps a sample.

    Of a sequence whose sample may bring several tokens, `num_tokens` are the most that it computes,
    drafts among them, and it `samples` if there are no more than these.
    """

    sequence: "Sequence"
    num_tokens: int
    samples: bool


@dataclass(slots=True, eq=False)
class Sequence:
    """One request, from `Scheduler.add` to its end.

        tokens:  | prompt ids | output ids: known | pending: sampled by steps in flight |
        KV:      | cached | computed | computed once the steps in flight are | not scheduled |
                                                                 scheduled_len ^
    The last token, known or pending, has no KV yet when the sequence decodes: the next step
    computes it and samples its successor. Under a constraint a sample may bring several tokens,
    none of which has KV, or be late and bring none; with drafts it may bring several, all but the
    last with KV. How many is known with the answer. So a step that is made before has room for
    some, and `scheduled_len` is the most that may be computed.

    `order` is the order of arrival. It did not fit when it was tried, and is tried again once
    `min_available` blocks are available. `takes_drafts`: the shards may guess its next tokens.
    `has_doubtful_kv`: its row failed in a shard, and its KV may be why. `is_paused`: its reader is
    behind, so that it samples no tokens. `num_lost`: how often the shards failed with it in a step,
    since it last came as far as `lost_len` tokens.
    """

    request_id: int
    request: GenerateRequest
    order: int
    takes_drafts: bool = False
    state: SequenceState = SequenceState.WAITING
    num_pending: int = 0
    num_steps_in_flight: int = 0
    scheduled_len: int = 0
    computed_len: int = 0
    allocation: BlockAllocation | None = None
    cached_len: int = 0
    first_scheduled_s: float | None = None
    num_prompt_logprobs: int = 0
    min_available: int = 0
    has_doubtful_kv: bool = False
    is_paused: bool = False
    num_lost: int = 0
    lost_len: int = 0
    # Tokens computed, once more among them, and forced; seconds of steps, and of blocks.
    num_computed: int = 0
    num_forced: int = 0
    shard_s: float = 0.0
    block_s: float = 0.0
    # Those made before the request came are known from the start.
    output_ids: list[int] = field(init=False)
    prompt_len: int = field(init=False)
    max_new_tokens: int = field(init=False)
    # Tokens of output at which it ends, or pauses, at the latest.
    last_len: int = field(init=False)
    is_constrained: bool = field(init=False)
    # A sample may bring several tokens.
    is_multi_token: bool = field(init=False)
    images: tuple[Image, ...] = field(init=False)
    prompt_keys: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.output_ids = list(self.request.output_ids)
        self.prompt_len = len(self.request.prompt_ids)
        self.max_new_tokens = self.request.stop.max_new_tokens
        self.last_len = self.request.last_len
        self.is_constrained = self.request.constraint is not None
        self.is_multi_token = self.is_constrained or self.takes_drafts
        self.images = self.request.images
        self.prompt_keys = prompt_keys(self.request.prompt_ids, self.images)

    @property
    def is_live(self) -> bool:
        """True until it ends."""
        state = self.state
        # Not by _ENDS: an Enum's hash is Python.
        return state is SequenceState.DECODING or state not in _ENDS

    @property
    def is_fully_scheduled(self) -> bool:
        """True when every token that it may have is known or being sampled."""
        return len(self.output_ids) + self.num_pending >= self.last_len

    @property
    def known_len(self) -> int:
        """Tokens of prompt and output whose ids are known."""
        return self.prompt_len + len(self.output_ids)

    @property
    def num_unscheduled(self) -> int:
        """Tokens, known or pending, that no step computes yet."""
        return self.known_len + self.num_pending - self.scheduled_len

    @property
    def runs_alone(self) -> bool:
        """True while it may be what makes the shards fail: no other one is in a step with it."""
        return self.num_lost >= _MAX_LOST

    @property
    def has_failed_alone(self) -> bool:
        """True once the shards have failed with no other one in the step."""
        return self.num_lost > _MAX_LOST

    @property
    def states(self) -> SequenceStates | None:
        """The slots that it holds; None: it does not run, or its model has no states."""
        return None if self.allocation is None else self.allocation.states

    @property
    def awaits_tokens(self) -> bool:
        """True while a step in flight may bring several tokens, or none."""
        return self.is_multi_token and self.num_pending > 0

    @property
    def may_grow(self) -> bool:
        """True for a running sequence that may need a further block before it ends."""
        assert self.allocation is not None, f"request {self.request_id} does not run"
        return self.allocation.capacity < self.max_computed_len

    @property
    def max_computed_len(self) -> int:
        """Tokens whose KV it may ever need: all but the very last."""
        return self.prompt_len + self.last_len - 1

    @property
    def max_cached_len(self) -> int:
        """Tokens whose KV it may find computed by others; at least one is left to sample from.

        A position that scores a token of the prompt, the one before it, is computed in any case.
        """
        logprobs = self.request.logprobs
        most = self.known_len - 1
        return min(most, logprobs.first_scored - 1) if logprobs.prompt else most

    def token_ids(self, start: int = 0, stop: int | None = None) -> tuple[int, ...]:
        """The known ids of positions [start, stop); all of them by default."""
        return self._with_output(self.request.prompt_ids, start, stop)

    def key_ids(self, start: int = 0, stop: int | None = None) -> tuple[int, ...]:
        """As `token_ids`, with what images show in their places: KV is shared by these."""
        return self._with_output(self.prompt_keys, start, stop)

    def _with_output(
        self, prompt_ids: tuple[int, ...], start: int, stop: int | None
    ) -> tuple[int, ...]:
        if stop is not None and stop <= self.prompt_len:
            return prompt_ids[start:stop]
        first = max(0, start - self.prompt_len)
        last = None if stop is None else stop - self.prompt_len
        return prompt_ids[start:] + tuple(self.output_ids[first:last])

    def move(self, state: SequenceState) -> None:
        """Changes the state. Raises IllegalMove, and changes nothing, where no arrow leads."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(
                f"request {self.request_id}: no way from {self.state.name} to {state.name}"
            )
        self.state = state

    def admit(self, allocation: BlockAllocation, now_s: float) -> bool:
        """Enters the running batch with the blocks of all its known tokens; True the first time."""
        self.move(SequenceState.PREFILLING)
        self.allocation = allocation
        self.scheduled_len = self.computed_len = allocation.cached_len
        if self.first_scheduled_s is not None:
            return False
        self.first_scheduled_s = now_s
        self.cached_len = allocation.cached_len
        return True

    def preempt(self) -> None:
        """Leaves the running batch to be computed anew; tokens in flight still count."""
        self.move(SequenceState.WAITING)
        self.scheduled_len = self.min_available = 0

    def schedule_tokens(self, num_tokens: int) -> ScheduledChunk:
        """Takes part in a step with its next tokens; the last one samples a successor."""
        awaited_len = 0 if self.is_multi_token else self.num_pending
        samples = self.scheduled_len + num_tokens >= self.known_len + awaited_len
        self.scheduled_len += num_tokens
        self.num_steps_in_flight += 1
        if samples:
            self.num_pending += 1
            if self.state is not SequenceState.DECODING:
                self.move(SequenceState.DECODING)
        return ScheduledChunk(self, num_tokens, samples)

    def schedule_one(self, num_drafts: int) -> ScheduledChunk | None:
        """As `schedule_tokens`, of its last token alone; None where more is to be decided.

        `num_drafts`: how many may be guessed behind it.
        """
        assert self.allocation is not None, f"request {self.request_id} does not run"
        if (
            self.is_paused
            or self.is_constrained
            or (num_drafts and self.takes_drafts)
            or len(self.output_ids) + self.num_pending >= self.last_len
            or self.scheduled_len >= self.allocation.capacity
        ):
            return None
        self.scheduled_len += 1
        self.num_steps_in_flight += 1
        self.num_pending += 1
        return ScheduledChunk(self, 1, samples=True)

    def settle(self, chunk: ScheduledChunk, computed_len: int) -> None:
        """The oldest of its steps in flight was answered: so many tokens are computed now.

        That are fewer than were scheduled where there were fewer, or a sample was late: then a
        later step computes its last token again.
        """
        num_missing = self.computed_len + chunk.num_tokens - computed_len
        self.computed_len = computed_len
        if self.state is not SequenceState.WAITING:
            self.scheduled_len -= num_missing

    def drop_reported_logprobs(self, generation: Generation, start_len: int) -> Generation:
        """Without the log-probabilities of prompt tokens that were reported before.

        positions:  | first_scored .. num_prompt_logprobs of them: reported | fresh .. | output
        a chunk from start_len on reports from max(start_len, first_scored) on; it starts further
        back again after a preemption, and then runs on into output, which is no prompt.
        """
        first_scored = self.request.logprobs.first_scored
        first = max(start_len, first_scored)
        num_stale = self.num_prompt_logprobs + first_scored - first
        fresh = slice(num_stale, self.prompt_len - first)
        logprobs = generation.prompt_logprobs[fresh]
        self.num_prompt_logprobs += len(logprobs)
        return generation._replace(
            prompt_logprobs=logprobs,
            prompt_top_tokens=generation.prompt_top_tokens[fresh],
        )

    def lose_steps(self) -> None:
        """The steps in flight will never answer, and the blocks are void."""
        if self.num_steps_in_flight:
            self.num_lost += 1
            self.lost_len = self.known_len + self.num_pending
        self.allocation = None
        self.num_pending = self.num_steps_in_flight = 0

    def take_part(self, num_tokens: int, step_s: float, token_s: float) -> None:
        """A step has computed so many of its tokens, at so much time each."""
        self.num_computed += num_tokens
        self.shard_s += num_tokens * token_s
        if self.allocation is not None:
            self.block_s += len(self.allocation.block_ids) * step_s

    @property
    def num_generated(self) -> int:
        """Tokens of output that were not made before the request came."""
        return len(self.output_ids) - len(self.request.output_ids)

    def work(self) -> Work:
        """What the steps that were answered did for it."""
        known_len = self.prompt_len + len(self.request.output_ids)
        # The last token is sampled, and never computed.
        num_useful = known_len - self.cached_len + max(0, self.num_generated - 1)
        num_wasted = max(0, self.num_computed - num_useful)
        return Work(self.num_forced, num_wasted, self.shard_s, self.block_s)

    def append(self, token_ids: Iterable[int]) -> None:
        """Tokens that a step brought; once it has those that were lost, it is above suspicion."""
        self.output_ids += token_ids
        if self.num_lost and self.known_len >= self.lost_len:
            self.num_lost = 0

    @property
    def awaits_one(self) -> bool:
        """Whether of the oldest of its steps in flight it awaits one token, which is not its last.

        So it is with nearly all that decode; then `take_token` is all that there is to do.
        """
        num_known = len(self.output_ids)
        return (
            self.state is SequenceState.DECODING
            # Its prompt is computed, and was scored if that was asked for.
            and 0 < num_known < self.last_len - 1
            and self.computed_len + 1 == self.prompt_len + num_known
        )

    def take_token(self, token_id: int, step_s: float, token_s: float) -> None:
        """The oldest of its steps in flight has computed one token, and sampled this one.

        As `take_part`, `settle` and `append`, in a fifth of the time.
        """
        self.num_steps_in_flight -= 1
        self.num_pending -= 1
        self.num_computed += 1
        self.computed_len += 1
        self.shard_s += token_s
        if self.allocation is not None:
            self.block_s += len(self.allocation.block_ids) * step_s
        if self.num_lost:
            self.append((token_id,))
        else:
            self.output_ids.append(token_id)
