"""Plans a step: which tokens of which sequences it computes, in which blocks.

It knows sequences, blocks and budgets, but no answers of earlier steps.

A step's token budget goes to decodes first (to each one token, and what a constraint forced or a
shard may guess after it), then to prompts being computed, then to admissions; within each, the
oldest first. Blocks are taken as sequences grow. When there are none left, the youngest running
sequence is preempted: its blocks are freed, it waits again, and is recomputed, output included,
helped by what the prefix cache still holds. When blocks are about to be freed anyhow, nothing is
preempted: the one in need sits the step out, as a paused one does.

The slots of a model with states limit how many run, as the size of a batch does: who lacks them
waits. Which states are kept for later ones: that at the last block boundary before what asks for
the answer, where the next turn of a chat goes on; of an output that goes on, by another request or
after a preemption, that before its last tokens; and that where a sequence leaves what others began
with, which is known once its keys are found and no state with them.

Where several API keys have sequences, each is to have its share. What a key was served decides who
is admitted next, and whether that comes before another key's prompt that is being computed. Where
there is no room for a key that runs less than its share, the youngest sequence of the key that runs
most is preempted for it, before anything else is planned. The prompts of a key that has had more
than others take a sixteenth of the step at most, and nothing of one with a prompt of the others.

Of several sequences that begin alike, like the values of a distribution behind one prompt, the
first computes the shared beginning and the others wait until they find it in the cache.

Where an image's tokens attend to each other, no chunk ends inside of one. A prompt that can begin
with nothing else then waits for the next step, and with it those behind it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from proto.contract import NewSequence, RunningUpdate
from router.scheduler.allocator import Allocator, BlockAllocation, Shortage
from router.scheduler.fair_shares import FairShares, RunningCounts
from router.scheduler.queues import RunningBatch, WaitingQueue
from router.scheduler.sequence import ScheduledChunk, Sequence, SequenceState
from router.scheduler.states import SequenceStates

# A step that is made before it is known how many tokens a constraint has forced has room for so
# many. Where there are more, a further step computes them.
_MAX_AWAITED = 16
_OVERSERVED_PARTS = 16
_MIN_OVERSERVED = 64
# Drafts fill a step of few rows, which waits for the weights to be read; of one that computes for
# longer than that each row costs its time, and most drafts are wrong.
_MAX_DRAFT_ROWS = 32
# So many shared blocks at least are worth a step's wait. They must be half of what is left to
# compute, too: then waiting never takes much longer than computing.
_MIN_SHARED_BLOCKS = 4
# The last tokens of a chat's prompt may ask for an answer in a way of which its history knows
# nothing: with a thought that is begun, or that is empty.
_ASKING_LEN = 4


@dataclass(slots=True)
class StepPlan:
    """A step under construction, and the counts of its planning."""

    num_tokens_left: int
    # Keys whose prompts share what is left for them.
    overserved: frozenset[str] = frozenset()
    num_overserved_left: int = 0
    images_see_ahead: bool = False
    # Draft tokens of each sequence that decodes.
    num_drafts: int = 0
    chunks: dict[int, ScheduledChunk] = field(default_factory=dict)
    running_ids: tuple[int, ...] = ()
    new: list[NewSequence] = field(default_factory=list)
    updates: list[RunningUpdate] = field(default_factory=list)
    num_decode_tokens: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0

    def schedule(self, sequence: Sequence, num_tokens: int) -> None:
        """The sequence takes part in the step."""
        self.chunks[sequence.request_id] = sequence.schedule_tokens(num_tokens)
        self.num_tokens_left -= num_tokens

    def schedule_prompt(self, sequence: Sequence) -> int:
        """The next tokens of a prompt, as many as the step has room for; how many."""
        chunk_len = self.room_for(sequence, sequence.scheduled_len)
        self.schedule(sequence, chunk_len)
        if sequence.request.key.name in self.overserved:
            self.num_overserved_left = max(0, self.num_overserved_left - chunk_len)
        else:
            # The step is as short for it as it can be.
            self.num_overserved_left = 0
        return chunk_len

    def room_for(self, sequence: Sequence, start: int) -> int:
        """Tokens of a sequence's prompt, from `start` on, that the step has room for."""
        most = min(self.num_tokens_left, sequence.known_len + sequence.num_pending - start)
        room = most
        if sequence.request.key.name in self.overserved:
            room = min(most, self.num_overserved_left)
        for image in sequence.images if self.images_see_ahead else ():
            if start < image.stop and image.start < start + room < image.stop:
                before = max(0, image.start - start)
                # Nobody can be let have less of it at a time.
                comes_whole = before == 0 and start + most >= image.stop
                return image.stop - start if comes_whole else before
        return room

    def sit_out(self, sequence: Sequence) -> None:
        """The sequence decodes, but not in this step."""
        self.updates.append(RunningUpdate(sequence.request_id, chunk_len=0))


