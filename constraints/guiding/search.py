"""Searches for a short completion of an output; all that it knows of the language are the masks.

First, for JSON, a dive: one greedy way to the end. Forced bytes are taken, what is open is closed,
a value is the simplest legal one or a hint. It takes the time of some dozens of masks. A schema
that needs more (two patterns at once, a count of items that excludes the simplest ones) is left to:

A best-first search over bytes. A node is a matcher and the bytes that led to it. An edge is a token
of one byte (or a replacement for a byte without one), or a hint that is legal as a whole. It is
limited by nodes, so that the same output always gets the same completions. A limit on CPU time is
there for grammars whose masks take long.
"""

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from constraints.bitmask import allowed_ids
from constraints.errors import EngineFailed, IllegalToken
from constraints.guiding.alphabet import alphabet_of, byte_vocabulary
from constraints.guiding.completion import KnownCompletion, TimeLimit, completes, spelled, text_of
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary

# The most texts that a dive tries, and what it takes without a choice; some 20 us each.
MAX_TRIES = 3_000
# Before the first token, where no step waits: answers of a thousand tokens.
MAX_FIRST_TRIES = 30_000
# Of the texts that it tries, all together, for each of them.
_MAX_TRIED_LEN = 33
_JSON_CLOSERS = (b"}", b"]")
_SIMPLE = (b"0", b"null", b"true", b'""', b"[]", b"{}")
_SIMPLE_ITEMS = tuple(each + b"," for each in (*_SIMPLE, *(b"%d" % n for n in range(1, 10))))
_SPACE = b" \t\r\n"
# Of the other bytes: what ends or parts values before what makes them longer.
_LIKED = tuple(bytes((byte,)) for byte in b'",:1234567890{[-aA.@/ ')
# A hint that was taken more often comes behind the others.
_MAX_TAKEN = 2
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_QUOTED = re.compile(rb'"[^"]*"')
_NO_BRACKETS = re.compile(rb"[^\[\]{}]+")
_BARE = re.compile(rb"[^\s:,\[\]{}]*\Z")


def dive(
    matcher: Matcher,
    vocabulary: Vocabulary,
    max_len: int,
    hints: Sequence[bytes],
    before: bytes = b"",
    max_tries: int = MAX_TRIES,
    *,
    prefers_hints: bool = False,
) -> KnownCompletion | None:
    """Tokens that complete the text, at most `max_len`; None: none found this way.

    before: the text so far
    prefers_hints: takes them before simple values, as for items that have to be among others
    Raises EngineFailed where the engine cannot follow it.
    """
    try:
        made = _Dive(matcher.fork(), vocabulary, hints, max_tries, prefers_hints).to_the_end(before)
    except IllegalToken:
        return None
    if made is None:
        return None
    shorter = spelled(text_of(made, vocabulary), vocabulary)
    if shorter is not None and len(shorter) < len(made) and completes(matcher, vocabulary, shorter):
        made = shorter
    return made if len(made) <= max_len else None


