"""The sequences that wait, those that the shards hold, and the steps in flight with these.

    waiting  ------->  running  ------->  retiring  ------->  gone
       ^               (the shard has     (out of the batch; steps in flight
       |                its row)           may still write its blocks)
       +------------------+ preempted

It knows no budget: the planner decides which of the waiting fit.

Who waits is offered oldest first, of several API keys that first which was served least
(fair_shares). Where one does not fit, nobody behind it is admitted; one that waits for another one
to compute their common beginning is passed over, for that has an end. A preempted sequence returns
to its place by arrival, which is before everything of its key that came after it.
One that is held, since its constraint is still being compiled, is not offered: none passes it, and
it blocks none.

Why none starves. Steps compute at least one token for good each: a decode's token outlives a
preemption, and the oldest running sequence is never preempted for another one. (Run ahead, a step
may pass while blocks wait to be freed.) While the first waiting one does not fit, nothing enters;
so at the latest after as many such steps as the running sequences have tokens left to compute,
nothing runs, every block is available, and the first waiting one, which was measured against the
whole pool when it came, is admitted. And each becomes the first: within a key by arrival, among
keys since what is served to the others makes them come later.

A running sequence leaves because it ended, was preempted, or is fully scheduled: each of its tokens
is known or being sampled, so no later step concerns it. (While its sample may be late, only the
answer settles that.) Its blocks are freed when the last step with it is answered, which is at once
when none is in flight.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from proto.contract import Generation, PlainRow, StepResult
from router.request.errors import ShardFailed
from router.scheduler.allocator import Allocator, BlockAllocation
from router.scheduler.fair_shares import FairShares
from router.scheduler.sequence import ScheduledChunk, Sequence

# How many are offered in one step: a bound on a step's cost, not on a sequence's turn, since the
# oldest are offered first. So it is also the most that one step admits; the others have the next.
_MAX_OFFERS = 64


def _order(sequence: Sequence) -> int:
    return sequence.order


class WaitingQueue:
    """Entries in state WAITING. Only the `Scheduler` changes it."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        # In order of arrival, by the names of their keys; none is empty.
        self._by_key: dict[str, list[Sequence]] = {}
        # Their constraints are still being compiled.
        self._held: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values())) + len(self._held)

    def __iter__(self) -> Iterator[Sequence]:
        for sequences in self._by_key.values():
            yield from sequences
        yield from self._held.values()

    def add(self, sequence: Sequence) -> None:
        """Inserts in order of arrival."""
        insort(self._by_key.setdefault(sequence.request.key.name, []), sequence, key=_order)

    def hold(self, sequence: Sequence) -> None:
        """Waits, but is offered only once it is released."""
        self._held[sequence.request_id] = sequence

    def release(self, sequence: Sequence) -> None:
        """Inserts in order of arrival, if it was held."""
        if self._held.pop(sequence.request_id, None) is not None:
            self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError if it does not wait."""
        if self._held.pop(sequence.request_id, None) is None:
            name = sequence.request.key.name
            sequences = self._by_key.get(name, [])
            sequences.remove(sequence)
            if not sequences:
                del self._by_key[name]

    def place(self, sequence: Sequence) -> int:
        """1 for the one that is offered first; of a held one, what its place would be.

        Among several keys it is the place if each was served one after the other from now on.
        """
        if len(self._by_key) > 1 and sequence.request_id not in self._held:
            return self.offers(len(self)).index(sequence) + 1
        sequences = self._by_key.get(sequence.request.key.name, [])
        return bisect_left(sequences, sequence.order, key=_order) + 1

    def offers(self, most: int = _MAX_OFFERS) -> list[Sequence]:
        """Those that may be admitted in this step, if they fit."""
        if len(self._by_key) > 1:
            return self._shares.merge(self._by_key, most)
        return next((sequences[:most] for sequences in self._by_key.values()), [])

    def check_invariants(self) -> None:
        """Raises AssertionError when the order is wrong."""
        for name, sequences in self._by_key.items():
            assert sequences, "a key without sequences is in the queue"
            assert all(each.request.key.name == name for each in sequences)
            orders = [sequence.order for sequence in sequences]
            assert orders == sorted(set(orders)), "the queue is out of order"
            assert not set(orders) & {sequence.order for sequence in self._held.values()}


class RunningBatch:
    """Running and retiring sequences. Only the `Scheduler` changes it."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._sequences: list[Sequence] = []
        self._retiring: dict[int, Sequence] = {}
        # What the shards hold and must forget; a dict for its order.
        self._to_drop: dict[int, None] = {}
        # Those that begin with a kept state, until it was read.
        self._readers: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """Oldest first."""
        return iter(self._sequences)

    @property
    def computing(self) -> list[Sequence]:
        """Those of which a step in flight, or a later one, may compute blocks for others."""
        return self._sequences + [each for each in self._retiring.values() if each.is_live]

    @property
    def youngest(self) -> Sequence:
        """The one to preempt. Raises IndexError when nothing runs."""
        return self._sequences[-1]

    @property
    def is_retiring(self) -> bool:
        """True while blocks wait for a step's answer to be freed."""
        return bool(self._retiring)

    @property
    def request_ids(self) -> tuple[int, ...]:
        """Of those that run."""
        return tuple([sequence.request_id for sequence in self._sequences])

    @property
    def is_in_flight(self) -> bool:
        """True while a step in flight has a sequence that runs or ran."""
        return bool(self._retiring) or any(each.num_steps_in_flight for each in self._sequences)

    @property
    def alone(self) -> Sequence | None:
        """The one that no other may join in a step, if there is one."""
        lost = [each for each in self._sequences if each.num_lost]
        lost += [each for each in self._retiring.values() if each.is_live]
        return next((each for each in lost if each.runs_alone), None)

    def holds(self, sequence: Sequence) -> bool:
        """False once no later step concerns it."""
        return sequence.request_id not in self._retiring

    @property
    def has_drops(self) -> bool:
        """True while the shards hold requests that they must forget."""
        return bool(self._to_drop)

    @property
    def num_growing(self) -> int:
        """Entries that may need a further block."""
        return sum([sequence.may_grow for sequence in self._sequences])

    @property
    def num_constrained(self) -> int:
        """Entries whose output is to satisfy a constraint."""
        return sum([sequence.is_constrained for sequence in self._sequences])

    def has_left(self, request_id: int) -> bool:
        """False while anything of the request is here: a row in a shard, or blocks."""
        return request_id not in self._to_drop and request_id not in self._retiring

    def add(self, sequence: Sequence) -> None:
        """Inserts an admitted sequence in order of arrival."""
        insort(self._sequences, sequence, key=_order)
        states = sequence.states
        if states is not None and states.pinned is not None:
            self._readers.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Removes a sequence that the shards still hold: the next step drops it."""
        if sequence.request_id not in self._retiring:
            self._to_drop[sequence.request_id] = None
            self.leave(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Removes a sequence that the shards removed themselves; nothing if it has left."""
        if sequence.request_id in self._retiring:
            return
        self._sequences.remove(sequence)
        self._retire(sequence)

    def retire_fully_scheduled(self, chunks: Iterable[ScheduledChunk]) -> None:
        """Removes those of a step's sequences that no later step concerns."""
        leaving = [
            sequence
            for sequence, _, _ in chunks
            if sequence.is_fully_scheduled and not sequence.awaits_tokens
        ]
        if not leaving:
            return
        leaving_ids = {sequence.request_id for sequence in leaving}
        self._sequences = [
            sequence for sequence in self._sequences if sequence.request_id not in leaving_ids
        ]
        for sequence in leaving:
            self._retire(sequence)

    def answered(self, sequence: Sequence, *, has_ended: bool) -> None:
        """A step with the sequence was answered; `has_ended`: the shards removed it themselves."""
        if has_ended and self._to_drop:
            self._to_drop.pop(sequence.request_id, None)
        if sequence.num_steps_in_flight == 0 and sequence.request_id in self._retiring:
            del self._retiring[sequence.request_id]
            self._free(sequence)

    def let_go_of_states(self) -> None:
        """A step was answered: the kept states that were read may be evicted."""
        if self._readers:
            self._readers = [each for each in self._readers if not self._has_read(each)]

    def _has_read(self, sequence: Sequence) -> bool:
        """Whether it has gone on from the state that it began with, or is gone."""
        allocation = sequence.allocation
        if allocation is None:
            return True
        # A first step whose draw was late is computed again.
        if sequence.computed_len == allocation.cached_len:
            return False
        self._allocator.let_go_of_state(allocation)
        return True

    def take_drops(self) -> tuple[int, ...]:
        """The requests that the next step drops; they count as dropped from now on."""
        dropped_ids = tuple(self._to_drop)
        self._to_drop.clear()
        return dropped_ids

    def clear(self) -> None:
        """The shards lost everything: no sequence runs, every allocation is void."""
        for sequence in (*self._sequences, *self._retiring.values()):
            sequence.lose_steps()
        self._sequences.clear()
        self._retiring.clear()
        self._to_drop.clear()
        self._readers.clear()
        self._allocator.clear()

    def check_invariants(self) -> None:
        """Raises AssertionError when blocks, sequences and their order disagree."""
        orders = [sequence.order for sequence in self._sequences]
        assert orders == sorted(set(orders)), "the running batch is out of order"
        for sequence in self._sequences:
            assert sequence.request_id not in self._retiring, "a sequence runs and retires"
            assert sequence.request_id not in self._to_drop, "a running sequence is to be dropped"
        for sequence in self._retiring.values():
            assert sequence.num_steps_in_flight > 0, "blocks are kept for no step"
        allocations: list[BlockAllocation] = []
        for sequence in (*self._sequences, *self._retiring.values()):
            assert sequence.allocation is not None, f"request {sequence.request_id} has no blocks"
            allocations.append(sequence.allocation)
        self._allocator.check_invariants(allocations)
        readers = {sequence.request_id for sequence in self._readers}
        for sequence in (*self._sequences, *self._retiring.values()):
            states = sequence.states
            is_reader = states is not None and states.pinned is not None
            assert not is_reader or sequence.request_id in readers, "a state is pinned for ever"

    def _retire(self, sequence: Sequence) -> None:
        if sequence.num_steps_in_flight:
            self._retiring[sequence.request_id] = sequence
        else:
            self._free(sequence)

    def _free(self, sequence: Sequence) -> None:
        assert sequence.allocation is not None, f"request {sequence.request_id} has no blocks"
        self._allocator.free(sequence.allocation, forget=sequence.has_doubtful_kv)
        sequence.allocation = None


