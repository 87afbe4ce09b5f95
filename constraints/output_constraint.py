"""The state of one output under a constraint: its masks, its budget, its known completion.

matcher: what is legal | stop rule: where it may be ended | budget: what can still be completed

An output state is deterministic: two states that were given the same tokens say the same. So an
output that was preempted goes on as it would have, and no other output can change what this one
may say.
"""

import numpy as np

from constraints.bitmask import Bitmask, allowed_ids, clear_bits, set_bits
from constraints.errors import (
    ConstraintError,
    DoesNotFit,
    IllegalToken,
    TooComplex,
)
from constraints.grammars.stop_emptiness import leaves_nothing
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.bytewise import byte_vocabulary
from constraints.guiding.completion import (
    KnownCompletion,
    completes,
    narrow,
    next_witness,
    spelled,
    tails_of,
)
from constraints.guiding.search import is_provably_dead
from constraints.guiding.stops import StoppedMatcher
from constraints.matcher import Language, Matcher
from constraints.spec import Budget, StopRule
from constraints.vocabulary import Vocabulary
from constraints.without_stop_strings import all_cut, listed_stops, without_stop_strings

NO_STOPS = StopRule()
# Forced tokens that are taken at once.
MAX_FORCED = 64
# Where the length of the shortest text is asked for, whatever it is.
ANY_LEN = 1 << 20