class _Dive:
    """One dive; takes the matcher along."""

    def __init__(
        self,
        matcher: Matcher,
        vocabulary: Vocabulary,
        hints: Sequence[bytes],
        max_tries: int,
        prefers_hints: bool,
    ) -> None:
        self._prefers_hints = prefers_hints
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._hints = hints
        self._num_left = max_tries
        self._max_tried_len = _MAX_TRIED_LEN * max_tries
        self._next_hint = 0
        self._num_taken: Counter[int] = Counter()
        self._tried_len = 0
        # The same few texts are tried at every step.
        self._spelled: dict[bytes, KnownCompletion | None] = {}

    def to_the_end(self, text: bytes) -> KnownCompletion | None:
        """Tokens that complete `text`."""
        made: list[int] = []
        num_before = len(text)
        while self._num_left > 0:
            # All of it is looked at each time, and free text around JSON may have no end.
            self._num_left -= 1 + (len(text) - num_before) // 500
            if self._matcher.is_complete:
                return tuple(made)
            taken = self._other_item(text) or self._forced() or self._chosen(text)
            if not taken:
                return None
            for token_id in taken:
                self._matcher.advance(token_id)
            made += taken
            text += text_of(taken, self._vocabulary)
        return None

    def _other_item(self, text: bytes) -> KnownCompletion:
        """A hint behind a simple item: where that did not allow the end, it never will."""
        # Not searched for: the text may be long, and this is asked for each of its tokens.
        if not text.rstrip(_SPACE).endswith(_SIMPLE_ITEMS):
            return ()
        for hint in self._hints:
            # A number that is there already is legal up to its end.
            is_number = hint[-1:].isdigit()
            if self._first_legal((hint + b",", hint + b"]") if is_number else (hint,)):
                return self._first_legal((hint,))
        return ()

    def _forced(self) -> KnownCompletion:
        tokens = spelled(self._matcher.deterministic_suffix(), self._vocabulary)
        return tuple(tokens[: self._matcher.num_legal(tokens)]) if tokens else ()

    def _chosen(self, text: bytes) -> KnownCompletion:
        """What comes next behind a text, where nothing is forced."""
        begun, is_key = _end_of(text)
        closers: Sequence[bytes] = _JSON_CLOSERS
        if begun:
            closers = (b'"',) if begun.startswith(b'"') else (*_JSON_CLOSERS, b",")
        # The same byte again and again may never come to an end: 1, 11, 111 are all odd.
        turn = max(0, len(begun) - 1) % len(_LIKED)
        return (
            self._first_legal(closers)
            or (self._hint(begun) if self._prefers_hints else ())
            or self._first_legal(() if begun or is_key else _SIMPLE)
            or self._hint(begun)
            or self._first_legal((b"-",) if begun.endswith((b"e", b"E")) else ())
            or self._first_legal((*_LIKED[turn:], *_LIKED[:turn]))
            or self._any_legal()
        )

    def _hint(self, begun: bytes) -> KnownCompletion:
        """The rest of a hint: keys come in the order of hints, so first of one behind the last."""
        begin = self._next_hint
        places = [place % len(self._hints) for place in range(begin, begin + len(self._hints))]
        # What was taken again and again leads round and round, as a further call does.
        places.sort(key=lambda place: self._num_taken[place] > _MAX_TAKEN)
        for place in places:
            hint = self._hints[place]
            found = self._first_legal((hint[len(begun) :],) if hint.startswith(begun) else ())
            if found:
                self._next_hint = place + 1
                self._num_taken[place] += 1
                return found
        return ()

    def _first_legal(self, texts: Iterable[bytes]) -> KnownCompletion:
        for text in texts:
            self._num_left -= 1
            self._tried_len += len(text)
            if self._num_left < 0 or self._tried_len > self._max_tried_len:
                return ()
            if text not in self._spelled:
                self._spelled[text] = spelled(text, self._vocabulary)
            tokens = self._spelled[text]
            if tokens and self._matcher.num_legal(tokens) == len(tokens):
                return tokens
        return ()

    def _any_legal(self) -> KnownCompletion:
        if self._tried_len > self._max_tried_len:
            return ()
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        self._matcher.fill_mask(row)
        singles = alphabet_of(self._vocabulary).allowed(row).tolist()
        return tuple((singles or allowed_ids(row).tolist())[:1])


def _end_of(text: bytes) -> tuple[bytes, bool]:
    """The string or other scalar that has begun at the end of a JSON text, and whether a key comes
    next."""
    plain = _ESCAPED.sub(b"__", text)
    is_quoted = plain.count(b'"') % 2 == 1
    start = plain.rfind(b'"') if is_quoted else len(plain)
    outside = _QUOTED.sub(b"", plain[:start])
    brackets = _NO_BRACKETS.sub(b"", outside)
    while (fewer := brackets.replace(b"{}", b"").replace(b"[]", b"")) != brackets:
        brackets = fewer
    is_key = brackets.endswith(b"{") and outside.rstrip(_SPACE).endswith((b"{", b","))
    if not is_quoted and not plain.endswith(b'"'):
        found = _BARE.search(plain)
        start = start if found is None else found.start()
    return text[start:], is_key


