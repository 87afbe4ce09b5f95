"""Automata of stop strings, over bytes and over the tokens of a vocabulary.

The string that is complete first ends a text; of several that are complete at the same byte, the
longest. Aho, Corasick: "Efficient string matching: an aid to bibliographic search" (1975).
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.token_trie import trie_of
from constraints.vocabulary import Vocabulary
from constraints.vocabulary_cache import kept_with_vocabulary


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
    depths = [0]
    matched = [0]
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
        self._lock = threading.Lock()
        self._transitions: dict[int, StopTransitions] = {}
        letters = sorted({byte for string in strings for byte in _utf8(string)})
        classes = np.zeros(256, dtype=np.uint8)
        # Class 0 is every other byte; there is one, for no text in UTF-8 has a byte 0xff.
        classes[letters] = np.arange(1, len(letters) + 1)
        self._width = int(classes.max()) + 1
        self._columns = self._trie.bytes_of_levels(classes)
        self._places = self._packed(classes)

    def _packed(self, classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """The automaton for walks over the trie: state s is place s + 1; 0: past a stop string."""
        members = [int(np.flatnonzero(classes == each)[0]) for each in range(self._width)]
        automaton = self.automaton
        table = np.zeros((len(automaton.delta) + 1, self._width), dtype=np.int64)
        for state, row in enumerate(automaton.delta):
            if not automaton.matched[state]:
                table[state + 1] = [(row[byte] + 1) * self._width for byte in members]
        return table.reshape(-1)

    def transitions(self, state: int) -> StopTransitions:
        """The effect of tokens in this state."""
        with self._lock:
            found = self._transitions.get(state)
            if found is None:
                found = self._transitions[state] = self._make_transitions(state)
            return found

    def _make_transitions(self, state: int) -> StopTransitions:
        start = (state + 1) * self._width
        ends = self._trie.walk(self._places, self._columns, start)
        states = ends.states // self._width - 1
        is_ending = np.array(self.automaton.matched, dtype=np.int64)[states] > 0
        bits = np.zeros(self._vocabulary.num_words * 32, dtype=np.bool_)
        # Tokens without bytes, such as end tokens, are always clear.
        bits[[index for index, token in enumerate(self._vocabulary.tokens) if not token]] = True
        bits[ends.token_ids] = True
        clear = np.packbits(bits, bitorder="little").view(np.int32)
        returns = np.zeros(len(self._vocabulary.tokens), dtype=np.uint8)
        returns[ends.token_ids[states == 0]] = 1
        return StopTransitions(clear, ends.token_ids[is_ending], returns.tobytes())


@kept_with_vocabulary(32)
def table_of(vocabulary: Vocabulary, strings: tuple[str, ...]) -> StopTable:
    return StopTable(vocabulary, strings)


def _utf8(string: str) -> bytes:
    # A lone surrogate is no text, so such a string never occurs; it is no error.
    return string.encode(errors="surrogatepass")