class Planner:
    """Makes the next step and moves sequences accordingly.

    A step has `max_step_tokens` tokens at most, for at most `max_batch_size` requests, and of one
    of them `max_drafts` draft tokens at most.
    """

    def __init__(
        self,
        max_step_tokens: int,
        max_batch_size: int,
        max_drafts: int,
        allocator: Allocator,
        waiting: WaitingQueue,
        running: RunningBatch,
        shares: FairShares,
        *,
        images_see_ahead: bool = False,
    ) -> None:
        self._images_see_ahead = images_see_ahead
        self._max_step_tokens = max_step_tokens
        # Each running sequence must find a token in a step, those too that sit this one out.
        self._max_running = min(max_batch_size, max_step_tokens)
        if allocator.states is not None:
            self._max_running = min(self._max_running, allocator.states.max_sequences)
        self._max_drafts = max_drafts
        self._allocator = allocator
        self._waiting = waiting
        self._running = running
        self._shares = shares

    def plan(self, now_s: float) -> StepPlan:
        """The next step; one without chunks computes nothing."""
        plan = StepPlan(
            self._max_step_tokens,
            overserved=self._shares.overserved(now_s),
            num_overserved_left=max(_MIN_OVERSERVED, self._max_step_tokens // _OVERSERVED_PARTS),
            images_see_ahead=self._images_see_ahead,
        )
        if not self._plan_alone(plan, now_s):
            if self._shares.is_shared:
                self._make_room(plan)
            self._plan_decodes(plan)
            late = self._plan_chunks(plan)
            plan.running_ids = self._running.request_ids
            self._plan_admissions(plan, now_s)
            for sequence in late:
                if plan.room_for(sequence, sequence.scheduled_len):
                    _plan_chunk(sequence, plan)
        self._shares.charge(plan.chunks.values())
        self._running.retire_fully_scheduled(plan.chunks.values())
        return plan

    def _plan_decodes(self, plan: StepPlan) -> None:
        """One token for each sequence that decodes, the oldest first: they get the blocks.

        Tokens that a constraint forced are computed at once, or in parts where others need
        the room. The budget is enough: never more are admitted than a step has tokens.
        """
        decoding = [
            sequence for sequence in self._running if sequence.state is SequenceState.DECODING
        ]
        num_behind = len(decoding)
        if decoding and self._max_drafts:
            room = max(0, _MAX_DRAFT_ROWS // len(decoding) - 1)
            plan.num_drafts = min(self._max_drafts, room)
        for sequence in decoding:
            num_behind -= 1
            # An older one preempted it a moment ago.
            if sequence.state is not SequenceState.DECODING:
                continue
            chunk = sequence.schedule_one(plan.num_drafts)
            if chunk is None:
                self._plan_decode(sequence, plan, num_behind)
                continue
            plan.chunks[sequence.request_id] = chunk
            plan.num_tokens_left -= 1
            plan.num_decode_tokens += 1

    def _plan_decode(self, sequence: Sequence, plan: StepPlan, num_behind: int) -> None:
        # A multi-token sequence whose last sample is in flight may go on, if that is late.
        is_paused = sequence.is_paused and not sequence.runs_alone
        if is_paused or sequence.is_fully_scheduled:
            plan.sit_out(sequence)
            return
        chunk_len = 1
        sent_len = None
        if sequence.is_multi_token:
            chunk_len = self._multi_token_len(sequence, plan, num_behind)
            sent_len = chunk_len if chunk_len > 1 else None
        allocation = sequence.allocation
        assert allocation is not None, f"request {sequence.request_id} has no blocks"
        block_ids: tuple[int, ...] = ()
        stop_len = sequence.scheduled_len + chunk_len
        if stop_len > allocation.capacity:
            stop_len = min(stop_len, sequence.max_computed_len)
        if stop_len > allocation.capacity:
            grown = self._grow(sequence, allocation, stop_len, plan)
            if grown is None:
                return
            block_ids = grown
        if block_ids or sent_len is not None:
            plan.updates.append(RunningUpdate(sequence.request_id, block_ids, sent_len))
        plan.schedule(sequence, chunk_len)
        plan.num_decode_tokens += chunk_len

    def _multi_token_len(self, sequence: Sequence, plan: StepPlan, num_behind: int) -> int:
        """Tokens to compute where samples may bring several; those behind need one each.

        Where it is not known how many a constraint has forced, drafts fill what they leave.
        """
        most = plan.num_tokens_left - num_behind
        known_len = 1
        if sequence.is_constrained:
            known_len = sequence.known_len - sequence.scheduled_len
            if known_len <= 0:
                return min(_MAX_AWAITED, most)
        chunk_len = min(known_len + plan.num_drafts, most)
        allocation = sequence.allocation
        assert allocation is not None, f"request {sequence.request_id} has no blocks"
        stop_len = min(sequence.scheduled_len + chunk_len, sequence.max_computed_len)
        # Nobody is preempted for a guess.
        return chunk_len if self._allocator.has_room(allocation, stop_len) else min(known_len, most)

    def _grow(
        self, sequence: Sequence, allocation: BlockAllocation, num_tokens: int, plan: StepPlan
    ) -> tuple[int, ...] | None:
        """Further blocks, by preempting another if need be; None: it sits the step out.

        That is the youngest, of several keys' that of the one that runs most for its weight.
        """
        while True:
            block_ids = self._allocator.extend(allocation, num_tokens)
            if block_ids is not None:
                return block_ids
            if self._running.is_retiring or sequence.awaits_tokens:
                plan.sit_out(sequence)
                return None
            victim = None
            if self._shares.is_shared:
                victim = RunningCounts(self._running).victim_behind(sequence)
            victim = victim or self._running.youngest
            self._preempt(victim, plan)
            if victim is sequence:
                return None

    def _preempt(self, victim: Sequence, plan: StepPlan) -> None:
        victim.preempt()
        self._running.drop(victim)
        self._waiting.add(victim)
        plan.num_preemptions += 1

    def _make_room(self, plan: StepPlan) -> None:
        """Preempts for sequences that find no room, and whose keys run less than their share."""
        counts = RunningCounts(self._running)
        num_free = self._max_running - len(self._running)
        for sequence in self._waiting.offers():
            lacks_blocks = sequence.min_available > self._allocator.num_available
            if lacks_blocks and self._running.is_retiring:
                return
            if num_free == 0 or lacks_blocks:
                victim = counts.take_victim(sequence)
                if victim is None:
                    return
                self._preempt(victim, plan)
                num_free += 1
            num_free -= 1
            counts.add(sequence)
            if lacks_blocks:
                # Its blocks may be free at once, or with the answer to a step in flight.
                return

    def _plan_chunks(self, plan: StepPlan) -> list[Sequence]:
        """Spends what decodes left of the budget on prompts being computed, the oldest first.

        Those of a key that was not served less than that of the first who waits come after that.
        """
        late: list[Sequence] = []
        first = next(iter(self._waiting.offers(1)), None) if self._shares.is_shared else None
        for sequence in self._running:
            if sequence.state is SequenceState.PREFILLING:
                if first is not None and self._shares.comes_before(first, sequence):
                    late.append(sequence)
                elif plan.room_for(sequence, sequence.scheduled_len):
                    _plan_chunk(sequence, plan)
        return late

    def _plan_alone(self, plan: StepPlan, now_s: float) -> bool:
        """A step for nothing but a sequence that may make the shards fail; False: there is none.

        It comes first, and the others stand still: not for long, since it is one of them again once
        it is as far as where it was lost. It has to wait where there are no blocks for it.
        """
        one = self._running.alone
        if one is not None:
            if one.state is SequenceState.DECODING and self._running.holds(one):
                self._plan_decode(one, plan, 0)
            elif one.state is SequenceState.PREFILLING:
                _plan_chunk(one, plan)
            self._let_others_sit_out(plan, one)
            return True
        one = next(iter(self._waiting.offers(1)), None)
        if one is None or not one.runs_alone:
            return False
        is_full = len(self._running) >= self._max_running
        if is_full or not self._running.has_left(one.request_id):
            return False
        if self._running.is_in_flight:
            return True
        allocation = self._allocate(one, self._running.num_growing)
        if allocation is None:
            return False
        self._let_others_sit_out(plan, one)
        self._waiting.remove(one)
        self._admit(one, allocation, plan, now_s)
        return True

    def _let_others_sit_out(self, plan: StepPlan, one: Sequence) -> None:
        for sequence in self._running:
            if sequence is not one and sequence.state is SequenceState.DECODING:
                plan.sit_out(sequence)
        plan.running_ids = self._running.request_ids

    def _plan_admissions(self, plan: StepPlan, now_s: float) -> None:
        """Spends what is left after that on waiting sequences."""
        offers = self._waiting.offers()
        # Each running sequence can go on for a block at least before one is preempted. In a pool
        # for half of the running requests that cuts what is computed twice from 44 % to 6 % of
        # all tokens, in as many steps; more spare blocks save tokens but cost steps.
        num_spare = self._running.num_growing if offers else 0
        # Keys of which one was preempted a moment ago: its tokens are in flight, or the shard still
        # has its row. No younger one gets the blocks that it lost to an older one.
        leaving: set[str] = set()
        for sequence in offers:
            if plan.num_tokens_left == 0 or len(self._running) >= self._max_running:
                return
            if sequence.runs_alone:
                return
            if not self._running.has_left(sequence.request_id):
                leaving.add(sequence.request.key.name)
            key = sequence.request.key.name
            if key in leaving or (key in plan.overserved and not plan.room_for(sequence, 0)):
                continue
            if self._running and self._allocator.num_available < sequence.min_available:
                return
            if awaits_prefix(sequence, self._running.computing, self._allocator):
                continue
            allocation = self._allocate(sequence, num_spare)
            if allocation is None:
                return
            if not plan.room_for(sequence, allocation.cached_len):
                # What is left is too small for its image: nobody else has it either.
                self._allocator.free(allocation)
                if key in plan.overserved:
                    continue
                return
            self._waiting.remove(sequence)
            self._admit(sequence, allocation, plan, now_s)
            num_spare += sequence.may_grow

    def _allocate(self, sequence: Sequence, num_spare: int) -> BlockAllocation | None:
        allocation = self._allocator.allocate(
            sequence.key_ids(),
            max_cached_len=sequence.max_cached_len,
            num_spare=num_spare,
            salt=sequence.request.cache_salt,
        )
        if isinstance(allocation, Shortage):
            num_missing = allocation.num_blocks - num_spare
            sequence.min_available = self._allocator.num_available + num_missing
            return None
        return allocation

    def _admit(
        self, sequence: Sequence, allocation: BlockAllocation, plan: StepPlan, now_s: float
    ) -> None:
        if sequence.admit(allocation, now_s):
            plan.num_prompt_tokens += sequence.known_len
            plan.num_cached_tokens += sequence.cached_len
        self._running.add(sequence)
        states = allocation.states
        if states is not None:
            self._plan_kept(sequence, allocation, states)
        chunk_len = plan.schedule_prompt(sequence)
        request = sequence.request
        plan.new.append(
            NewSequence(
                request_id=sequence.request_id,
                token_ids=sequence.token_ids(),
                prompt_len=sequence.prompt_len,
                cached_len=allocation.cached_len,
                chunk_len=chunk_len,
                block_ids=tuple(allocation.block_ids),
                sampling=request.sampling,
                stop=request.stop,
                logprobs=request.logprobs,
                constraint=request.shard_constraint,
                pause_len=request.pause_len,
                state_ids=() if states is None else states.state_ids,
                from_state=None if states is None else states.from_state,
                kept_states=() if states is None else tuple(states.unwritten),
                adapter_id=request.adapter_id,
                max_drafts=self._max_drafts,
                images=sequence.images,
            )
        )

    def _plan_kept(
        self, sequence: Sequence, allocation: BlockAllocation, states: SequenceStates
    ) -> None:
        """Chooses where the state of what is to be computed is kept for later ones."""
        slots = self._allocator.states
        if slots is None or not self._allocator.shares_prefixes:
            return
        block_size = self._allocator.block_size
        prompt_len = max(0, sequence.prompt_len - _ASKING_LEN) // block_size * block_size
        last_len = max(0, sequence.known_len - _ASKING_LEN) // block_size * block_size
        found_len = allocation.found_len
        kept_len = allocation.cached_len
        for other in self._running.computing:
            if other is not sequence:
                # What it computes counts as found, and what it keeps is kept.
                shared_len = _shared_len(sequence, other, block_size)
                found_len = max(found_len, shared_len)
                kept_len = max(kept_len, _usable_len(other, shared_len))
        wanted = dict.fromkeys((prompt_len, last_len, min(found_len, last_len)))
        positions = [position for position in wanted if position > kept_len]
        # Who waits, and one who comes, is not kept waiting by what is written for later ones.
        num_next = min(len(self._waiting) + 1, self._max_running - len(self._running))
        slots.plan(states, positions, num_next)


def _plan_chunk(sequence: Sequence, plan: StepPlan) -> None:
    """The next tokens of a prompt being computed, as many as the step has room for."""
    chunk_len = plan.schedule_prompt(sequence)
    plan.updates.append(RunningUpdate(sequence.request_id, chunk_len=chunk_len))


def awaits_prefix(sequence: Sequence, computing: Iterable[Sequence], allocator: Allocator) -> bool:
    """Whether one of these computes now most of what this one would have to."""
    block_size = allocator.block_size
    if not allocator.shares_prefixes or sequence.max_cached_len < _MIN_SHARED_BLOCKS * block_size:
        return False
    shared_lens = [
        _usable_len(other, _shared_len(sequence, other, block_size)) for other in computing
    ]
    shared_len = max(shared_lens, default=0)
    if shared_len < _MIN_SHARED_BLOCKS * block_size:
        return False
    salt = sequence.request.cache_salt
    cached_len = allocator.cached_len(sequence.key_ids(), sequence.max_cached_len, salt)
    spared_len = shared_len - cached_len
    return spared_len >= max(_MIN_SHARED_BLOCKS * block_size, (sequence.known_len - cached_len) / 2)


def _usable_len(other: Sequence, shared_len: int) -> int:
    """Of so many tokens that `other` computes, those behind which another one can begin then."""
    if other.states is None:
        return shared_len
    kept = [each.position for each in other.states.unwritten if each.position <= shared_len]
    return max(kept, default=0)


def _shared_len(sequence: Sequence, other: Sequence, block_size: int) -> int:
    """Tokens of the blocks that both begin with, if `other` computes some of its blocks now."""
    soon_len = _soon_len(other) // block_size * block_size
    if other.allocation is None or soon_len <= other.allocation.committed_len:
        return 0
    if other.request.cache_salt != sequence.request.cache_salt:
        return 0
    most = min(sequence.max_cached_len, soon_len) // block_size * block_size
    if sequence.key_ids(0, block_size) != other.key_ids(0, block_size):
        return 0
    ours = sequence.key_ids(0, most)
    theirs = other.key_ids(0, most)
    if ours == theirs:
        return most
    pairs = enumerate(zip(ours, theirs, strict=False))
    num_equal = next((index for index, (one, two) in pairs if one != two), len(theirs))
    return num_equal // block_size * block_size


def _soon_len(sequence: Sequence) -> int:
    """Tokens that are computed once steps in flight and, of a prompt, the next ones are."""
    return (
        sequence.known_len if sequence.state is SequenceState.PREFILLING else sequence.scheduled_len
    )
