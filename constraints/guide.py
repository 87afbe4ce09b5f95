"""What a shard asks, token by token, of one output under a constraint.

matcher: what is legal | stop rule: where it may be ended | budget: what can still be completed

A guide is deterministic: two guides that were given the same tokens say the same. So an output
that was preempted goes on as it would have, and no other output can change what this one may say.
"""

import numpy as np

from constraints.errors import DoesNotFit, IllegalToken, TooComplex
from constraints.guiding.witness import Witness, kept, rest_of
from constraints.matcher import Bitmask, Language
from constraints.spec import Budget, StopRule
from constraints.vocabulary import Vocabulary

NO_STOPS = StopRule()
# Forced tokens that are taken at once.
MAX_FORCED = 64
# Where the length of the shortest text is asked for, whatever it is.
ANY_LEN = 1 << 20


class Guide:
    """One output's guide; used by one thread at a time. EngineFailed may come from every method."""

    def __init__(
        self,
        language: Language,
        vocabulary: Vocabulary,
        budget: Budget,
        stops: StopRule = NO_STOPS,
        stop_token_ids: tuple[int, ...] = (),
        *,
        takes_forced: bool = True,
    ) -> None:
        """`budget` is that of the whole output, also where a part of it is replayed.

        Raises Contradiction (with the stop strings), DoesNotFit and TooComplex.
        """
        self._language = language
        self._vocabulary = vocabulary
        self._budget = budget
        self._stops = stops
        self._ends = frozenset((*vocabulary.end_ids, *stop_token_ids))
        self._takes_forced = takes_forced
        self._is_exact = language.knows_distances
        self._matcher = language.matcher()
        self._num_tokens = 0
        self._is_ended = False
        self._checked: tuple[int, Witness | None] | None = None
        self._witness: Witness = () if budget.cuts else self._first_witness()

    def _first_witness(self) -> Witness:
        """The first completion that is found, or the first that fits."""
        max_len = self._budget.max_len
        witness = self._matcher.shortest(ANY_LEN)
        if witness is None:
            raise TooComplex("no text that satisfies the constraint was found within the limits")
        while len(witness) > max_len:
            shorter = self._matcher.shortest(len(witness) - 1)
            if shorter is None:
                raise DoesNotFit(len(witness), max_len)
            witness = shorter
        return witness

    @property
    def _remaining(self) -> int:
        return self._budget.max_len - self._num_tokens

    def fill(self, row: Bitmask) -> None:
        """Overwrite `row` with the tokens that may be drawn now."""
        if self.is_over:
            row.fill(0)
            self._set_ends(row)
            return
        self._matcher.fill_mask(row, None if self._budget.cuts else self._remaining)
        words = row.view(np.uint32)
        for token_id in self._ends:
            words[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        if not self._matcher.is_complete:
            return
        if self._num_tokens >= self._budget.min_len or not row.any():
            self._set_ends(row)

    def _set_ends(self, row: Bitmask) -> None:
        words = row.view(np.uint32)
        for token_id in self._ends:
            words[token_id >> 5] |= np.uint32(1 << (token_id & 31))

    def check(self, token_id: int) -> bool:
        """Whether the output can still be completed in its budget after this legal token.

        Changes nothing that is seen; what was found is kept for `advance`.
        """
        if token_id in self._ends:
            return self._matcher.is_complete
        if self._budget.cuts:
            return True
        return self._witness_after(token_id) is not None

    def _witness_after(self, token_id: int) -> Witness | None:
        if self._checked is None or self._checked[0] != token_id:
            self._checked = (token_id, self._find_witness(token_id))
        return self._checked[1]

    def _find_witness(self, token_id: int) -> Witness | None:
        left = self._remaining - 1
        if left < 0:
            return None
        rest = rest_of(self._witness, token_id, self._vocabulary)
        if rest is not None and len(rest) <= left:
            return rest
        found = kept(self._matcher, self._vocabulary, self._witness, token_id, left)
        if found is not None:
            return found
        if self._matcher.num_legal((token_id,)) == 0:
            return None
        ahead = self._matcher.fork()
        ahead.advance(token_id)
        return ahead.shortest(left)

    def advance(self, token_id: int) -> None:
        """Accept a token that was drawn and checked. Raises IllegalToken."""
        if token_id in self._ends:
            if not self._matcher.is_complete:
                raise IllegalToken(f"token {token_id} ends a text that is not complete")
            self._is_ended = True
            return
        witness = () if self._budget.cuts else self._witness_after(token_id)
        if witness is None:
            raise IllegalToken(f"no completion is known to fit after token {token_id}")
        self._matcher.advance(token_id)
        self._witness = witness
        self._checked = None
        self._num_tokens += 1

    def replay(self, token_ids: tuple[int, ...]) -> None:
        """Accept the output made before a preemption. Raises IllegalToken."""
        for token_id in token_ids:
            self.advance(token_id)

    @property
    def needed_len(self) -> int:
        """Tokens of the completion that is known to fit."""
        return len(self._witness)

    def witness_token(self) -> int | None:
        """The next token of the completion that is known to fit; None: the text may end here."""
        return self._witness[0] if self._witness else None

    def take_forced(self) -> tuple[int, ...]:
        """Accept the tokens that are forced now, within the budget, and answer them."""
        if not self._takes_forced or self._is_ended:
            return ()
        taken: list[int] = []
        forced = self._matcher.forced_bytes()
        tokens, _ = self._vocabulary.backend.tokenize_partial(forced) if forced else ([], b"")
        for token_id in tokens[:MAX_FORCED]:
            if self._remaining == 0 or not self.check(token_id):
                break
            self.advance(token_id)
            taken.append(token_id)
        return tuple(taken)

    @property
    def is_satisfied(self) -> bool:
        """The text so far satisfies the constraint, stop rule included."""
        return self._matcher.is_complete

    @property
    def is_over(self) -> bool:
        """It does, and nothing but the end may follow."""
        return self._is_ended or self._matcher.is_over

    def fork(self) -> "Guide":
        """Another guide at the same place."""
        twin = object.__new__(Guide)
        twin.__dict__.update(self.__dict__)
        twin._matcher = self._matcher.fork()
        return twin
