"""Stop strings and stop tokens as part of the language.

A stop string ends an output wherever it occurs, so a token that completes one is legal only where
the output may end with it:

    kept     the text with the string is in the language
    dropped  or the text before the string is, and the string's bytes could have followed; of JSON
             the text before it alone, which without its last brace would be none
    both     the string ends where the token ends: otherwise a part of the token would be lost that
             the model has seen as written

The string that is complete first ends a text; of several that are complete at the same byte, the
longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask, clear_bits, set_bits
from constraints.engine import is_json
from constraints.errors import IllegalToken
from constraints.guiding.alphabet import byte_vocabulary
from constraints.guiding.completion import KnownCompletion, completes, spelled, text_of
from constraints.guiding.search import shortest_completion
from constraints.matcher import Language, Matcher
from constraints.spec import StopRule
from constraints.string_trie import StringTrie
from constraints.token_trie import actions_of, trie_of
from constraints.vocabulary import Vocabulary, kept_with_vocabulary


@dataclass(frozen=True, slots=True)
class StopAutomaton:
    """States by number; 0 is the start, where no stop string has begun.

    delta:   [num_states][256] the state after each byte
    depths:  bytes of the longest stop string that has begun
    matched: bytes of the longest stop string that is complete here; 0: none is
    """

    delta: tuple[tuple[int, ...], ...]
    depths: tuple[int, ...]
    matched: tuple[int, ...]

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        """The state after `text`, or after its byte that completes a stop string, and how many
        bytes that took."""
        for index, byte in enumerate(text):
            state = self.delta[state][byte]
            if self.matched[state]:
                return state, index + 1
        return state, len(text)


def automaton_of(strings: Sequence[bytes]) -> StopAutomaton:
    """The automaton of stop strings, none of them empty."""
    trie = StringTrie(strings)
    steps, longest = trie.following(256)
    delta = tuple(map(tuple, steps.tolist()))
    return StopAutomaton(delta, tuple(trie.depths), tuple(max(0, each) for each in longest))


@dataclass(frozen=True, slots=True, eq=False)
class StopTransitions:
    """The effect of each token of a vocabulary in one state.

    clear:   bitmask of the tokens that complete no stop string, or one at their very end
    ending:  the latter
    returns: by token, 1 where it leads to the start, with no stop string on the way
    """

    clear: npt.NDArray[np.int32]
    ending: npt.NDArray[np.int64]
    returns: bytes


class StopTable:
    """Stop strings over a vocabulary; shared by threads. Computes transitions when first needed."""

    def __init__(self, vocabulary: Vocabulary, strings: tuple[str, ...]) -> None:
        self.automaton = automaton_of([string for string in map(_utf8, strings) if string])
        self._vocabulary = vocabulary
        self._trie = trie_of(vocabulary)
        # The effect of tokens in a state.
        self.transitions = cache(self._make_transitions)
        # For walks over the trie: state s is place s + 1; place 0 is past a stop string.
        self._matched = np.array(self.automaton.matched)
        places = (np.array(self.automaton.delta, dtype=np.int64) + 1) * 256
        places[self._matched > 0] = 0
        self._places = np.concatenate([np.zeros(256, dtype=np.int64), places.reshape(-1)])
        self._columns = self._trie.bytes_of_levels(np.arange(256, dtype=np.uint8))

    def _make_transitions(self, state: int) -> StopTransitions:
        starts = np.array([(state + 1) * 256])
        actions = actions_of(self._trie, self._places, 256, self._columns, starts)
        assert actions is not None, "one place has no more actions than tokens"
        # By action; the first one is that of tokens that are past a stop string.
        states = actions.ends[:, 0] // 256 - 1
        num_tokens = len(self._vocabulary.tokens)
        is_clear, is_ending, returns = (
            which[actions.of_tokens]
            for which in (states >= 0, (states >= 0) & (self._matched[states] > 0), states == 0)
        )
        # Tokens without bytes, such as end tokens, are always clear.
        is_clear[[index for index, token in enumerate(self._vocabulary.tokens) if not token]] = True
        clear = np.packbits(is_clear, bitorder="little").view(np.int32)
        returning = returns[:num_tokens].astype(np.uint8)
        return StopTransitions(clear, np.flatnonzero(is_ending), returning.tobytes())


@kept_with_vocabulary(32)
def table_of(vocabulary: Vocabulary, strings: tuple[str, ...]) -> StopTable:
    return StopTable(vocabulary, strings)


def _utf8(string: str) -> bytes:
    # A lone surrogate is no text, so such a string never occurs; it is no error.
    return string.encode(errors="surrogatepass")


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
            token = self._vocabulary.tokens[token_id]
            state, length = self._table.automaton.run(state, token)
            is_barred = token_id in self._barred
            if not is_barred and not self._table.automaton.matched[state]:
                continue
            stopped = tuple(token_ids[: index + 1])
            num_legal = self._matcher.num_legal(stopped)
            is_cut = is_barred or length < len(token) or num_legal <= index
            if is_cut or not self._may_stop(stopped):
                return min(index, num_legal)
            has_end = len(token_ids) > num_legal and token_ids[num_legal] in ends
            return num_legal + int(has_end)
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
        # In another order its characters may meet no stop string.
        hints = [bytes((byte,)) for byte in dict.fromkeys(text_of(found or (), self._vocabulary))]
        lengths = [max_len]
        if found is not None and bytewise is None:
            # Masks that know distances lead directly to a text that is not much longer.
            near = (len(found), len(found) + 2, 2 * len(found) + 8)
            lengths = [*(length for length in near if length < max_len), max_len]
        for length in lengths:
            other = shortest_completion(
                self,
                self._vocabulary,
                length,
                tails,
                hints,
                bytewise=bytewise,
                num_failed=num_failed,
            )
            if other is not None:
                return other
        return None

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
