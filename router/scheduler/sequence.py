"""One request's life in the books: its state, its tokens, its blocks.

It knows no other request, no budget and no queue. Only the scheduler's half of the router changes
an entry.

                 admitted             prompt scheduled to its end
    WAITING ---------------> PREFILLING -----------> DECODING
       ^                         |                       |
       +-------------------------+-----------------------+   preempted

    WAITING, DECODING                -> FINISHED    the shard ended it well
    WAITING, PREFILLING, DECODING    -> FAILED      its row failed, or the shards did
    WAITING, PREFILLING, DECODING    -> CANCELLED   the router ended it

WAITING -> FINISHED and WAITING -> FAILED are a preempted entry's: the steps in flight when it was
preempted still answer, and their tokens count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from proto.contract import Generation
from router.request.request import GenerateRequest
from router.scheduler.allocator import BlockAllocation


class EntryState(Enum):
    """Where an entry stands."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({EntryState.FINISHED, EntryState.CANCELLED, EntryState.FAILED})

LEGAL_MOVES: Mapping[EntryState, frozenset[EntryState]] = MappingProxyType(
    {
        EntryState.WAITING: _ENDS | {EntryState.PREFILLING},
        EntryState.PREFILLING: frozenset(
            {
                EntryState.DECODING,
                EntryState.WAITING,
                EntryState.CANCELLED,
                EntryState.FAILED,
            }
        ),
        EntryState.DECODING: _ENDS | {EntryState.WAITING},
        EntryState.FINISHED: frozenset(),
        EntryState.CANCELLED: frozenset(),
        EntryState.FAILED: frozenset(),
    }
)


class IllegalMove(RuntimeError):
    """An entry was to go where its state does not lead: a bug of the caller."""


class Row(NamedTuple):
    """What one step does for an entry: tokens [start_len, stop_len), and perhaps a draw."""

    entry: "Entry"
    start_len: int
    stop_len: int
    samples: bool


@dataclass(slots=True, eq=False)
class Entry:
    """One request, from `Scheduler.add` to its end.

        tokens:  | prompt ids | output ids: known | pending: drawn by steps in flight |
        KV:      | cached | computed | computed once the steps in flight are | not scheduled |
                                                                 scheduled_len ^
    The last token, known or pending, has no KV yet when the entry decodes: the next step
    computes it and draws its successor. Under a constraint a draw may bring a run of tokens, none
    of which has KV; how many is known with the answer, so nothing is scheduled before.

    `order` is the order of arrival. `num_passed` younger ones were admitted before it while it did
    not fit; before the allocator's `num_gains` reach `retry_at_gains` it cannot fit. `is_suspect`:
    its row failed, and its KV may be why. `is_paused`: nobody reads its tokens, so it draws none.
    """

    request_id: int
    request: GenerateRequest
    order: int
    state: EntryState = EntryState.WAITING
    num_pending: int = 0
    num_steps_in_flight: int = 0
    scheduled_len: int = 0
    allocation: BlockAllocation | None = None
    cached_len: int = 0
    first_scheduled_s: float | None = None
    num_prompt_logprobs: int = 0
    num_passed: int = 0
    retry_at_gains: int = 0
    is_suspect: bool = False
    is_paused: bool = False
    # Those made before the request came are known from the beginning.
    output_ids: list[int] = field(init=False)
    prompt_len: int = field(init=False)
    max_new_tokens: int = field(init=False)
    # Tokens of output at which it ends, or pauses, at the latest.
    last_len: int = field(init=False)
    # A draw may bring several tokens.
    draws_runs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.output_ids = list(self.request.output_ids)
        self.prompt_len = len(self.request.prompt_ids)
        self.max_new_tokens = self.request.stop.max_new_tokens
        self.last_len = self.request.last_len
        self.draws_runs = self.request.constraint is not None

    @property
    def is_live(self) -> bool:
        """True until it ends."""
        return self.state not in _ENDS

    @property
    def is_spent(self) -> bool:
        """True when every token that it may have is known or being drawn."""
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
    def awaits_run(self) -> bool:
        """True while a step in flight may bring a run of tokens."""
        return self.draws_runs and self.num_pending > 0

    @property
    def may_grow(self) -> bool:
        """True for a running entry that may need a further block before it ends."""
        assert self.allocation is not None, f"request {self.request_id} does not run"
        return self.allocation.capacity < self.max_computed_len

    @property
    def max_computed_len(self) -> int:
        """Tokens whose KV it may ever need: all but the very last."""
        return self.prompt_len + self.last_len - 1

    @property
    def max_cached_len(self) -> int:
        """Tokens whose KV it may find computed by others; at least one is left to draw from.

        A position that scores a token of the prompt, the one before it, is computed in any case.
        """
        logprobs = self.request.logprobs
        most = self.known_len - 1
        return min(most, logprobs.first_scored - 1) if logprobs.prompt else most

    def token_ids(self, start: int = 0, stop: int | None = None) -> tuple[int, ...]:
        """The known ids of positions [start, stop); all of them by default."""
        prompt_ids = self.request.prompt_ids
        if stop is not None and stop <= self.prompt_len:
            return prompt_ids[start:stop]
        first = max(0, start - self.prompt_len)
        last = None if stop is None else stop - self.prompt_len
        return prompt_ids[start:] + tuple(self.output_ids[first:last])

    def move(self, state: EntryState) -> None:
        """Changes the state. Raises IllegalMove, and changes nothing, where no arrow leads."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalMove(
                f"request {self.request_id}: no way from {self.state.name} to {state.name}"
            )
        self.state = state

    def admit(self, allocation: BlockAllocation, now_s: float) -> bool:
        """Enters the running batch with the blocks of all its known tokens; True the first time."""
        self.move(EntryState.PREFILLING)
        self.allocation = allocation
        self.scheduled_len = allocation.cached_len
        if self.first_scheduled_s is not None:
            return False
        self.first_scheduled_s = now_s
        self.cached_len = allocation.cached_len
        return True

    def preempt(self) -> None:
        """Leaves the running batch to be computed anew; tokens in flight still count."""
        self.move(EntryState.WAITING)
        self.scheduled_len = 0

    def schedule_tokens(self, num_tokens: int) -> Row:
        """Takes part in a step with its next tokens; the last one draws a successor."""
        start_len = self.scheduled_len
        stop_len = self.scheduled_len = start_len + num_tokens
        samples = stop_len == self.prompt_len + len(self.output_ids) + self.num_pending
        self.num_steps_in_flight += 1
        if samples:
            self.num_pending += 1
            if self.state is not EntryState.DECODING:
                self.move(EntryState.DECODING)
        return Row(self, start_len, stop_len, samples)

    def draw_again(self) -> None:
        """Its answered draw brought nothing: a later step computes its last token again.

        Only for one whose draws bring runs: nothing was scheduled behind this one.
        """
        if self.state is EntryState.DECODING:
            self.scheduled_len -= 1

    def cut_prompt_logprobs(self, generation: Generation, start_len: int) -> Generation:
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
        return replace(
            generation,
            prompt_logprobs=logprobs,
            prompt_top_tokens=generation.prompt_top_tokens[fresh],
        )

    def lose_steps(self) -> None:
        """The steps in flight will never answer, and the blocks are void."""
        self.allocation = None
        self.num_pending = self.num_steps_in_flight = 0