class OutputConstraintState:
    """One output's output state; used by one thread at a time. EngineFailed may come from every
    method.

    Where masks know distances they keep to the budget by themselves. Everywhere else the output
    state holds a known completion, tokens that complete the text within the budget, and accepts no
    token after which it has none. It holds one for a text that may be cut, too, where masks follow
    bytes which tokens cannot all spell.

        output:   | drawn | forced | drawn | forced ......... |
        replayed: |                            ^ cut here: | due |
    Where a replayed output breaks off within a forced run, the rest of that run is due: the matcher
    stands behind it, and nothing else may be drawn.
    """

    def __init__(
        self,
        language: Language,
        vocabulary: Vocabulary,
        budget: Budget,
        stops: StopRule = NO_STOPS,
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
        known = [each for each in stops.token_ids if each < len(vocabulary.tokens)]
        self._ends = frozenset((*vocabulary.end_ids, *known))
        # A stop token ends the output, so that it cannot be used as text.
        self._barred = frozenset(each for each in known if vocabulary.tokens[each])
        self._takes_forced = takes_forced
        self._matcher = self._new_matcher()
        has_stops = isinstance(self._matcher, StoppedMatcher)
        self._max_len = ANY_LEN if budget.cuts else budget.max_len
        # Stop strings lead into dead ends, whatever the budget is and whoever watches it.
        may_run_out = not budget.cuts or not alphabet_of(vocabulary).spells_utf8
        self._needs_witness = has_stops or (may_run_out and not language.knows_distances)
        self._num_tokens = 0
        self._is_ended = False
        self._due: tuple[int, ...] = ()
        self._checked: tuple[int, KnownCompletion | None] | None = None
        # Searches that found nothing; one that does takes back one of them.
        self._num_failed = 0
        begins = self._needs_witness or not budget.cuts
        self._known_completion = self._first_witness() if begins else ()

    def _new_matcher(self) -> Matcher:
        """A matcher at the beginning of an output."""
        if not (self._stops.strings or self._barred):
            return self._language.matcher()
        return StoppedMatcher(self._language, self._vocabulary, self._stops, self._barred)

    def _first_witness(self) -> KnownCompletion:
        """The first completion that is found, or the first that fits."""
        known_completion = self._uncut_witness() or self._matcher.shortest(ANY_LEN)
        if known_completion is None:
            raise self._none_found()
        while len(known_completion) > self._max_len:
            shorter = self._matcher.shortest(len(known_completion) - 1)
            if shorter is None:
                raise DoesNotFit(len(known_completion), self._max_len)
            known_completion = shorter
        return known_completion

    def _uncut_witness(self) -> KnownCompletion | None:
        """The shortest text without stop strings, where the shortest one of all meets one."""
        if not self._stops.strings:
            return None
        plain = self._language.matcher().shortest(ANY_LEN)
        if plain is not None and completes(self._matcher, self._vocabulary, plain):
            return None
        language = without_stop_strings(self._language, self._stops)
        found = None if language is None else language.matcher().shortest(ANY_LEN)
        is_good = found is not None and completes(self._matcher, self._vocabulary, found)
        return found if is_good else None

    def _none_found(self) -> ConstraintError:
        if not isinstance(self._matcher, StoppedMatcher):
            return TooComplex("no text that satisfies the constraint was found within the limits")
        if leaves_nothing(self._language, self._stops) or self._is_barren(self._matcher):
            return all_cut(self._stops)
        return TooComplex(
            "no text was found within the limits that satisfies the constraint and meets none of"
            f" {listed_stops(self._stops)} before its end"
        )

    def _is_barren(self, matcher: StoppedMatcher) -> bool:
        bytewise = matcher.bytewise()
        if bytewise is None:
            return is_provably_dead(matcher, self._vocabulary)
        return is_provably_dead(bytewise, byte_vocabulary())

    @property
    def _remaining(self) -> int:
        return self._max_len - self._num_tokens

    @property
    def _is_tight(self) -> bool:
        """There is room for the known completion and for nothing else."""
        return self._needs_witness and 0 < self._remaining <= len(self._known_completion)

    def fill(self, row: Bitmask) -> None:
        """Overwrite `row` with the tokens that may be drawn now."""
        if self._due:
            row.fill(0)
            set_bits(row, self._due[:1])
            return
        if self.is_over:
            row.fill(0)
            set_bits(row, self._ends)
            return
        self._matcher.fill_mask(row, self._room)
        if self._is_tight:
            clear_bits(row, self._ends)
            narrow(row, self._matcher, self._vocabulary, self._known_completion, self._ends)
        if not self._matcher.is_complete:
            return
        if self._num_tokens < self._budget.min_len:
            clear_bits(row, self._ends)
            if row.any():
                return
        set_bits(row, self._ends)

    @property
    def is_quick(self) -> bool:
        """Whether `fill` takes microseconds now, and waits for no other thread."""
        return not self._is_tight and self._matcher.is_quick(self._room)

    @property
    def _room(self) -> int | None:
        """Tokens that are left for the text; None: it may be cut."""
        return None if self._budget.cuts else self._remaining

    @property
    def is_equipped(self) -> bool:
        """Whether `check` has what it may search with, as has whoever begins an output."""
        return self._num_tokens == 0 or not self._needs_witness or self._language.is_equipped

    def prepare_search(self) -> None:
        """Make what `check` may search with; it takes as long as compiling."""
        if not self.is_equipped:
            self._language.prepare_search()

    def check(self, token_id: int) -> bool:
        """Whether the output can still be completed in its budget after this legal token.

        Changes nothing that is seen; what was found is kept for `advance`.
        """
        if self._due:
            return token_id == self._due[0]
        if token_id in self._ends:
            return self._matcher.is_complete
        if not self._needs_witness:
            return self._remaining > 0
        return self._witness_after(token_id) is not None

    def _witness_after(self, token_id: int) -> KnownCompletion | None:
        if self._checked is None or self._checked[0] != token_id:
            self._checked = (token_id, self._find_witness(token_id))
        return self._checked[1]

    def _find_witness(self, token_id: int) -> KnownCompletion | None:
        left = self._remaining - 1
        if left < 0 or self._is_ended:
            return None
        found = next_witness(
            self._matcher, self._vocabulary, self._known_completion, token_id, left
        )
        if found is not None:
            return found
        if self._matcher.num_legal((token_id,)) == 0:
            return None
        ahead = self._matcher.fork()
        ahead.advance(token_id)
        tails = tuple(tails_of(self._known_completion, left))
        found = ahead.shortest(left, tails, self._num_failed)
        self._num_failed = self._num_failed + 1 if found is None else max(0, self._num_failed - 1)
        return found

    def advance(self, token_id: int) -> None:
        """Accept a token that was drawn and checked. Raises IllegalToken."""
        if self._due:
            if token_id != self._due[0]:
                raise IllegalToken(f"token {token_id} is not {self._due[0]}, which is forced")
            self._due = self._due[1:]
            return
        if token_id in self._ends:
            if not self._matcher.is_complete:
                raise IllegalToken(f"token {token_id} ends a text that is not complete")
            self._is_ended = True
            return
        known_completion = self._witness_after(token_id) if self._needs_witness else ()
        if known_completion is None:
            raise IllegalToken(f"no completion is known to fit after token {token_id}")
        self._matcher.advance(token_id)
        self._known_completion = known_completion
        self._checked = None
        self._num_tokens += 1

    def replay(self, token_ids: tuple[int, ...]) -> None:
        """Accept output that was made before, with its forced runs. Raises IllegalToken.

        Tokens that were drawn where a run could have been taken are followed, too.
        """
        num_done = 0
        while num_done < len(token_ids):
            self.advance(token_ids[num_done])
            num_done += 1
            num_done += self._replay_run(token_ids[num_done:])

    def _replay_run(self, token_ids: tuple[int, ...]) -> int:
        """Accept the forced run that `token_ids` begin with, or are the beginning of."""
        if not self._takes_forced or self.is_over or not self._forced_run():
            return 0
        ahead = self.fork()
        run = ahead.take_forced()
        num_known = min(len(run), len(token_ids))
        if run[:num_known] != token_ids[:num_known]:
            return 0
        self.__dict__.update(ahead.__dict__)
        self._due = run[num_known:]
        return num_known

    @property
    def needed_len(self) -> int:
        """Tokens of the completion that is known to fit; asked for by `constraints.worker`."""
        return len(self._known_completion)

    @property
    def has_dead_ends(self) -> bool:
        """Whether `fill` may leave tokens that `check` refuses."""
        return self._needs_witness

    def witness_token(self) -> int | None:
        """The next token of the completion that is known to fit; None: the text may end here."""
        if self._due:
            return self._due[0]
        known_completion = (
            self._known_completion
            if self._needs_witness
            else self._matcher.shortest(self._remaining)
        )
        return known_completion[0] if known_completion else None

    def take_forced(self) -> tuple[int, ...]:
        """Accept the tokens that are forced now, within the budget, and answer them."""
        if self._due:
            due, self._due = self._due, ()
            return due
        taken: list[int] = []
        while self._takes_forced and not self.is_over and not self._is_full(taken):
            run = self._forced_run()
            if not self._has_room_for(run):
                break
            for token_id in run:
                if self._is_full(taken) or not self.check(token_id):
                    return tuple(taken)
                self.advance(token_id)
                taken.append(token_id)
            if not run:
                break
        return tuple(taken)

    def _is_full(self, taken: list[int]) -> bool:
        """No more can be taken at once, or none at all: a text that may be cut ends here."""
        return len(taken) == MAX_FORCED or self._num_tokens >= self._budget.max_len

    def _has_room_for(self, run: KnownCompletion) -> bool:
        """Whether the text can be completed in the budget behind a forced run.

        Nobody drew it from a mask that knows distances, and the model's spelling may be longer
        than need be. Where there is a known completion, `check` looks at every token.
        """
        if not run or self._needs_witness or self._budget.cuts:
            return True
        left = self._remaining - len(run)
        if left < 0:
            return False
        ahead = self._matcher.fork()
        for token_id in run:
            ahead.advance(token_id)
        return ahead.is_complete or ahead.shortest(left) is not None

    def _forced_run(self) -> KnownCompletion:
        """Tokens that must follow: spelled as the model would, or the one that is left."""
        forced = self._matcher.forced_bytes()
        tokens, rest = self._vocabulary.spell_beginning(forced) if forced else ([], b"")
        if rest and self._ends_with(forced):
            return spelled(forced, self._vocabulary) or ()
        if tokens or not self._is_tight:
            return self._vocabulary.beginning(forced, tokens)
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        self.fill(row)
        legal = allowed_ids(row).tolist()
        return tuple(legal) if len(legal) == 1 and legal[0] not in self._ends else ()

    def _ends_with(self, text: bytes) -> bool:
        """Nothing can follow this text, so that its last token is no beginning of a longer one."""
        tokens = spelled(text, self._vocabulary)
        if tokens is None or self._matcher.num_legal(tokens) < len(tokens):
            return False
        ahead = self._matcher.fork()
        for token_id in tokens:
            ahead.advance(token_id)
        return ahead.is_over

    @property
    def is_satisfied(self) -> bool:
        """The text so far satisfies the constraint, stop rule included."""
        return not self._due and self._matcher.is_complete

    @property
    def is_over(self) -> bool:
        """It does, and nothing but the end may follow."""
        return not self._due and (self._is_ended or self._matcher.is_over)

    def fork(self) -> "OutputConstraintState":
        """Another output state at the same place."""
        twin = object.__new__(OutputConstraintState)
        twin.__dict__.update(self.__dict__)
        twin._matcher = self._matcher.fork()
        return twin

    def restart(self) -> "OutputConstraintState":
        """Another output state at the beginning of an output; asked of one that has not left it.

        It has no engine in common with this one, where `fork` may share one and its lock; any
        number of threads may ask at the same time.
        """
        if self._num_tokens or self._is_ended:
            raise AssertionError("a output_state that has moved cannot be started again")
        twin = object.__new__(OutputConstraintState)
        twin.__dict__.update(self.__dict__)
        twin._matcher = self._new_matcher()
        return twin
