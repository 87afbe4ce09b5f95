"""Behind which tokens the slots of states stand, and which of them a step reads and writes.

    cached_len:  | 0 .. 8 | 1 token | 1 token |
    slot 5:      zeros      read      written   read ...
    slot 2:      written    written   read ...

A step reads the slot that stands at its first position and writes the other one, so what it began
with is there afterwards: a step that failed in the middle begins again, and a token that was drawn
again, or whose mask was late, is computed again from the slot before it. That holds for a step of
one token. Of a longer chunk the state before its last token is nowhere, so that this token cannot
be computed again alone, and its mask is waited for: see `SequenceStates.can_repeat`.

A slot knows nothing of drafts, which may be wrong. Those that were accepted are computed again with
what follows them:

    tokens:  | a | drafts: b c d | e | drafts ...
    steps:   | a   b c d |                         writes the state behind a; b and c are accepted
                 | b c   e   drafts |              reads it, and writes the one behind e

These are numbers on the host: slots are never read to find them. The router owns the slots.
"""

from dataclasses import dataclass, field

from model_server.errors import InvalidStep
from model_server.step import StateStep
from proto.contract import NUM_OWN_STATES, KeptState, NewSequence


@dataclass(slots=True, eq=False)
class SequenceStates:
    """The slots of one request.

    own:        two, of which each step writes one
    from_state: of another owner, read by the first step; None: it begins with zeros, at 0
    first_len:  the tokens that from_state stands behind
    kept:       boundaries of its prompt, and the slots that are to stand there
    own_lens:   by slot, the tokens that it stands behind; it stands nowhere before it is written
    can_draft:  whether a state can be written before a step's last tokens
    num_drafts: of the last step
    """

    request_id: int
    own: tuple[int, int]
    from_state: int | None
    first_len: int
    kept: tuple[KeptState, ...]
    own_lens: dict[int, int] = field(default_factory=dict)
    can_draft: bool = False
    num_drafts: int = 0

    def step(
        self,
        start: int,
        chunk_len: int,
        before: StateStep | None,
        *,
        before_is_late: bool,
        num_drafts: int = 0,
    ) -> StateStep:
        """What a step of these tokens, and drafts behind them, reads and writes. Raises InvalidStep
        without a state there.

        before: that of a step that has not ended; late, it is repeated
        """
        if before is None:
            read_id = self._standing_at(start - self.num_repeated(start))
        else:
            read_id = before.read_id if before_is_late else before.write_id
        first, second = self.own
        end = start + chunk_len
        kept = tuple(each for each in self.kept if start < each.position <= end)
        return StateStep(read_id, second if read_id == first else first, kept, num_drafts)

    def num_repeated(self, start: int) -> int:
        """Accepted drafts of the last step: tokens before `start` that no state knows."""
        stands = [
            each for each in self.own_lens.values() if start - self.num_drafts <= each <= start
        ]
        return start - max(stands, default=start)

    def can_repeat(self, step: StateStep, chunk_len: int) -> bool:
        """Whether the last token of a step can be computed again by a later one.

        A prompt's last chunk cannot, nor can tokens that a constraint forced, together with what is
        sampled behind them. A kept slot may be another's by then.
        """
        return chunk_len == 1 and (step.read_id is None or step.read_id in self.own)

    def _standing_at(self, start: int) -> int | None:
        if start == 0:
            return None
        for slot, num_tokens in self.own_lens.items():
            if num_tokens == start:
                return slot
        if self.from_state is not None and not self.own_lens and start == self.first_len:
            return self.from_state
        raise InvalidStep(f"request {self.request_id}: none of its states stands at {start}")


class StateBook:
    """The slots that are kept for later requests; and what a request may do with slots.

    num_states: of the pool; 0: the model has no states
    can_keep:   whether states are kept inside of a step's tokens
    """

    def __init__(self, num_states: int = 0, *, can_keep: bool = False) -> None:
        self._num_states = num_states
        self._can_keep = can_keep and num_states > 0
        self._kept_lens: dict[int, int] = {}

    def open(self, new: NewSequence) -> SequenceStates | None:
        """The slots of a new request; None: the model has no states. Raises InvalidStep.

        Changes nothing: see `enter`.
        """
        num_own = NUM_OWN_STATES if self._num_states else 0
        if len(set(new.state_ids)) != len(new.state_ids) or len(new.state_ids) != num_own:
            raise InvalidStep(
                f"request {new.request_id}: state_ids {list(new.state_ids)}: a request of this"
                f" model has {num_own} different ones"
            )
        if not self._can_keep and (new.kept_states or new.from_state is not None):
            raise InvalidStep(f"request {new.request_id}: this model keeps no states")
        kept_ids = [kept.state_id for kept in new.kept_states]
        for state_id in (*new.state_ids, *kept_ids):
            if not state_id < self._num_states:
                raise InvalidStep(
                    f"request {new.request_id}: state {state_id} is not one of {self._num_states}"
                )
        if not num_own:
            return None
        from_state = new.from_state
        if from_state is not None and self._kept_lens.get(from_state) != new.cached_len:
            raise InvalidStep(
                f"request {new.request_id}: state {from_state} does not stand at cached_len"
                f" {new.cached_len}"
            )
        first, second = new.state_ids
        return SequenceStates(
            new.request_id,
            (first, second),
            from_state,
            new.cached_len,
            new.kept_states,
            can_draft=self._can_keep,
        )

    def enter(self, states: SequenceStates) -> None:
        """The request comes: what it writes stands nowhere until then."""
        for state_id in (*states.own, *[kept.state_id for kept in states.kept]):
            self._kept_lens.pop(state_id, None)

    def end(self, states: SequenceStates, step: StateStep, end: int) -> None:
        """A step of the request has ended, behind so many of its tokens and before its drafts."""
        states.own_lens[step.write_id] = end
        states.num_drafts = step.num_drafts
        for kept in step.kept:
            self._kept_lens[kept.state_id] = kept.position

    def clear(self) -> None:
        """Forget what is kept."""
        self._kept_lens.clear()