class AnsweredChunk(NamedTuple):
    """A chunk of an answered step, which has computed tokens [start_len, stop_len), and then
    perhaps a sample. `remains`: the shards still hold its request.
    """

    chunk: ScheduledChunk
    start_len: int
    stop_len: int
    samples: bool
    generation: Generation | None
    remains: bool

    @property
    def num_computed(self) -> int:
        """Tokens that were computed; drafts are among them."""
        num_tokens = max(0, self.stop_len - self.start_len)
        return num_tokens if self.generation is None else num_tokens + self.generation.num_drafts


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was handed out and not answered yet: its chunks by request, and what it drops."""

    step_id: int
    chunks: dict[int, ScheduledChunk]
    dropped_ids: tuple[int, ...] = ()
    begun_s: float = 0.0

    def read(self, result: StepResult) -> tuple[list[PlainRow], list[AnsweredChunk]]:
        """The answers that are plain rows of sequences that `await_one`; and those for the other
        chunks of the step, in their order.

        Raises ShardFailed when the answer contradicts what was scheduled: then shard and router no
        longer agree on what the shard holds, and nothing in its answers can be used.
        """
        if result.step_id != self.step_id:
            raise ShardFailed(f"step {self.step_id} was answered as step {result.step_id}")
        generations = {generation.request_id: generation for generation in result.others}
        answered_ids = {*generations, *[row[0] for row in result.plain]}
        if len(answered_ids) != len(result.others) + len(result.plain):
            raise ShardFailed(f"step {self.step_id}: two generations for one request")
        strangers = answered_ids - self.chunks.keys()
        if strangers:
            raise ShardFailed(
                f"step {self.step_id}: generations for {sorted(strangers)}, which took no part"
            )
        remaining_ids = frozenset(result.remaining_ids)
        plain: list[PlainRow] = []
        for row in result.plain:
            request_id = row[0]
            sequence, num_tokens, _ = self.chunks[request_id]
            if num_tokens == 1 and sequence.awaits_one and request_id in remaining_ids:
                plain.append(row)
            else:
                generations[request_id] = Generation.of_plain(row)
        if len(plain) == len(self.chunks):
            return plain, []
        plain_ids = {row[0] for row in plain}
        answered: list[AnsweredChunk] = []
        for request_id, chunk in self.chunks.items():
            if request_id in plain_ids:
                continue
            sequence, num_tokens, samples = chunk
            # What it computes is known now that all steps before it are answered.
            start_len = sequence.computed_len
            stop_len = start_len + num_tokens
            if sequence.is_multi_token:
                stop_len = min(stop_len, sequence.known_len)
                samples = stop_len == sequence.known_len
            each = AnsweredChunk(
                chunk,
                start_len,
                stop_len,
                samples,
                generations.get(request_id),
                request_id in remaining_ids,
            )
            # A request that ended meanwhile may have been computed or not: it counts no more.
            if sequence.is_live:
                fault = _fault(sequence, each)
                if fault is not None:
                    raise ShardFailed(f"step {self.step_id}, request {request_id}: {fault}")
            answered.append(each)
        return plain, answered


def has_ended(generation: Generation | None) -> bool:
    """True when the shard no longer holds the request."""
    return generation is not None and (
        generation.finish_reason is not None or generation.error is not None
    )


def _fault(sequence: Sequence, chunk: AnsweredChunk) -> str | None:
    """The fault in the answer for a live sequence; None: it has none."""
    generation = chunk.generation
    num_tokens = 0
    if generation is not None:
        num_tokens = len(generation.tokens)
        # Else it is one token, as nearly always.
        if num_tokens != 1 or generation.num_accepted or not chunk.samples:
            fault = _excess(sequence, chunk, generation)
            if fault is not None:
                return fault
        if has_ended(generation):
            return None
    if not chunk.remains:
        return "the shard lost it without saying why"
    if generation is not None and generation.is_late:
        if num_tokens or not (chunk.samples and sequence.is_constrained):
            return "it cannot be late"
    elif chunk.samples and num_tokens == 0:
        return "a token was to be sampled and none came"
    elif chunk.samples and len(sequence.output_ids) + num_tokens >= sequence.last_len:
        return f"it goes on after its last token, number {sequence.last_len}"
    if sequence.request.logprobs.prompt:
        num_logprobs = len(generation.prompt_logprobs) if generation is not None else 0
        first_scored = sequence.request.logprobs.first_scored
        num_expected = min(chunk.stop_len, sequence.prompt_len) - max(chunk.start_len, first_scored)
        if num_logprobs < num_expected:
            return f"{num_logprobs} prompt log-probabilities came instead of {num_expected}"
    return None


def _excess(sequence: Sequence, chunk: AnsweredChunk, generation: Generation) -> str | None:
    """The fault in the number of tokens, if there are too many."""
    num_tokens = len(generation.tokens)
    num_accepted = generation.num_accepted
    num_left = sequence.max_new_tokens - len(sequence.output_ids)
    most = (num_left if sequence.is_multi_token else 1) if chunk.samples else 0
    if num_tokens > most:
        return f"{num_tokens} tokens came where {most} were to be made at most"
    if num_accepted and not (sequence.takes_drafts and num_accepted < num_tokens):
        return f"{num_accepted} accepted drafts came with {num_tokens} tokens"
    return None
