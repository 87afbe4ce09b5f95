"""A shard without tensors that remembers what every KV slot holds, and checks all that it reads.

The KV of a position depends on all tokens up to it, so a slot holds that prefix. A step reads the
slots of all positions before the ones it computes: a block that was shared by mistake, freed too
early, handed out twice or never computed shows as a wrong prefix, whoever is to blame.

Its tokens are a function of the prefix alone, as those of a real shard are of prefix and seed, so
`expected_output` knows what a request must get whatever happens to it on the way. Under a
constraint some tokens are forced, so that a draw brings a run of them, and some draws are late.
Where it may, it computes drafts, some of them wrong: these leave KV that nobody may read.

Of a model with states a slot for states holds the prefix at whose end it stands.

An image shows a token of its own in each of its places, whatever ids stand for it there.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from proto.contract import (
    Batch,
    FinishReason,
    Generation,
    Image,
    KeptState,
    NewSequence,
    RunningUpdate,
    SampledToken,
    StepResult,
)
from router.request.request import Constraint, GenerateRequest

Prefix = tuple[int, ...]
_POISON: Prefix = (-9,)
# A token that is never drawn.
_WRONG = 9


def shown(token_ids: Prefix, images: Iterable[Image]) -> Prefix:
    """The tokens that the model sees, by the last byte of an image's digest."""
    for image in images:
        seen = (image.digest[-1],) * image.span_len
        token_ids = token_ids[: image.start] + seen + token_ids[image.stop :]
    return token_ids


def draw(prefix: Prefix, seed: int) -> tuple[int, bool]:
    """The token that follows a prefix, and whether it is an end-of-sequence token."""
    noise = crc32(bytes(prefix), seed)
    return noise & 1, (noise >> 1) % 9 == 0


def expected_output(request: GenerateRequest, seed: int) -> tuple[Prefix, FinishReason]:
    """What a request gets from a shard that it has for itself."""
    tokens = given = shown(request.prompt_ids, request.images) + request.output_ids
    reason = None
    while reason is None:
        made, reason = draw_run(request, tokens, seed)
        tokens += made
    return tokens[len(given) :], reason


def draw_run(
    request: GenerateRequest, tokens: Prefix, seed: int
) -> tuple[Prefix, FinishReason | None]:
    """A token, and what is forced behind it; that may go beyond a pause."""
    first = len(tokens)
    num_left = 1
    reason = None
    while num_left and reason is None:
        token_id, ends = draw(tokens, seed)
        tokens += (token_id,)
        num_left -= 1
        if request.constraint is not None and len(tokens) == first + 1:
            num_left = num_forced(tokens, seed)
        reason = _finish_reason(request, len(tokens) - len(request.prompt_ids), ends)
    num_outputs = len(tokens) - len(request.prompt_ids)
    if reason is None and num_outputs >= request.last_len:
        reason = FinishReason.PAUSED
    return tokens[first:], reason


def num_late(prefix: Prefix, seed: int) -> int:
    """How many draws from a prefix bring nothing, under a constraint, before one does."""
    noise = crc32(bytes(prefix), seed) >> 16
    return (0, 0, 0, 0, 1, 3)[noise % 6]


