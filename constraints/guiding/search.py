"""Looks for a short completion of an output, knowing of its language no more than masks tell.

A best-first search over bytes: a node is a matcher and the bytes that led to it, an edge a token
of one byte (or what stands in for a byte that has none), a tail or hint that is legal as a whole.

DIVE:    the first edge everywhere, as far as it leads: structure that has to be written down
NOVELTY: an edge costs by its place among its siblings, and a mask that was seen before costs too:
         the way out of a loop
ROTOR:   where a mask is seen again, the next kind of edge than the last time: the way out of loops
         that lie in one another
LENGTH:  an edge costs its bytes: the shortest text, where few are shorter than it

Bounded by nodes, and not by time, so that the same output has the same completions on every day;
the limit of computing time is there for grammars whose masks take long.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from time import thread_time

import numpy as np

from constraints.bitmask import allowed_ids
from constraints.errors import EngineFailed, IllegalToken
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.bytewise import byte_vocabulary
from constraints.guiding.leap import long_completion
from constraints.guiding.witness import (
    Witness,
    completes,
    spelled,
    text_of,
)
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary

MAX_TIME_S = 0.25
# Nodes of one depth with the same mask are probably the same; so many are looked at.
MAX_TWINS = 3
MAX_TAILS = 12
# Lengths below this are told to masks that know distances.
MAX_COUNTED = 1 << 16
# Tokens of several bytes that are looked at where bytes are not enough.
MAX_LONGER = 16

_CLOSERS = (b"}", b"]", b")")


class Strategy(Enum):
    """What makes an edge cheap; see above."""

    DIVE = "dive"
    NOVELTY = "novelty"
    ROTOR = "rotor"
    LENGTH = "length"


# Nodes that are looked at to show that there is no completion.
MAX_PROOF_NODES = 512
# The walks of one search, and how many nodes each may see.
PLAN = (
    (Strategy.DIVE, 64),
    (Strategy.NOVELTY, 192),
    (Strategy.ROTOR, 300),
    (Strategy.DIVE, 400),
    (Strategy.LENGTH, 256),
)


# The walks after those, where any length will do: to the ends of texts that have to be long.
LONG_PLAN = ((Strategy.DIVE, 4096), (Strategy.ROTOR, 4096))


@dataclass(frozen=True, slots=True)
class _Node:
    """A place that was reached: `path` leads to it, `edges` lead on, the best first."""

    matcher: Matcher
    path: Witness
    cost: float
    edges: tuple[Witness, ...]


class Search:
    """One search from one place."""

    def __init__(
        self,
        matcher: Matcher,
        vocabulary: Vocabulary,
        tails: Sequence[Witness] = (),
        hints: Sequence[Witness] = (),
        max_len: int | None = None,
    ) -> None:
        """`max_len`: tokens of a path, for masks that know distances."""
        self._max_len = max_len
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._alphabet = alphabet_of(vocabulary)
        self._tails = tuple(tails)[:MAX_TAILS]
        self._hints = tuple(hint for hint in hints if hint)
        self._row = np.zeros(vocabulary.num_words, dtype=np.int32)
        self.begin_anew()
        self._twins: dict[tuple[int, bytes], int] = {}
        self._looks: Counter[bytes] = Counter()
        self._is_cut = False
        # Whether the last walk saw all that there is, so that what it did not find is not there.
        self.is_exhausted = False

    def begin_anew(self) -> None:
        """Let the walks from here on compute as long as the first ones might."""
        self._deadline = thread_time() + MAX_TIME_S

    def completions(self, strategy: Strategy, max_nodes: int) -> Iterator[Witness]:
        """Completions as they are found."""
        repeats = 0.05 if strategy is Strategy.NOVELTY else 0.0
        self.is_exhausted = False
        self._is_cut = not self._alphabet.is_whole
        self._twins.clear()
        self._looks.clear()
        serial = count()
        heap: list[tuple[float, int, _Node, int]] = []

        def push(node: _Node, index: int) -> None:
            if index < len(node.edges):
                cost = node.cost + self._cost(strategy, node.edges[index], index)
                heapq.heappush(heap, (cost, next(serial), node, index))

        yield from self._endings(self._matcher, ())
        push(_Node(self._matcher, (), 0.0, self._edges(strategy, self._matcher, ())[0]), 0)
        for _ in range(max_nodes):
            if not heap or thread_time() > self._deadline:
                self.is_exhausted = not heap and not self._is_cut
                return
            cost, _, parent, index = heapq.heappop(heap)
            push(parent, index + 1)
            try:
                matcher, path = self._follow(parent, parent.edges[index])
                yield from self._endings(matcher, path)
                if not matcher.is_complete:
                    is_leap = len(parent.edges[index]) > 1
                    edges, is_new = self._edges(strategy, matcher, path, is_leap=is_leap)
                    push(_Node(matcher, path, cost + (0 if is_new else repeats), edges), 0)
            except (EngineFailed, IllegalToken):
                self._is_cut = True  # too hard for the engine: no place to lead an output to

    def _cost(self, strategy: Strategy, edge: Witness, index: int) -> float:
        if strategy is Strategy.LENGTH:
            length = sum([len(self._vocabulary.tokens[token_id]) for token_id in edge])
            return length + 0.05 * index
        if index == 0:
            return 0.001
        return 0.1 + 0.02 * index if strategy is Strategy.NOVELTY else index

    def _follow(self, parent: _Node, edge: Witness) -> tuple[Matcher, Witness]:
        """Over the edge, and on over the bytes that are forced after it."""
        matcher, path = parent.matcher.fork(), parent.path + edge
        for token_id in edge:
            matcher.advance(token_id)
        forced = spelled(matcher.forced_bytes(), self._vocabulary)
        if forced and matcher.num_legal(forced) == len(forced):
            for token_id in forced:
                matcher.advance(token_id)
            path += forced
        return matcher, path

    def _edges(
        self, strategy: Strategy, matcher: Matcher, path: Witness, *, is_leap: bool = False
    ) -> tuple[tuple[Witness, ...], bool]:
        """Where the output can go on, and whether this is unlike all places before.

        Nowhere, where enough places were seen that are as far and look the same; but masks do not
        tell what is done within a part, as in `.*[0-9]{3}`, and a hint is a part that is done:
        is_leap: it led here
        """
        matcher.fill_mask(self._row, None if self._max_len is None else self._max_len - len(path))
        allowed, num_first = self._alphabet.allowed(self._row)
        look = allowed.tobytes()
        num_seen = self._looks[look]
        self._looks[look] += 1
        length = sum([len(self._vocabulary.tokens[token_id]) for token_id in path])
        number = self._twins[length, look] = self._twins.get((length, look), 0) + 1
        if number > MAX_TWINS and not is_leap:
            self._is_cut = True
            return (), False
        singles: tuple[Witness, ...] = tuple((token_id,) for token_id in allowed.tolist())
        if self._max_len is not None:
            singles += self._longer(set(allowed.tolist()))
        hints = tuple(hint for hint in self._hints if matcher.num_legal(hint) == len(hint))
        # A short hint may be legal again and again; what closes is better than any hint.
        is_short = any(len(hint) == 1 for hint in hints)
        first = int(is_short or (bool(hints) and self._closes(singles[:1])))
        edges = singles[:first] + hints + singles[first:]
        if strategy is Strategy.ROTOR and edges:
            turn = num_seen % max(1, num_first + len(hints))
            edges = edges[turn:] + edges[:turn]
        return edges, num_seen == 0

    def _longer(self, known: set[int]) -> tuple[Witness, ...]:
        """A few tokens from all over the mask: where tokens are counted, bytes are too short."""
        others = [token_id for token_id in allowed_ids(self._row).tolist() if token_id not in known]
        others = [token_id for token_id in others if self._vocabulary.tokens[token_id]]
        return tuple((token_id,) for token_id in others[:: max(1, len(others) // MAX_LONGER)])

    def _closes(self, edges: tuple[Witness, ...]) -> bool:
        return any(self._vocabulary.tokens[edge[0]] in _CLOSERS for edge in edges)

    def _endings(self, matcher: Matcher, path: Witness) -> Iterator[Witness]:
        """Completions that end here, or with one of the tails."""
        if matcher.is_complete:
            yield path
            return
        for tail in self._tails:
            if completes(matcher, self._vocabulary, tail):
                yield path + tail


def shortest_completion(
    matcher: Matcher,
    vocabulary: Vocabulary,
    max_len: int,
    tails: Sequence[Witness] = (),
    hints: Sequence[bytes] = (),
    bytewise: Matcher | None = None,
    *,
    is_patient: bool = False,
) -> Witness | None:
    """Tokens that complete the text, at most `max_len`; None: none was found.

    tails:    completions that were good a few tokens ago
    hints:    pieces of text that stand in the language as wholes, such as the least value of each
              part of a schema
    bytewise: a matcher at the same place over `byte_vocabulary`, to search with
    is_patient: nobody waits for a step: look for long texts, too
    """
    walked = vocabulary if bytewise is None else byte_vocabulary()
    tails_walked = tails if bytewise is None else [text_of(tail, vocabulary) for tail in tails]
    search = Search(
        bytewise or matcher,
        walked,
        [tuple(tail) for tail in tails_walked],
        [tokens for hint in hints if (tokens := _spelled_in(hint, walked))],
        None if walked is not vocabulary or max_len > MAX_COUNTED else max_len,
    )
    limit = 16 + 2 * max_len
    for strategy, max_nodes in PLAN:
        if tails and strategy is Strategy.LENGTH:
            return None  # who has tails had a completion before: the text is not to be made anew
        for path in search.completions(strategy, min(max_nodes, limit)):
            found = _respelled(path, walked, matcher, vocabulary)
            if found is not None and len(found) <= max_len:
                return found
    found = long_completion(matcher, vocabulary, max_len) if is_patient else None
    if is_patient and found is None and max_len > MAX_COUNTED:
        search.begin_anew()
        for strategy, max_nodes in LONG_PLAN:
            for path in search.completions(strategy, max_nodes):
                found = _respelled(path, walked, matcher, vocabulary)
                if found is not None:
                    return found
    return found


def _spelled_in(text: bytes, walked: Vocabulary) -> Witness | None:
    return tuple(text) if walked is byte_vocabulary() else spelled(text, walked)


def _respelled(
    path: Witness, walked: Vocabulary, matcher: Matcher, vocabulary: Vocabulary
) -> Witness | None:
    """The text of the path in tokens that are legal, in few of them as far as is easily told."""
    text = text_of(path, walked)
    better = spelled(text, vocabulary)
    if walked is not vocabulary:
        singles = [alphabet_of(vocabulary).singles[byte] for byte in text]
        path = tuple(token_id for token_id in singles if token_id is not None)
        if len(path) < len(singles):
            path = better or path
    if better is not None and len(better) <= len(path):
        path = better if completes(matcher, vocabulary, better) else path
    return path if completes(matcher, vocabulary, path) else None


def is_barren(matcher: Matcher, vocabulary: Vocabulary) -> bool:
    """Whether it is certain that no text goes on from here to its end."""
    search = Search(matcher, vocabulary)
    found = next(search.completions(Strategy.NOVELTY, MAX_PROOF_NODES), None)
    return found is None and search.is_exhausted
