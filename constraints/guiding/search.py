"""Searches for a short completion of an output; all that it knows of the language are the masks.

A best-first search over bytes. A node is a matcher and the bytes that led to it. An edge is a token
of one byte (or a replacement for a byte without one), or a splice text that is legal as a whole.

DIVE:    always takes the first edge: for structure that has to be written in any case
NOVELTY: later siblings and masks seen before cost more: this leaves a loop
ROTOR:   takes another kind of edge each time that a mask is seen again: this leaves nested loops
LENGTH:  an edge costs its bytes: finds the shortest text, if few texts are shorter

The search is limited by nodes, so that the same output always gets the same completions. A limit on
CPU time is there for grammars whose masks take long.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count

import numpy as np

from constraints.errors import EngineFailed, IllegalToken
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.bytewise import byte_vocabulary
from constraints.guiding.completion import KnownCompletion, completes, spelled, text_of
from constraints.guiding.frontier import MaskSignature, mask_signature
from constraints.guiding.greedy_completion import long_completion
from constraints.guiding.splice_texts import (
    NO_SPLICE_TEXTS,
    SpliceTexts,
    ends_of,
    spelled_splice_texts,
    splice_texts_of,
)
from constraints.guiding.time_limit import TimeLimit
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary

MAX_TIME_S = 0.25
# The smallest time and node limits, for outputs whose searches failed repeatedly: less than a shard
# lets an output compute for each token.
MIN_TIME_S = 0.002
MIN_NODES = 16
# Nodes of one depth with the same mask are probably the same: at most so many are expanded.
MAX_TWINS = 3
MAX_TAILS = 40
MAX_ENDS = 32
MAX_BEFORE = 64
# Masks that know distances get lengths below this.
MAX_COUNTED = 1 << 16

_CLOSERS = (b"}", b"]", b")")


class Strategy(Enum):
    """What makes an edge cheap; see above."""

    DIVE = "dive"
    NOVELTY = "novelty"
    ROTOR = "rotor"
    LENGTH = "length"


# The most nodes that a proof of emptiness expands.
MAX_PROOF_NODES = 512
# The passes of one search, and how many nodes each may expand.
PLAN = (
    (Strategy.DIVE, 64),
    (Strategy.NOVELTY, 192),
    (Strategy.ROTOR, 300),
    (Strategy.DIVE, 400),
    (Strategy.LENGTH, 256),
)


# The passes after those, for texts that have to be long; any length will do.
LONG_PLAN = ((Strategy.DIVE, 4096), (Strategy.ROTOR, 4096))


@dataclass(frozen=True, slots=True)
class _Node:
    """A place that was reached: `path` leads to it, `edges` lead on, the best one first."""

    matcher: Matcher
    path: KnownCompletion
    cost: float
    edges: tuple[KnownCompletion, ...]


class Search:
    """One search from one place."""

    def __init__(
        self,
        matcher: Matcher,
        vocabulary: Vocabulary,
        tails: Sequence[KnownCompletion] = (),
        splice_texts: SpliceTexts = NO_SPLICE_TEXTS,
        max_len: int | None = None,
        max_time_s: float = MAX_TIME_S,
        before: KnownCompletion = (),
    ) -> None:
        """`max_len`: tokens of a path, for masks that know distances. `before`: what led here."""
        self._max_len = max_len
        self._max_time_s = max_time_s
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._alphabet = alphabet_of(vocabulary)
        self._tails = tuple(dict.fromkeys(tails))[:MAX_TAILS]
        self._splice_texts = splice_texts
        self._before = before
        self._row = np.zeros(vocabulary.num_words, dtype=np.int32)
        self.begin_anew()
        self._twins: dict[tuple[int, bytes], int] = {}
        self._seen_signatures: Counter[bytes] = Counter()
        self._is_incomplete = False
        # Whether the last pass expanded every node: then there are no other completions.
        self.is_exhausted = False

    def begin_anew(self) -> None:
        """Give the following passes a new time limit."""
        self._limit = TimeLimit(self._max_time_s)

    def completions(self, strategy: Strategy, max_nodes: int) -> Iterator[KnownCompletion]:
        """Completions as they are found."""
        repeats = 0.05 if strategy is Strategy.NOVELTY else 0.0
        self.is_exhausted = False
        self._is_incomplete = not self._alphabet.is_whole
        self._twins.clear()
        self._seen_signatures.clear()
        serial = count()
        heap: list[tuple[float, int, _Node, int]] = []

        def push(node: _Node, index: int) -> None:
            if index < len(node.edges):
                cost = node.cost + self._cost(strategy, node.edges[index], index)
                heapq.heappush(heap, (cost, next(serial), node, index))

        if self._matcher.is_complete:
            yield ()
        signature = self._signature(self._matcher, ())
        yield from self._endings(self._matcher, (), signature)
        begun = self._begun(self._matcher, self._before)
        edges, _ = self._edges(strategy, self._matcher, (), signature, begun)
        push(_Node(self._matcher, (), 0.0, edges), 0)
        for _ in range(max_nodes):
            if not heap or self._limit.is_over():
                self.is_exhausted = not heap and not self._is_incomplete
                return
            cost, _, parent, index = heapq.heappop(heap)
            push(parent, index + 1)
            try:
                matcher, path, forced = self._follow(parent, parent.edges[index])
                if matcher.is_complete:
                    yield path
                    continue
                signature = self._signature(matcher, path)
                yield from self._endings(matcher, path, signature)
                is_after_splice = len(parent.edges[index]) > 1
                begun = self._begun(matcher, forced)
                edges, is_new = self._edges(
                    strategy, matcher, path, signature, begun, is_after_splice=is_after_splice
                )
                if strategy is Strategy.LENGTH:
                    cost = len(text_of(path, self._vocabulary))  # with what is forced
                push(_Node(matcher, path, cost + (0 if is_new else repeats), edges), 0)
            except (EngineFailed, IllegalToken):
                self._is_incomplete = True  # too hard for the engine: no place to lead an output to

    def _cost(self, strategy: Strategy, edge: KnownCompletion, index: int) -> float:
        if strategy is Strategy.LENGTH:
            length = sum([len(self._vocabulary.tokens[token_id]) for token_id in edge])
            return length + 0.05 * index
        if index == 0:
            return 0.001
        return 0.1 + 0.02 * index if strategy is Strategy.NOVELTY else index

    def _follow(
        self, parent: _Node, edge: KnownCompletion
    ) -> tuple[Matcher, KnownCompletion, KnownCompletion]:
        """The node behind an edge and the bytes forced after it; the last value: those bytes."""
        matcher = parent.matcher.fork()
        path = parent.path + edge
        for token_id in edge:
            matcher.advance(token_id)
        forced = spelled(matcher.deterministic_suffix(), self._vocabulary)
        if forced and matcher.num_legal(forced) == len(forced):
            for token_id in forced:
                matcher.advance(token_id)
            return matcher, path + forced, edge[-1:] + forced
        return matcher, path, edge[-1:]

    def _signature(self, matcher: Matcher, path: KnownCompletion) -> MaskSignature:
        left = None if self._max_len is None else self._max_len - len(path)
        return mask_signature(matcher, path, self._vocabulary, self._row, left)

    def _begun(self, matcher: Matcher, last: KnownCompletion) -> tuple[KnownCompletion, ...]:
        text = text_of(last, self._vocabulary)
        # Where tokens are longer than bytes, splice texts cannot be split as the text is.
        return self._splice_texts.begun(matcher, text) if len(text) == len(last) else ()

    def _edges(
        self,
        strategy: Strategy,
        matcher: Matcher,
        path: KnownCompletion,
        signature: MaskSignature,
        begun: tuple[KnownCompletion, ...] = (),
        *,
        is_after_splice: bool = False,
    ) -> tuple[tuple[KnownCompletion, ...], bool]:
        """The edges of this node, and whether its mask is new.

        There are none if enough nodes of the same depth and mask were seen. That does not apply
        after a splice text: masks do not show progress within a part, as in `.*[0-9]{3}`, and a
        splice text is a part that is complete.

        begun:           rests of splice texts that have begun
        is_after_splice: a splice text led here
        """
        fingerprint = signature.fingerprint
        num_seen = self._seen_signatures[fingerprint]
        self._seen_signatures[fingerprint] += 1
        length = sum([len(self._vocabulary.tokens[token_id]) for token_id in path])
        number = self._twins[length, fingerprint] = self._twins.get((length, fingerprint), 0) + 1
        if number > MAX_TWINS and not is_after_splice:
            self._is_incomplete = True
            return (), False
        singles = signature.singles
        splices = begun + self._splice_texts.legal(matcher, signature.starts)
        # A short text may be legal again and again, so an edge that closes something goes first.
        is_short = any(len(splice) == 1 for splice in splices)
        first = int(is_short or (bool(splices) and self._closes(singles[:1])))
        edges = singles[:first] + splices + singles[first:]
        if strategy is Strategy.ROTOR and edges:
            turn = num_seen % max(1, signature.num_first + len(splices))
            edges = edges[turn:] + edges[:turn]
        return edges, num_seen == 0

    def _closes(self, edges: tuple[KnownCompletion, ...]) -> bool:
        return any(self._vocabulary.tokens[edge[0]] in _CLOSERS for edge in edges)

    def _endings(
        self, matcher: Matcher, path: KnownCompletion, signature: MaskSignature
    ) -> Iterator[KnownCompletion]:
        """Completions that end with one of the tails."""
        for tail in self._tails:
            may_follow = tail and self._vocabulary.tokens[tail[0]][0] in signature.starts
            if may_follow and completes(matcher, self._vocabulary, tail):
                yield path + tail


def shortest_completion(
    matcher: Matcher,
    vocabulary: Vocabulary,
    max_len: int,
    tails: Sequence[KnownCompletion] = (),
    hints: Sequence[bytes] = (),
    bytewise: Matcher | None = None,
    *,
    before: bytes = b"",
    is_patient: bool = False,
    num_failed: int = 0,
) -> KnownCompletion | None:
    """Tokens that complete the text, at most `max_len`; None: none was found.

    tails:      completions that were valid a few tokens ago, the longest first
    hints:      texts that are legal as a whole somewhere, such as a small instance of each part of
                a schema
    bytewise:   a matcher at the same place over `byte_vocabulary`, to search with
    before:     the text that led here, or its end
    is_patient: no step waits for the answer: search for long texts, too
    num_failed: searches of the same output that found nothing; each halves the limits of this one
    """
    is_bytewise = bytewise is not None
    search_vocabulary = byte_vocabulary() if is_bytewise else vocabulary
    search = Search(
        bytewise or matcher,
        search_vocabulary,
        _tails_in_bytes(tails, vocabulary) if is_bytewise else tails,
        splice_texts_of(tuple(hints)) if is_bytewise else _splice_texts_in(hints, vocabulary),
        None if is_bytewise or max_len > MAX_COUNTED else max_len,
        max(MAX_TIME_S * 0.5**num_failed, MIN_TIME_S),
        tuple(before[-MAX_BEFORE:]) if is_bytewise else (),
    )
    limit = 16 + 2 * max_len
    num_left = max(sum(max_nodes for _, max_nodes in PLAN) >> num_failed, MIN_NODES)
    for strategy, max_nodes in PLAN:
        max_nodes = min(max_nodes, limit, num_left)
        num_left -= max_nodes
        for path in search.completions(strategy, max_nodes):
            found = _respelled(path, search_vocabulary, matcher, vocabulary)
            if found is not None and len(found) <= max_len:
                return found
    return (
        _long_completion(search, search_vocabulary, matcher, vocabulary, max_len)
        if is_patient
        else None
    )


def _long_completion(
    search: Search,
    search_vocabulary: Vocabulary,
    matcher: Matcher,
    vocabulary: Vocabulary,
    max_len: int,
) -> KnownCompletion | None:
    """A completion of any length below `max_len`, when no step waits for it."""
    found = long_completion(matcher, vocabulary, max_len)
    if found is not None or max_len <= MAX_COUNTED:
        return found
    search.begin_anew()
    for strategy, max_nodes in LONG_PLAN:
        for path in search.completions(strategy, max_nodes):
            found = _respelled(path, search_vocabulary, matcher, vocabulary)
            if found is not None:
                return found
    return None


def _tails_in_bytes(
    tails: Sequence[KnownCompletion], vocabulary: Vocabulary
) -> list[KnownCompletion]:
    """The tails as bytes, and the ends of the longest that begin where a JSON value has ended."""
    if not tails:
        return []
    ends = ends_of(text_of(tails[0], vocabulary), MAX_ENDS)
    return [tuple(end) for end in (*ends, *(text_of(tail, vocabulary) for tail in tails))]


def _splice_texts_in(hints: Sequence[bytes], vocabulary: Vocabulary) -> SpliceTexts:
    return (
        spelled_splice_texts(hints, lambda text: spelled(text, vocabulary))
        if hints
        else NO_SPLICE_TEXTS
    )


def _respelled(
    path: KnownCompletion, search_vocabulary: Vocabulary, matcher: Matcher, vocabulary: Vocabulary
) -> KnownCompletion | None:
    """The text of the path in tokens that are legal, in few of them where that is easy to see."""
    text = text_of(path, search_vocabulary)
    better = spelled(text, vocabulary)
    if search_vocabulary is not vocabulary:
        singles = [alphabet_of(vocabulary).singles[byte] for byte in text]
        path = tuple(token_id for token_id in singles if token_id is not None)
        if len(path) < len(singles):
            path = better or path
    if better is not None and len(better) <= len(path):
        path = better if completes(matcher, vocabulary, better) else path
    return path if completes(matcher, vocabulary, path) else None


def is_provably_dead(matcher: Matcher, vocabulary: Vocabulary) -> bool:
    """Whether it is certain that no completion exists."""
    search = Search(matcher, vocabulary)
    found = next(search.completions(Strategy.NOVELTY, MAX_PROOF_NODES), None)
    return found is None and search.is_exhausted