MAX_TIME_S = 0.25
# The smallest time and node limits, for outputs whose searches failed repeatedly: less than a shard
# lets an output compute for each token.
MIN_TIME_S = 0.002
MIN_NODES = 6
# Nodes of one depth with the same mask are probably the same: at most so many are expanded.
MAX_TWINS = 3
MAX_TAILS = 40
# The most tokens of several bytes that are tried beside single bytes.
MAX_LONGER = 16
MAX_ENDS = 32
# Masks that know distances get lengths below this.
MAX_COUNTED = 1 << 16
# Where more bytes may follow, any text may, such as within a string: JSON is legal there, too, and
# completes nothing.
_MAX_STARTS = 64
# What an edge costs that is not a node's first, in bytes, and each place further behind.
_CHOICE_COST = 2.0
_PLACE_COST = 0.4
# Edges that a turning pass takes by turns.
_MAX_TURNS = 4
_CLOSERS = (b"}", b"]", b")")


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a search.

    byte_cost:  of each byte, or hint; 0: goes ahead, at first without alternatives
    is_turning: takes another edge each time that a mask is seen again, which leaves nested loops
    """

    max_nodes: int
    byte_cost: float = 0.0
    is_turning: bool = False


# For structure that has to be written in any case; for short texts; for loops in loops.
PLAN = (Pass(64), Pass(384, byte_cost=1.0), Pass(300, is_turning=True))


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
        hints: Sequence[KnownCompletion] = (),
        max_len: int | None = None,
        max_time_s: float = MAX_TIME_S,
    ) -> None:
        """`max_len`: tokens of a path, for masks that know distances."""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._alphabet = alphabet_of(vocabulary)
        self._tails = tuple(dict.fromkeys(tails))[:MAX_TAILS]
        self._hints = hints
        self._max_len = max_len
        self._row = np.zeros(vocabulary.num_words, dtype=np.int32)
        self._limit = TimeLimit(max_time_s)

    def completions(self, kind: Pass, max_nodes: int) -> Iterator[KnownCompletion]:
        """Completions as they are found."""
        num_seen: Counter[bytes] = Counter()
        num_twins: Counter[tuple[int, bytes]] = Counter()
        serial = count()
        heap: list[tuple[float, int, _Node, int]] = []

        def push(node: _Node, index: int) -> None:
            if index < len(node.edges):
                choice = _CHOICE_COST + _PLACE_COST * index if index else 0.001
                cost = node.cost + kind.byte_cost + choice
                heapq.heappush(heap, (cost, next(serial), node, index))

        # The empty edge leads to the place itself.
        push(_Node(self._matcher, (), 0.0, ((),)), 0)
        for _ in range(max_nodes):
            if not heap or self._limit.is_over():
                return
            cost, _, parent, index = heapq.heappop(heap)
            push(parent, index + 1)
            edge = parent.edges[index]
            try:
                matcher, forced = self._follow(parent.matcher, edge)
                path = parent.path + edge + forced
                if matcher.is_complete:
                    yield path
                    continue
                left = None if self._max_len is None else self._max_len - len(path)
                matcher.fill_mask(self._row, left)
                allowed = self._alphabet.allowed(self._row)
                ids = allowed.tolist()
                if left is not None:
                    # Where tokens are counted, single bytes may be too short.
                    others = np.setdiff1d(allowed_ids(self._row), allowed).tolist()
                    texts = [each for each in others if self._vocabulary.tokens[each]]
                    ids += texts[:: max(1, len(texts) // MAX_LONGER)]
                starts = frozenset([self._vocabulary.tokens[token_id][0] for token_id in ids])
                yield from self._endings(matcher, path, starts)
                mask = allowed.tobytes()
                twin = self._num_bytes(path), mask
                num_twins[twin] += 1
                # Masks do not show progress within a part, as in `.*[0-9]{3}`; a hint is a part.
                if num_twins[twin] > MAX_TWINS and len(edge) < 2:
                    continue
                edges = self._edges(matcher, [(token_id,) for token_id in ids], starts)
            except (EngineFailed, IllegalToken):
                continue  # too hard for the engine: no place to lead an output to
            if kind.is_turning and edges:
                turn = num_seen[mask] % min(_MAX_TURNS, len(edges))
                edges = edges[turn:] + edges[:turn]
                num_seen[mask] += 1
            push(_Node(matcher, path, cost + kind.byte_cost * self._num_bytes(forced), edges), 0)

    def _num_bytes(self, tokens: KnownCompletion) -> int:
        return sum([len(self._vocabulary.tokens[token_id]) for token_id in tokens])

    def _follow(self, parent: Matcher, edge: KnownCompletion) -> tuple[Matcher, KnownCompletion]:
        """The place behind an edge and the bytes that are forced there; and these."""
        matcher = parent.fork()
        for token_id in edge:
            matcher.advance(token_id)
        forced = spelled(matcher.deterministic_suffix(), self._vocabulary) if edge else None
        if not forced or matcher.num_legal(forced) < len(forced):
            return matcher, ()
        for token_id in forced:
            matcher.advance(token_id)
        return matcher, forced

    def _endings(
        self, matcher: Matcher, path: KnownCompletion, starts: Collection[int]
    ) -> Iterator[KnownCompletion]:
        """Completions that end with one of the tails."""
        for tail in self._tails:
            may_follow = tail and self._vocabulary.tokens[tail[0]][0] in starts
            if may_follow and completes(matcher, self._vocabulary, tail):
                yield path + tail

    def _edges(
        self, matcher: Matcher, singles: Sequence[KnownCompletion], starts: Collection[int]
    ) -> tuple[KnownCompletion, ...]:
        """The ways on: the legal hints, and the single bytes."""
        hints = []
        for hint in self._hints:
            start = self._vocabulary.tokens[hint[0]][0]
            is_text = len(starts) <= _MAX_STARTS or start not in b'"{['
            if is_text and start in starts and matcher.num_legal(hint) == len(hint):
                hints.append(hint)
        # A short text may be legal again and again, so an edge that closes something goes first.
        is_short = any(len(hint) == 1 for hint in hints)
        closes = bool(singles) and self._vocabulary.tokens[singles[0][0]] in _CLOSERS
        first = int(is_short or (bool(hints) and closes))
        return (*singles[:first], *hints, *singles[first:])


def shortest_completion(
    matcher: Matcher,
    vocabulary: Vocabulary,
    max_len: int,
    tails: Sequence[KnownCompletion] = (),
    hints: Sequence[bytes] = (),
    bytewise: Matcher | None = None,
    num_failed: int = 0,
) -> KnownCompletion | None:
    """Tokens that complete the text, at most `max_len`; None: none was found.

    tails:      completions that were valid a few tokens ago, the longest first
    hints:      texts that are legal as a whole somewhere, such as a schema's leaves
    bytewise:   a matcher at the same place over `byte_vocabulary`, to search with
    num_failed: searches of the same output that found nothing; each halves the limits of this one
    """
    is_bytewise = bytewise is not None
    search_vocabulary = byte_vocabulary() if is_bytewise else vocabulary
    search = Search(
        bytewise or matcher,
        search_vocabulary,
        _tails_in_bytes(tails, vocabulary) if is_bytewise else tails,
        [found for hint in hints if (found := spelled(hint, search_vocabulary))],
        None if is_bytewise or max_len > MAX_COUNTED else max_len,
        max(MAX_TIME_S * 0.5**num_failed, MIN_TIME_S),
    )

    def found_by(kind: Pass, max_nodes: int) -> KnownCompletion | None:
        for path in search.completions(kind, max_nodes):
            found = _respelled(path, search_vocabulary, matcher, vocabulary)
            if found is not None and len(found) <= max_len:
                return found
        return None

    num_left = max(sum(kind.max_nodes for kind in PLAN) >> num_failed, MIN_NODES)
    for kind in PLAN:
        max_nodes = min(kind.max_nodes, 16 + 2 * max_len, num_left)
        num_left -= max_nodes
        found = found_by(kind, max_nodes)
        if found is not None:
            return found
    return None


def _tails_in_bytes(
    tails: Sequence[KnownCompletion], vocabulary: Vocabulary
) -> list[KnownCompletion]:
    """The tails as bytes, and the ends of the longest that begin where a JSON value has ended."""
    if not tails:
        return []
    text = text_of(tails[0], vocabulary)
    places = [0, *(place for place, byte in enumerate(text) if byte in b'",]}')][:MAX_ENDS]
    ends = [tuple(text[place:]) for place in places]
    return [*ends, *(tuple(text_of(tail, vocabulary)) for tail in tails)]


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
