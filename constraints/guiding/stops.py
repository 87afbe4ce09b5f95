"""Stop strings and stop tokens as a part of the language.

A stop string ends an output wherever it stands in it, so a token that completes one is legal only
where the output may end with it:

    kept     the text with the string is in the language
    dropped  the text before the string is, and the string's bytes could have followed
    both     the string ends where the token ends: of a token that runs past it, a part would be
             lost that the model believes to have written

The string that is complete first ends the text; of several that are complete at the same byte, the
longest. Aho, Corasick: "Efficient string matching: an aid to bibliographic search" (1975).
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from constraints.errors import IllegalToken
from constraints.guiding.bytewise import byte_vocabulary
from constraints.guiding.search import shortest_completion
from constraints.guiding.witness import (
    Witness,
    clear_bits,
    completes,
    set_bits,
    spelled,
    text_of,
)
from constraints.matcher import Bitmask, Language, Matcher
from constraints.spec import StopRule
from constraints.token_walk import walk_of
from constraints.vocabulary import Vocabulary


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
    children: list[dict[int, int]] = [{}]
    depths, matched = [0], [0]
    for string in strings:
        state = 0
        for byte in string:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                depths.append(depths[state] + 1)
                matched.append(0)
            state = children[state][byte]
        matched[state] = len(string)
    delta: list[list[int]] = [[0] * 256 for _ in children]
    fallback = [0] * len(children)
    todo = deque([0])
    while todo:  # by depth, so that the fallback's row is whole
        state = todo.popleft()
        if state:
            delta[state] = list(delta[fallback[state]])
            matched[state] = max(matched[state], matched[fallback[state]])
        for byte, child in children[state].items():
            fallback[child] = delta[state][byte]
            delta[state][byte] = child
            todo.append(child)
    return StopAutomaton(tuple(map(tuple, delta)), tuple(depths), tuple(matched))


@dataclass(frozen=True, slots=True, eq=False)
class StopView:
    """What the tokens of a vocabulary do from one state.

    clear:   bitmask of the tokens that complete no stop string, or one at their very end
    ending:  the latter
    returns: by token, 1 where it leads to the start, with no stop string on the way
    """

    clear: npt.NDArray[np.int32]
    ending: npt.NDArray[np.int64]
    returns: bytes


class StopTable:
    """Stop strings over a vocabulary; shared by threads. Views are made when first asked for."""

    def __init__(self, vocabulary: Vocabulary, strings: tuple[str, ...]) -> None:
        self.automaton = automaton_of([string for string in map(_utf8, strings) if string])
        self._vocabulary = vocabulary
        self._walk = walk_of(vocabulary)
        self._lock = threading.Lock()
        self._views: dict[int, StopView] = {}
        letters = sorted({byte for string in strings for byte in _utf8(string)})
        classes = np.zeros(256, dtype=np.uint8)
        # Class 0 is every other byte; there is one, for no text in UTF-8 has a byte 0xff.
        classes[letters] = np.arange(1, len(letters) + 1)
        self._width = int(classes.max()) + 1
        self._columns = self._walk.bytes_of_levels(classes)
        self._places = self._packed(classes)

    def _packed(self, classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """The automaton as the walk reads it: state s is place s + 1, 0 is past a stop string."""
        members = [int(np.flatnonzero(classes == each)[0]) for each in range(self._width)]
        automaton = self.automaton
        table = np.zeros((len(automaton.delta) + 1, self._width), dtype=np.int64)
        for state, row in enumerate(automaton.delta):
            if not automaton.matched[state]:
                table[state + 1] = [(row[byte] + 1) * self._width for byte in members]
        return table.reshape(-1)

    def view(self, state: int) -> StopView:
        """What tokens do from this state."""
        with self._lock:
            found = self._views.get(state)
            if found is None:
                found = self._views[state] = self._make_view(state)
            return found

    def _make_view(self, state: int) -> StopView:
        start = (state + 1) * self._width
        ends = self._walk.walk(self._places, self._columns, start)
        states = ends.states // self._width - 1
        is_ending = np.array(self.automaton.matched, dtype=np.int64)[states] > 0
        bits = np.zeros(self._vocabulary.num_words * 32, dtype=np.bool_)
        # Tokens without bytes, such as end tokens, are none of this table's business.
        bits[[index for index, token in enumerate(self._vocabulary.tokens) if not token]] = True
        bits[ends.token_ids] = True
        clear = np.packbits(bits, bitorder="little").view(np.int32)
        returns = np.zeros(len(self._vocabulary.tokens), dtype=np.uint8)
        returns[ends.token_ids[states == 0]] = 1
        return StopView(clear, ends.token_ids[is_ending], returns.tobytes())


@lru_cache(maxsize=32)
def table_of(vocabulary: Vocabulary, strings: tuple[str, ...]) -> StopTable:
    """The table of these stop strings."""
    return StopTable(vocabulary, strings)


class StoppedMatcher:
    """A matcher of the language as the stop strings leave it. See `constraints.matcher.Matcher`.

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
        """`barred`: tokens that may not be used as text."""
        self._language = language
        self._stops = stops
        self._vocabulary = vocabulary
        self._barred = barred
        self._made: Witness = ()
        self._table = table_of(vocabulary, stops.strings)
        self._matcher: Matcher = language.matcher()
        # Follows some way behind, to be asked whether the text before a stop string is complete.
        self._behind: Matcher | None = None if stops.kept else language.matcher()
        self._pending: Witness = ()
        self._state = 0
        self._is_stopped = False

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens, those after which there is no end among them."""
        if self._is_stopped:
            row.fill(0)
            set_bits(row, self._vocabulary.end_ids)
            return
        self._matcher.fill_mask(row, max_len)
        view = self._table.view(self._state)
        row &= view.clear
        clear_bits(row, self._barred)
        is_legal = (row[view.ending >> 5] >> (view.ending & 31).astype(np.int32)) & 1
        ending = view.ending[is_legal.astype(np.bool_)].tolist()
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
        self._state, self._is_stopped = state, is_match
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
        state, plain = self._state, self._table.view(0).returns
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

    def _may_stop(self, tokens: Witness) -> bool:
        """Whether the output may end with the stop string that is complete after these tokens."""
        if self._behind is None:
            return completes(self._matcher, self._vocabulary, tokens)
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
                    return False  # the vocabulary has no way to say where the text would end
                before += part
                break
            before.append(token_id)
            left -= len(token)
        return completes(self._behind, self._vocabulary, tuple(before))

    def forced_bytes(self) -> bytes:
        """The bytes that every legal text goes on with, as far as no stop string ends it."""
        if self._is_stopped:
            return b""
        forced = self._matcher.forced_bytes()
        state, length = self._table.automaton.run(self._state, forced)
        return forced[: length - 1] if self._table.automaton.matched[state] else forced

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = ()
    ) -> tuple[int, ...] | None:
        """Tokens that complete the text: the engine's, or what a search finds."""
        if self._is_stopped:
            return ()
        found = self._matcher.shortest(max_len, tails)
        if found is not None and completes(self, self._vocabulary, found):
            return found
        bytewise = None if self._barred else self.bytewise()
        if found is not None and bytewise is None:
            # Masks that know distances lead straight to a text that is not much longer.
            for length in (len(found), len(found) + 2, 2 * len(found) + 8):
                near = shortest_completion(self, self._vocabulary, min(length, max_len), tails)
                if near is not None:
                    return near
        return shortest_completion(self, self._vocabulary, max_len, tails, (), bytewise)

    def bytewise(self) -> "StoppedMatcher | None":
        """A matcher at the same place over single bytes, if the language has one."""
        language = self._language.in_bytes()
        if language is None:
            return None
        matcher = StoppedMatcher(language, byte_vocabulary(), self._stops)
        for byte in text_of(self._made, self._vocabulary):
            matcher.advance(byte)
        return matcher

    def fork(self) -> "StoppedMatcher":
        """Another matcher at the same place."""
        twin = object.__new__(StoppedMatcher)
        twin.__dict__.update(self.__dict__)
        twin._matcher = self._matcher.fork()
        twin._behind = None if self._behind is None else self._behind.fork()
        return twin

    @property
    def is_complete(self) -> bool:
        """The output may end here."""
        return self._is_stopped or self._matcher.is_complete

    @property
    def is_over(self) -> bool:
        """It may, and nothing but the end may follow."""
        return self._is_stopped or self._matcher.is_over


def _utf8(string: str) -> bytes:
    # Half of a surrogate pair is no text, so that such a string is never met; it is no error.
    return string.encode(errors="surrogatepass")
