"""The state of one output under a constraint: its masks, its budget, its known completion.

matcher: what is legal | stop rule: where it may be ended | budget: what can still be completed

The state is deterministic: two states with the same tokens allow the same next tokens. So a
preempted output continues as it would have, and no other output affects it.
"""

import json
from copy import copy
from dataclasses import replace

from constraints.bitmask import Bitmask, clear_bits, set_bits
from constraints.engine import GrammarLanguage
from constraints.errors import DoesNotFit, IllegalToken, TooComplex
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.completion import (
    KnownCompletion,
    keep_tokens_that_shorten,
    next_completion,
    spelled,
    tails_of,
)
from constraints.guiding.stops import StoppedMatcher
from constraints.matcher import ANY_LEN, Language, Matcher
from constraints.spec import Budget, StopRule
from constraints.vocabulary import Vocabulary, is_mark

NO_STOPS = StopRule()
# The most forced tokens that are taken at once.
MAX_FORCED = 64


class OutputConstraintState:
    """The state of one output; used by one thread at a time. Every method may raise EngineFailed.

    Masks that know distances keep to the budget by themselves. Otherwise the state holds a known
    completion, tokens that complete the text within the budget, and accepts no token behind which
    it has none. It also holds one for a text that may be truncated, if masks follow bytes that
    tokens cannot all spell.

        output:   | drawn | forced | drawn | forced ......... |
        replayed: |                            ^ ends here: | due |
    If a replayed output ends within a forced run, the rest of that run is due: the matcher has
    accepted it already, and nothing else may be drawn.
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
        """`budget` is that of the whole output, including a part that is replayed.

        Raises Contradiction (with the stop strings), DoesNotFit and TooComplex.
        """
        self._language = language
        self._vocabulary = vocabulary
        self._budget = budget
        self._stops = stops
        known = [each for each in stops.token_ids if each < len(vocabulary.tokens)]
        self._ends = frozenset((*vocabulary.end_ids, *known))
        # A stop token ends the output, so it is no part of the text; special ones never are.
        texts = ((each, vocabulary.tokens[each]) for each in known)
        self._barred = frozenset(each for each, text in texts if text and not is_mark(text))
        self._takes_forced = takes_forced
        self._matcher = self._new_matcher()
        has_stops = isinstance(self._matcher, StoppedMatcher)
        self._max_len = ANY_LEN if budget.may_truncate else budget.max_len
        # Stop strings lead to dead ends, whatever the budget is.
        may_run_out = not budget.may_truncate or not alphabet_of(vocabulary).spells_utf8
        is_led = may_run_out and not language.knows_distances
        self._needs_completion = has_stops or language.may_have_dead_ends or is_led
        self._num_tokens = 0
        self._is_ended = False
        self._due: tuple[int, ...] = ()
        self._checked: tuple[int, KnownCompletion | None] | None = None
        # Failed searches; each successful one subtracts one.
        self._num_failed = 0
        begins = self._needs_completion or not budget.may_truncate
        self._known_completion = self._first_completion() if begins else ()

    def begin_within(self, max_len: int, min_len: int) -> None:
        """Set the budget that is left where the text begins behind other tokens of the output.

        Only for a state that has accepted no token, and whose known completion fits.
        """
        self._budget = replace(self._budget, max_len=max_len, min_len=min_len)
        self._max_len = ANY_LEN if self._budget.may_truncate else max_len

    def is_end(self, token_id: int) -> bool:
        """Whether the token ends the output."""
        return token_id in self._ends

    def _new_matcher(self) -> Matcher:
        """A matcher at the start of an output."""
        if not (self._stops.strings or self._barred):
            return self._language.matcher()
        return StoppedMatcher(self._language, self._vocabulary, self._stops, self._barred)

    def _first_completion(self) -> KnownCompletion:
        """The first completion found that fits into the budget."""
        known_completion = self._matcher.shortest(ANY_LEN)
        if known_completion is None:
            raise self._none_found()
        while len(known_completion) > self._max_len:
            shorter = self._matcher.shortest(len(known_completion) - 1)
            if shorter is None:
                raise DoesNotFit(len(known_completion), self._max_len)
            known_completion = shorter
        return known_completion

    def _none_found(self) -> TooComplex:
        reason = "no text that satisfies the constraint was found within the limits"
        if isinstance(self._matcher, StoppedMatcher):
            quoted = [json.dumps(each, ensure_ascii=False) for each in self._stops.strings]
            stops = f"the stop strings {', '.join(quoted)}" if quoted else "the stop tokens"
            return TooComplex(f"{reason} that meets none of {stops} before its end: leave them out")
        language = self._language
        return TooComplex(
            reason + (language.hint_without_text if isinstance(language, GrammarLanguage) else "")
        )

    @property
    def _remaining(self) -> int:
        return self._max_len - self._num_tokens

    @property
    def _is_tight(self) -> bool:
        """Whether the known completion needs all tokens that are left."""
        return self._needs_completion and 0 < self._remaining <= len(self._known_completion)

    def fill(self, row: Bitmask) -> None:
        """Overwrite `row` with the tokens that may be drawn now.

        Behind the first token also prepares what their check may need, once for each language.
        """
        if self._needs_completion and self._num_tokens:
            self._language.prepare_search()
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
            keep_tokens_that_shorten(
                row, self._matcher, self._vocabulary, self._known_completion, self._ends
            )
        if not self._matcher.is_complete:
            return
        if self._num_tokens < self._budget.min_len:
            clear_bits(row, self._ends)
            if row.any():
                return
        set_bits(row, self._ends)

    @property
    def is_quick(self) -> bool:
        """Whether `fill` takes microseconds now and does not wait for other threads."""
        return not self._is_tight and self._matcher.is_quick(self._room)

    @property
    def _room(self) -> int | None:
        """The tokens left for the text; None: it may be truncated."""
        return None if self._budget.may_truncate else self._remaining

    def check(self, token_id: int) -> bool:
        """Whether the output can still be completed in its budget after this legal token.

        Does not change the state; the completion found is kept for `advance`.
        """
        if self._due:
            return token_id == self._due[0]
        if token_id in self._ends:
            return self._matcher.is_complete
        if not self._needs_completion:
            return self._remaining > 0
        return self._completion_after(token_id) is not None

    def _completion_after(self, token_id: int) -> KnownCompletion | None:
        if self._checked is None or self._checked[0] != token_id:
            self._checked = (token_id, self._find_completion(token_id))
        return self._checked[1]

    def _find_completion(self, token_id: int) -> KnownCompletion | None:
        left = self._remaining - 1
        if left < 0 or self._is_ended:
            return None
        found = next_completion(
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
        known_completion = self._completion_after(token_id) if self._needs_completion else ()
        if known_completion is None:
            raise IllegalToken(f"no completion is known to fit after token {token_id}")
        self._matcher.advance(token_id)
        self._known_completion = known_completion
        self._checked = None
        self._num_tokens += 1

    def replay(self, token_ids: tuple[int, ...]) -> None:
        """Accept earlier output, with its forced runs. Raises IllegalToken.

        Also accepts tokens that were drawn where a forced run could have been taken.
        """
        num_done = 0
        while num_done < len(token_ids):
            self.advance(token_ids[num_done])
            num_done += 1
            num_done += self.replay_forced(token_ids[num_done:])

    def replay_forced(self, token_ids: tuple[int, ...]) -> int:
        """Accept the forced run if it is a prefix of `token_ids`, or they are a prefix of it."""
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
        """The length of the known completion; for `constraints.worker`."""
        return len(self._known_completion)

    @property
    def has_dead_ends(self) -> bool:
        """Whether `fill` may allow tokens that `check` refuses."""
        return self._needs_completion

    def completion_token(self) -> int | None:
        """The next token of the known completion; None: the text may end here."""
        if self._due:
            return self._due[0]
        known_completion = (
            self._known_completion
            if self._needs_completion
            else self._matcher.shortest(self._remaining)
        )
        return known_completion[0] if known_completion else None

    def take_forced(self) -> tuple[int, ...]:
        """Accept the tokens that are forced now, within the budget, and return them."""
        if self._due:
            due = self._due
            self._due = ()
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
        """Whether no further token may be taken: at once, or at all within the budget."""
        return len(taken) == MAX_FORCED or self._num_tokens >= self._budget.max_len

    def _has_room_for(self, run: KnownCompletion) -> bool:
        """Whether the text can be completed within the budget behind a forced run.

        The run was not drawn from a mask that knows distances, and the model's spelling may be
        longer than necessary. Where there is a known completion, `check` tests every token.
        """
        if not run or self._needs_completion or self._budget.may_truncate:
            return True
        left = self._remaining - len(run)
        if left < 0:
            return False
        ahead = self._matcher.fork()
        for token_id in run:
            ahead.advance(token_id)
        return ahead.is_complete or ahead.shortest(left) is not None

    def _forced_run(self) -> KnownCompletion:
        """Tokens that must follow, as the model would spell them."""
        forced = self._matcher.deterministic_suffix()
        tokens, rest = self._vocabulary.spell_beginning(forced) if forced else ([], b"")
        if rest and self._ends_with(forced):
            return spelled(forced, self._vocabulary) or ()
        return self._vocabulary.beginning(forced, tokens)

    def _ends_with(self, text: bytes) -> bool:
        """Whether nothing can follow this text, so that its last token cannot become longer."""
        tokens = spelled(text, self._vocabulary)
        if tokens is None or self._matcher.num_legal(tokens) < len(tokens):
            return False
        ahead = self._matcher.fork()
        for token_id in tokens:
            ahead.advance(token_id)
        return ahead.is_over

    @property
    def is_satisfied(self) -> bool:
        """Whether the text so far satisfies the constraint, stop rule included."""
        return not self._due and self._matcher.is_complete

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""
        return not self._due and (self._is_ended or self._matcher.is_over)

    def fork(self) -> "OutputConstraintState":
        twin = copy(self)
        twin._matcher = self._matcher.fork()
        return twin

    def restart(self) -> "OutputConstraintState":
        """A new state at the start of an output; only for a state that has accepted no token.

        It shares no engine with this one (`fork` may share one and its lock). Any number of threads
        may call it at the same time.
        """
        if self._num_tokens or self._is_ended:
            raise AssertionError("a state that has accepted tokens cannot be restarted")
        twin = copy(self)
        twin._matcher = self._new_matcher()
        return twin
