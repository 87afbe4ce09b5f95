"""Stop strings and stop tokens as part of the language.

A stop string ends an output wherever it occurs, so a token that completes one is legal only where
the output may end with it:

    kept     the text with the string is in the language
    dropped  or the text before the string is, and the string's bytes could have followed; of JSON
             the text before it alone, which without its last brace would be none
    both     the string ends where the token ends: otherwise a part of the token would be lost that
             the model has seen as written
"""

from collections.abc import Sequence

import numpy as np

from constraints.bitmask import Bitmask, clear_bits, set_bits
from constraints.errors import IllegalToken
from constraints.grammars.engine import is_json
from constraints.guiding.bytewise import byte_vocabulary
from constraints.guiding.completion import (
    KnownCompletion,
    completes,
    spelled,
    text_of,
)
from constraints.guiding.search import shortest_completion
from constraints.guiding.stop_table import table_of
from constraints.matcher import Language, Matcher
from constraints.spec import StopRule
from constraints.vocabulary import Vocabulary


class StoppedMatcher:
    """A matcher of the language under a stop rule. See `constraints.matcher.Matcher`.

    | text that `_behind` accepted | tokens `_pending` | next token
                                   `_matcher` accepted all this
               a stop string that is not complete yet begins here, at the earliest
    """

    def __init__(
        self,
        language: Language,
        vocabulary: Vocabulary,
        stops: StopRule,
        barred: frozenset[int] = frozenset(),
    ) -> None:
        """`barred`: tokens that may not be part of the text."""
        self._language = language
        self._stops = stops
        self._vocabulary = vocabulary
        self._barred = barred
        self._made: KnownCompletion = ()
        self._table = table_of(vocabulary, stops.strings)
        self._matcher: Matcher = language.matcher()
        # A matcher some tokens behind: is the text before a stop string complete?
        self._behind: Matcher | None = None if stops.kept else language.matcher()
        # Whether a text may end with a string that is a part of it.
        self._may_close = stops.kept or not is_json(language)
        self._pending: KnownCompletion = ()
        self._state = 0
        self._is_stopped = False

    def is_quick(self, max_len: int | None) -> bool:
        """Never: each token that may end the text is tested."""
        return False

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens; some of them may lead to dead ends."""
        if self._is_stopped:
            row.fill(0)
            set_bits(row, self._vocabulary.end_ids)
            return
        self._matcher.fill_mask(row, max_len)
        transitions = self._table.transitions(self._state)
        row &= transitions.clear
        clear_bits(row, self._barred)
        is_legal = (row[transitions.ending >> 5] >> (transitions.ending & 31).astype(np.int32)) & 1
        ending = transitions.ending[is_legal.astype(np.bool_)].tolist()
        clear_bits(row, [token_id for token_id in ending if not self._may_stop((token_id,))])

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken."""
        if token_id in self._vocabulary.end_ids:
            if not self.is_complete:
                raise IllegalToken(f"token {token_id} ends a text that is not complete")
            return
        token = self._vocabulary.tokens[token_id]
        state, length = self._table.automaton.run(self._state, token)
        is_match = bool(self._table.automaton.matched[state])
        is_barred = self._is_stopped or token_id in self._barred
        if is_barred or (is_match and (length < len(token) or not self._may_stop((token_id,)))):
            raise IllegalToken(f"token {token_id} ends the output where it is not complete")
        self._matcher.advance(token_id)
        self._made += (token_id,)
        self._state = state
        self._is_stopped = is_match
        if self._behind is not None and not is_match:
            self._pending += (token_id,)
            self._catch_up(self._behind)

    def _catch_up(self, behind: Matcher) -> None:
        tokens = self._vocabulary.tokens
        num_bytes = sum([len(tokens[token_id]) for token_id in self._pending])
        depth = self._table.automaton.depths[self._state]
        count = 0
        while count < len(self._pending):
            num_bytes -= len(tokens[self._pending[count]])
            if num_bytes < depth:
                break
            behind.advance(self._pending[count])
            count += 1
        self._pending = self._pending[count:]

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted one after the other."""
        ends = self._vocabulary.end_ids
        if self._is_stopped:
            return int(len(token_ids) > 0 and token_ids[0] in ends)
        state = self._state
        plain = self._table.transitions(0).returns
        for index, token_id in enumerate(token_ids):
            if state == 0 and plain[token_id] and token_id not in self._barred:
                continue
            if token_id in self._barred:
                return min(index, self._matcher.num_legal(token_ids[:index]))
            token = self._vocabulary.tokens[token_id]
            state, length = self._table.automaton.run(state, token)
            if not self._table.automaton.matched[state]:
                continue
            stopped = tuple(token_ids[: index + 1])
            is_legal = self._matcher.num_legal(stopped) == len(stopped)
            if not is_legal or length < len(token) or not self._may_stop(stopped):
                return min(index, self._matcher.num_legal(stopped))
            has_end = len(token_ids) > len(stopped) and token_ids[len(stopped)] in ends
            return len(stopped) + int(has_end)
        return self._matcher.num_legal(token_ids)

    def _may_stop(self, tokens: KnownCompletion) -> bool:
        """Whether the output may end with the stop string that these tokens complete."""
        if self._may_close and completes(self._matcher, self._vocabulary, tokens):
            return True
        if self._behind is None:
            return False
        spelling = self._vocabulary.tokens
        text = b"".join([spelling[token_id] for token_id in tokens])
        state, _ = self._table.automaton.run(self._state, text)
        texts = [spelling[token_id] for token_id in self._pending + tokens]
        left = sum(map(len, texts)) - self._table.automaton.matched[state]
        before: list[int] = []
        for token_id, token in zip(self._pending + tokens, texts, strict=True):
            if len(token) > left:
                part = spelled(token[:left], self._vocabulary)
                if part is None:
                    return False  # the vocabulary cannot spell the text up to its end
                before += part
                break
            before.append(token_id)
            left -= len(token)
        return completes(self._behind, self._vocabulary, tuple(before))

    def deterministic_suffix(self) -> bytes:
        """The bytes with which every legal text continues, up to a stop string."""
        if self._is_stopped:
            return b""
        forced = self._matcher.deterministic_suffix()
        state, length = self._table.automaton.run(self._state, forced)
        return forced[: length - 1] if self._table.automaton.matched[state] else forced

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = (), num_failed: int = 0
    ) -> tuple[int, ...] | None:
        """Tokens that complete the text: the engine's, or those that a search finds."""
        if self._is_stopped:
            return ()
        found = self._matcher.shortest(max_len, tails, num_failed)
        if found is not None and completes(self, self._vocabulary, found):
            return found
        bytewise = None if self._barred else self.bytewise()
        if found is not None and bytewise is None:
            # Masks that know distances lead directly to a text that is not much longer.
            for length in (len(found), len(found) + 2, 2 * len(found) + 8):
                near = shortest_completion(
                    self, self._vocabulary, min(length, max_len), tails, num_failed=num_failed
                )
                if near is not None:
                    return near
        return shortest_completion(
            self, self._vocabulary, max_len, tails, bytewise=bytewise, num_failed=num_failed
        )

    def bytewise(self) -> "StoppedMatcher | None":
        """A matcher over single bytes at the same place, if the language has one."""
        language = self._language.in_bytes()
        if language is None:
            return None
        matcher = StoppedMatcher(language, byte_vocabulary(), self._stops)
        for byte in text_of(self._made, self._vocabulary):
            matcher.advance(byte)
        return matcher

    def fork(self) -> "StoppedMatcher":
        twin = object.__new__(StoppedMatcher)
        twin.__dict__.update(self.__dict__)
        twin._matcher = self._matcher.fork()
        twin._behind = None if self._behind is None else self._behind.fork()
        return twin

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        return self._is_stopped or self._matcher.is_complete

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._is_stopped or self._matcher.is_over