def draft(prefix: Prefix, seed: int, most: int) -> Prefix:
    """At most so many guesses of what follows; none that is right is an end."""
    noise = crc32(bytes(prefix), seed) >> 12
    num_right = (0, 1, 2, 4)[noise % 4]
    num_wrong = (0, 1, 3)[noise // 4 % 3]
    guesses: Prefix = ()
    while len(guesses) < num_right:
        token_id, ends = draw(prefix + guesses, seed)
        if ends:
            break
        guesses += (token_id,)
    return (*guesses, *(_WRONG,) * num_wrong)[:most]


def num_forced(prefix: Prefix, seed: int) -> int:
    """How many tokens follow the last one undrawn, under a constraint."""
    noise = crc32(bytes(prefix), seed) >> 8
    return (0, 0, 1, 2, 5)[noise % 5]


@dataclass(slots=True)
class _Sequence:
    request: GenerateRequest
    tokens: Prefix
    computed_len: int
    block_ids: list[int]
    is_decoding: bool = False
    drafts: Prefix = ()
    num_late: int = 0
    has_ended: bool = False
    state_ids: tuple[int, ...] = ()
    kept_states: tuple[KeptState, ...] = ()
    # Slots that it may read, by where they stand.
    standing: dict[int, int] = field(default_factory=dict)
    # Of its last step: no state knows those that were accepted, which are computed again.
    num_drafts: int = 0


@dataclass(slots=True)
class RunStep:
    """A step that ran but is not answered: its writes may still land."""

    result: StepResult
    writes: dict[int, Prefix] = field(default_factory=dict)


class KvShard:
    """Runs batches in order. `is_ahead`: it is given steps before it has answered earlier ones.

    `runs_late`: a sequence that ended at step n is computed in step n + 1 all the same when that
    names it, as a shard does that looks at its draws one step late; not under a constraint or with
    drafts, where it must know the last draw in any case.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        seed: int,
        *,
        is_ahead: bool,
        runs_late: bool,
        max_drafts: int = 0,
        num_states: int = 0,
    ) -> None:
        self._num_blocks = num_blocks
        self._num_states = num_states
        self._block_size = block_size
        self._seed = seed
        self._is_ahead = is_ahead
        self._runs_late = runs_late
        self._max_drafts = max_drafts
        self._slots: dict[int, Prefix] = {}
        self._states: dict[int, Prefix] = {}
        # What each step reads and writes that is not answered.
        self._states_in_flight: deque[tuple[set[int], set[int]]] = deque()
        self._sequences: dict[int, _Sequence] = {}
        # request id -> number of outputs after which its row fails
        self.faults: dict[int, int] = {}

    @property
    def held_ids(self) -> set[int]:
        """Requests that go on."""
        return {key for key, sequence in self._sequences.items() if not sequence.has_ended}

    def lose_everything(self) -> None:
        """As after a restart."""
        self._slots.clear()
        self._states.clear()
        self._states_in_flight.clear()
        self._sequences.clear()

    def run(self, batch: Batch) -> RunStep:
        """Computes a step; checks that the batch is consistent and that every read is right."""
        self._keep(batch)
        for new in batch.new:
            self._enter(new)
        updates = {change.request_id: change for change in batch.updates}
        assert len(updates) == len(batch.updates)
        assert updates.keys() <= set(batch.running_ids)
        num_tokens = {new.request_id: new.chunk_len for new in batch.new}
        num_decode_tokens = 0
        for request_id in batch.running_ids:
            if batch.has_work and request_id in self._sequences:
                count, decodes = self._grow(request_id, updates.get(request_id))
                num_tokens[request_id] = count
                num_decode_tokens += count * decodes
        assert sum(num_tokens.values()) <= batch.num_tokens
        assert num_decode_tokens <= batch.num_decode_tokens
        is_known = not self._is_ahead and not self._max_drafts
        if self._sequences.keys() >= set(batch.running_ids) and is_known:
            assert sum(num_tokens.values()) == batch.num_tokens
            assert num_decode_tokens == batch.num_decode_tokens
        writes: dict[int, Prefix] = {}
        self._move_states(num_tokens if self._num_states else {})
        for request_id, count in num_tokens.items():
            self._write(self._sequences[request_id], count, writes)
        self._slots.update(writes)
        generations = [
            generation
            for request_id, count in num_tokens.items()
            if count and (generation := self._read(request_id, count, writes)) is not None
        ]
        # Of a token alone a shard may say so in either way.
        plain = [
            (each.request_id, each.tokens[0].token_id, each.tokens[0].logprob)
            for each in generations
            if each.request_id % 2
            and each == Generation(each.request_id, each.tokens[:1])
            and each.tokens
        ]
        plain_ids = {row[0] for row in plain}
        others = tuple([each for each in generations if each.request_id not in plain_ids])
        held_ids = tuple(sorted(self.held_ids))
        return RunStep(StepResult(batch.step_id, others, held_ids, plain=plain), writes)

    def answer(self, step: RunStep) -> StepResult:
        """The step's answer; its writes land again, for until now nobody else may use its slots."""
        self._slots.update(step.writes)
        self._states_in_flight.popleft()
        return step.result

    def _keep(self, batch: Batch) -> None:
        running_ids = set(batch.running_ids)
        dropped_ids = set(batch.dropped_ids)
        assert not running_ids & dropped_ids
        assert self.held_ids <= running_ids | dropped_ids, "a request is neither kept nor dropped"
        if not self._is_ahead:
            assert self.held_ids == running_ids | dropped_ids, "the shard does not hold these"
        for request_id in list(self._sequences):
            if request_id not in batch.running_ids:
                del self._sequences[request_id]

    def _enter(self, new: NewSequence) -> None:
        assert new.request_id not in self._sequences, "a request entered twice"
        assert new.chunk_len >= 1
        assert new.cached_len + new.chunk_len <= len(new.token_ids)
        assert not new.logprobs.prompt or new.cached_len < new.logprobs.first_scored
        self._sequences[new.request_id] = _Sequence(
            request=_request_of(new),
            tokens=shown(new.token_ids, new.images),
            computed_len=new.cached_len,
            block_ids=list(new.block_ids),
            state_ids=new.state_ids,
            kept_states=new.kept_states,
            standing={} if new.from_state is None else {new.cached_len: new.from_state},
        )
        assert len(set(new.state_ids)) == len(new.state_ids) == (2 if self._num_states else 0)
        for kept in new.kept_states:
            assert new.cached_len < kept.position < len(new.token_ids)
            assert kept.position % self._block_size == 0
        slots = {*new.state_ids, *(kept.state_id for kept in new.kept_states)}
        for read, written in self._states_in_flight:
            assert not slots & (read | written), "a slot is used by a step that is not answered"
            assert new.from_state not in written, "a state is read that may fail to be written"

    def _grow(self, request_id: int, update: RunningUpdate | None) -> tuple[int, bool]:
        sequence = self._sequences[request_id]
        decodes = sequence.is_decoding
        sequence.drafts = ()
        if update is not None:
            sequence.block_ids += update.block_ids
        if update is None or update.chunk_len is None:
            return int(decodes), decodes
        if not decodes:
            return update.chunk_len, decodes
        num_left = len(sequence.tokens) - sequence.computed_len
        if update.chunk_len > num_left:
            sequence.drafts = self._draft(sequence, update.chunk_len - num_left)
        return min(update.chunk_len, num_left + len(sequence.drafts)), decodes

    def _draft(self, sequence: _Sequence, most: int) -> Prefix:
        assert most <= self._max_drafts or sequence.request.constraint is not None
        num_outputs = len(sequence.tokens) - len(sequence.request.prompt_ids)
        room_len = len(sequence.block_ids) * self._block_size - len(sequence.tokens)
        num_left = sequence.request.last_len - num_outputs
        most = min(most, self._max_drafts, num_left - 1, room_len)
        return draft(sequence.tokens, self._seed, max(0, most))

    def _slot(self, sequence: _Sequence, position: int) -> int:
        block_id = sequence.block_ids[position // self._block_size]
        assert 0 <= block_id < self._num_blocks
        return block_id * self._block_size + position % self._block_size

    def _move_states(self, num_tokens: dict[int, int]) -> None:
        """Every sequence of the step reads the state at its first position and writes another."""
        read: set[int] = set()
        writes: dict[int, Prefix] = {}
        for request_id, count in num_tokens.items():
            sequence = self._sequences[request_id]
            start = sequence.computed_len
            if not count:
                continue
            read_id = None
            stop = start + count - len(sequence.drafts)
            if start:
                first = max(each for each in sequence.standing if each <= start)
                assert first >= start - sequence.num_drafts, f"{request_id} has lost its state"
                read_id = sequence.standing[first]
                held = self._states.get(read_id)
                assert held == sequence.tokens[:first], f"{request_id} begins with a foreign state"
                read.add(read_id)
                sequence.standing = {first: read_id}
            write_id = next(each for each in sequence.state_ids if each != read_id)
            sequence.standing[stop] = write_id
            sequence.num_drafts = len(sequence.drafts)
            for position, state_id in (
                (stop, write_id),
                *(kept for kept in sequence.kept_states if start < kept.position <= stop),
            ):
                assert 0 <= state_id < self._num_states
                assert state_id not in writes, "two rows of a step write one state"
                writes[state_id] = sequence.tokens[:position]
        assert not read & writes.keys(), "a state is written while it is read"
        self._states.update(writes)
        self._states_in_flight.append((read, {*writes}))

    def _write(self, sequence: _Sequence, count: int, writes: dict[int, Prefix]) -> None:
        start = sequence.computed_len
        tokens = sequence.tokens + sequence.drafts
        sequence.computed_len += count - len(sequence.drafts)
        assert sequence.computed_len <= len(sequence.tokens), "a token that nobody drew"
        for position in range(start, start + count):
            slot = self._slot(sequence, position)
            assert slot not in writes, "two rows of a step write one slot"
            writes[slot] = tokens[: position + 1]

    def _read(self, request_id: int, count: int, writes: dict[int, Prefix]) -> Generation | None:
        sequence = self._sequences[request_id]
        request = sequence.request
        prompt_len = len(request.prompt_ids)
        start = sequence.computed_len - count + len(sequence.drafts)
        for position in range(sequence.computed_len):
            held = self._slots.get(self._slot(sequence, position))
            assert held == sequence.tokens[: position + 1], f"{request_id} reads foreign KV"
        if self.faults.get(request_id, -1) == len(sequence.tokens) - prompt_len:
            for position in range(start, sequence.computed_len):
                slot = self._slot(sequence, position)
                self._slots[slot] = writes[slot] = _POISON
            for state_id in sequence.standing.values():
                if state_id in sequence.state_ids:
                    self._states[state_id] = _POISON
            del self._sequences[request_id]
            return Generation(request_id, error="not a number")
        logprobs: tuple[float, ...] = ()
        if request.logprobs.prompt:
            stop = min(sequence.computed_len, prompt_len)
            first = max(start, request.logprobs.first_scored)
            logprobs = tuple(float(position) for position in range(first, stop))
        if sequence.computed_len < len(sequence.tokens):
            return Generation(request_id, prompt_logprobs=logprobs) if logprobs else None
        sequence.is_decoding = True
        if request.constraint is not None:
            # Where a state stands at its last token.
            is_alone = count == 1 + len(sequence.drafts) and start in sequence.standing
            may_be_late = not self._num_states or is_alone
            if may_be_late and sequence.num_late < num_late(sequence.tokens, self._seed):
                sequence.num_late += 1
                self._forget(sequence, len(sequence.drafts), writes)
                sequence.computed_len -= 1
                return Generation(request_id, prompt_logprobs=logprobs, is_late=True)
            sequence.num_late = 0
        generation = self._generate(request_id, sequence, writes)
        generation = generation._replace(prompt_logprobs=logprobs)
        if generation.finish_reason is not None:
            sequence.has_ended = True
            knows_draws = request.constraint is not None or self._max_drafts > 0
            if not self._runs_late or knows_draws:
                del self._sequences[request_id]
        return generation

    def _generate(
        self, request_id: int, sequence: _Sequence, writes: dict[int, Prefix]
    ) -> Generation:
        tokens, reason = self._draw(sequence)
        if not sequence.drafts:
            return Generation(request_id, tokens, reason)
        num_accepted = 0
        for token, guess in zip(tokens[:-1], sequence.drafts, strict=False):
            if token.token_id != guess:
                break
            num_accepted += 1
        sequence.computed_len += num_accepted
        self._forget(sequence, len(sequence.drafts) - num_accepted, writes)
        return Generation(
            request_id,
            tokens,
            reason,
            num_drafts=len(sequence.drafts),
            num_accepted=num_accepted,
        )

    def _forget(self, sequence: _Sequence, num_drafts: int, writes: dict[int, Prefix]) -> None:
        """Drafts that are no tokens: the next step writes their slots, always after this one."""
        for offset in range(num_drafts):
            del writes[self._slot(sequence, sequence.computed_len + offset)]

    def _draw(self, sequence: _Sequence) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
        made, reason = draw_run(sequence.request, sequence.tokens, self._seed)
        while reason is None and made == sequence.drafts[: len(made)]:
            more, reason = draw_run(sequence.request, sequence.tokens + made, self._seed)
            made += more
        sequence.tokens += made
        return tuple(SampledToken(token_id, -1.0) for token_id in made), reason


def _request_of(new: NewSequence) -> GenerateRequest:
    """The request as far as a shard knows it; the output made before counts as its own."""
    return GenerateRequest(
        prompt_ids=shown(new.token_ids, new.images)[: new.prompt_len],
        prompt_text="",
        sampling=new.sampling,
        stop=new.stop,
        logprobs=new.logprobs,
        constraint=None if new.constraint is None else Constraint(new.constraint.spec),
        pause_after=new.pause_len,
    )


def _finish_reason(request: GenerateRequest, num_outputs: int, ends: bool) -> FinishReason | None:
    if ends and not request.stop.ignore_eos:
        return FinishReason.EOS
    if num_outputs >= request.stop.max_new_tokens:
        return FinishReason.LENGTH
    return None
