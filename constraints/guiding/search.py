"""Searches for a short completion of an output; all that it knows of the language are the masks.

First, for JSON, a dive: one greedy way to the end. Forced bytes are taken, what is open is closed,
a value is the simplest legal one or a hint. It takes the time of some dozens of masks. A schema
that needs more (two patterns at once, a count of items that excludes the simplest ones) is left to:

A best-first search over bytes. A node is a matcher and the bytes that led to it. An edge is a token
of one byte (or a replacement for a byte without one), or a splice text that is legal as a whole.

DIVE:    always takes the first edge: for structure that has to be written in any case
NOVELTY: later siblings and masks seen before cost more: this leaves a loop
ROTOR:   takes another kind of edge each time that a mask is seen again: this leaves nested loops
LENGTH:  an edge costs its bytes: finds the shortest text, if few texts are shorter

The search is limited by nodes, so that the same output always gets the same completions. A limit on
CPU time is there for grammars whose masks take long.

Splice texts are hints, and the rest of a hint that has begun.

A search over bytes finds a way to the end, but its texts have a token for nearly every byte. For a
text that has to be long, `long_completion` takes the longest legal token at each step instead.
"""

import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import count
from string import ascii_lowercase
from time import thread_time

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask, allowed_ids
from constraints.errors import EngineFailed, IllegalToken
from constraints.guiding.alphabet import alphabet_of, byte_vocabulary
from constraints.guiding.completion import KnownCompletion, TimeLimit, completes, spelled, text_of
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary, kept_with_vocabulary

# The most texts that a dive tries, and what it takes without a choice; some 20 us each.
MAX_TRIES = 3_000
# Of the texts that it tries, all together.
_MAX_TRIED_LEN = 100_000
_JSON_CLOSERS = (b"}", b"]")
_SIMPLE = (b"0", b"null", b"true", b'""', b"[]", b"{}")
_SIMPLE_ITEMS = tuple(each + b"," for each in _SIMPLE)
_SPACE = b" \t\r\n"
# Of the other bytes: what ends or parts values before what makes them longer.
_LIKED = tuple(bytes((byte,)) for byte in b'",:1234567890{[-aA.@/ ')
# Deeper than this, other ways are taken: the first one may lead down without end.
_MAX_PLAIN_DEPTH = 6
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
) -> KnownCompletion | None:
    """Tokens that complete the text, at most `max_len`; None: none found this way.

    before: the text so far
    Raises EngineFailed where the engine cannot follow it.
    """
    try:
        made = _Dive(matcher.fork(), vocabulary, hints, max_tries).to_the_end(before)
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
        self, matcher: Matcher, vocabulary: Vocabulary, hints: Sequence[bytes], max_tries: int
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._hints = hints
        self._num_left = max_tries
        self._next_hint = 0
        self._tried_len = 0
        # The same few texts are tried at every step.
        self._spelled: dict[bytes, KnownCompletion | None] = {}

    def to_the_end(self, text: bytes) -> KnownCompletion | None:
        """Tokens that complete `text`."""
        made: list[int] = []
        while self._num_left > 0:
            self._num_left -= 1
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
        has_simple = text.rstrip(_SPACE).endswith(_SIMPLE_ITEMS)
        return self._first_legal(self._hints if has_simple else ())

    def _forced(self) -> KnownCompletion:
        tokens = spelled(self._matcher.deterministic_suffix(), self._vocabulary)
        return tuple(tokens[: self._matcher.num_legal(tokens)]) if tokens else ()

    def _chosen(self, text: bytes) -> KnownCompletion:
        """What comes next behind a text, where nothing is forced."""
        begun, depth, is_key = _end_of(text)
        closers: Sequence[bytes] = _JSON_CLOSERS
        if begun:
            closers = (b'"',) if begun.startswith(b'"') else (*_JSON_CLOSERS, b",")
        # The same byte again and again may never come to an end: 1, 11, 111 are all odd.
        turn = max(0, len(begun) - 1) % len(_LIKED)
        return (
            self._first_legal(closers)
            or self._first_legal(() if begun or is_key else _SIMPLE)
            or self._hint(begun, max(0, depth - _MAX_PLAIN_DEPTH))
            or self._first_legal((b"-",) if begun.endswith((b"e", b"E")) else ())
            or self._first_legal((*_LIKED[turn:], *_LIKED[:turn]))
            or self._any_legal()
        )

    def _hint(self, begun: bytes, turn: int) -> KnownCompletion:
        """The rest of a hint: keys come in the order of hints, so first of one behind the last."""
        for index in range(len(self._hints)):
            place = (self._next_hint + turn + index) % len(self._hints)
            hint = self._hints[place]
            found = self._first_legal((hint[len(begun) :],) if hint.startswith(begun) else ())
            if found:
                self._next_hint = place + 1
                return found
        return ()

    def _first_legal(self, texts: Iterable[bytes]) -> KnownCompletion:
        for text in texts:
            self._num_left -= 1
            self._tried_len += len(text)
            if self._num_left < 0 or self._tried_len > _MAX_TRIED_LEN:
                return ()
            if text not in self._spelled:
                self._spelled[text] = spelled(text, self._vocabulary)
            tokens = self._spelled[text]
            if tokens and self._matcher.num_legal(tokens) == len(tokens):
                return tokens
        return ()

    def _any_legal(self) -> KnownCompletion:
        if self._tried_len > _MAX_TRIED_LEN:
            return ()
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        self._matcher.fill_mask(row)
        singles = alphabet_of(self._vocabulary).allowed(row)[0].tolist()
        return tuple((singles or allowed_ids(row).tolist())[:1])


def _end_of(text: bytes) -> tuple[bytes, int, bool]:
    """The string or other scalar that has begun at the end of a JSON text, how many objects and
    arrays are open, and whether a key comes next."""
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
    return text[start:], len(brackets), is_key


# The most tokens of several bytes that are tried where single bytes are not enough.
MAX_LONGER = 16
# Behind this zeros may repeat without end, as in a number that has to be above zero.
_BEFORE_ZEROS = re.compile(rb"[-.]0*\Z")
_MAX_ZEROS = 24
_CLOSER_OF = {b"{": b"}", b"[": b"]"}
# Behind one of these the order of what may follow is another one.
_SUGGESTING = frozenset((*_CLOSER_OF, b"-", b".", *(b"%d" % digit for digit in range(10))))


@dataclass(frozen=True, slots=True)
class MaskSignature:
    """The tokens that may follow at one place.

    singles:   edges of one token, the best first
    num_first: how many of them are the first of their kind
    starts:    the bytes that may follow
    fingerprint: equal for equal masks
    """

    singles: tuple[KnownCompletion, ...]
    num_first: int
    starts: frozenset[int]
    fingerprint: bytes


def mask_signature(
    matcher: Matcher, path: KnownCompletion, vocabulary: Vocabulary, row: Bitmask, left: int | None
) -> MaskSignature:
    """The signature of the mask behind `path`. `row` is overwritten.

    left: tokens, for masks that know distances: single bytes are too short where they are counted
    """
    matcher.fill_mask(row, left)
    allowed, num_first = alphabet_of(vocabulary).allowed(row)
    ids = allowed.tolist()
    starts = frozenset([vocabulary.tokens[token_id][0] for token_id in ids])
    singles = _in_order(path, ids, vocabulary)
    longer = [] if left is None else _longer(row, set(ids), vocabulary)
    edges = tuple((token_id,) for token_id in (*singles, *longer))
    return MaskSignature(edges, num_first, starts, allowed.tobytes())


def _in_order(path: KnownCompletion, ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """The single bytes in a better order, where the last byte suggests one.

    A number ends before it gets longer, a one comes before zeros, what has just begun is closed.
    """
    last = text_of(path[-_MAX_ZEROS:], vocabulary)
    if last[-1:] not in _SUGGESTING:
        return ids
    places = {vocabulary.tokens[token_id]: place for place, token_id in enumerate(ids)}
    zero, one, comma = (places.get(byte) for byte in (b"0", b"1", b","))
    end = places.get(_CLOSER_OF.get(last[-1:], b""))
    if zero is not None and one is not None and _BEFORE_ZEROS.search(last):
        ids[zero], ids[one] = ids[one], ids[zero]
    if comma is not None and last[-1:].isdigit():
        first = min(places[byte] for byte in places if byte.isdigit() or byte == b",")
        ids.insert(first, ids.pop(comma))
    elif end is not None:
        ids.insert(0, ids.pop(end))
    return ids


def _longer(row: Bitmask, known: Collection[int], vocabulary: Vocabulary) -> list[int]:
    """A few tokens, evenly spread over the mask."""
    others = [token_id for token_id in allowed_ids(row).tolist() if token_id not in known]
    others = [token_id for token_id in others if vocabulary.tokens[token_id]]
    return others[:: max(1, len(others) // MAX_LONGER)]


# The most CPU seconds for each attempt. Two hundred words take a third of it, so results do not
# depend on the load of the machine.
_MAX_GREEDY_TIME_S = 0.3
# Where all of these are legal, words are: they can fill a text that has to be longer.
_LETTERS = frozenset(ascii_lowercase.encode())
# Preferred to words where legal: the end of a JSON string or of a word, or nothing. The right one
# depends on the language, so each is tried.
_BEFORE_WORDS = (b'"', b" ", b"")


def long_completion(
    matcher: Matcher, vocabulary: Vocabulary, max_len: int
) -> KnownCompletion | None:
    """Tokens that complete the text, at most `max_len`; None: none found this way."""
    for before_words in _BEFORE_WORDS:
        try:
            found = _complete_with_words(matcher.fork(), vocabulary, max_len, before_words)
        except (EngineFailed, IllegalToken):
            continue
        if found is not None:
            return found
    return None


def _complete_with_words(
    matcher: Matcher, vocabulary: Vocabulary, max_len: int, before_words: bytes
) -> KnownCompletion | None:
    deadline = thread_time() + _MAX_GREEDY_TIME_S
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    path: list[int] = []
    while not matcher.is_complete:
        if len(path) >= max_len or thread_time() > deadline:
            return None
        matcher.fill_mask(row)
        singles = alphabet_of(vocabulary).allowed(row)[0].tolist()
        if not singles:
            return None
        token_id = _next(singles, allowed_ids(row).tolist(), vocabulary, before_words)
        matcher.advance(token_id)
        path.append(token_id)
    return tuple(path)


def _next(
    singles: Sequence[int], legal: Sequence[int], vocabulary: Vocabulary, before_words: bytes
) -> int:
    """`singles`: the single bytes among `legal`, those first that tend to lead to an end."""
    by_byte = {vocabulary.tokens[each][:1]: each for each in reversed(singles)}
    if not {key[0] for key in by_byte} >= _LETTERS:
        return singles[0]
    if before_words in by_byte:
        return by_byte[before_words]
    ids = np.asarray(legal)
    longest: int = ids[np.argmax(_lengths(vocabulary)[ids])].item()
    return longest


@kept_with_vocabulary(1)
def _lengths(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """The number of bytes of each token, [num_tokens]."""
    return np.array([len(token) for token in vocabulary.tokens], dtype=np.int64)


# Where more bytes may follow, any text may, such as within a string: JSON is legal there, too, and
# completes nothing.
_MAX_ALLOWED = 64
# The most bytes before the end at which JSON may have begun.
_MAX_BEGUN = 256


@dataclass(frozen=True, slots=True)
class SpliceTexts:
    """Texts in the tokens that a search uses.

    texts:    plain texts, the best first
    by_start: JSON by its first byte, the shortest first
    colon:    the tokens behind a key
    """

    texts: tuple[Sequence[int], ...]
    by_start: Mapping[int, tuple[Sequence[int], ...]]
    colon: Sequence[int]

    def legal(self, matcher: Matcher, allowed: Collection[int]) -> tuple[KnownCompletion, ...]:
        """The texts that may follow. `allowed`: the bytes that may follow."""
        values: list[Sequence[int]] = []
        if len(allowed) <= _MAX_ALLOWED:
            for start, splices in self.by_start.items():
                if start in allowed:
                    values += splices
        return self._legal_values(values, matcher) + _legal(self.texts, matcher)

    def begun(self, matcher: Matcher, text: bytes) -> tuple[KnownCompletion, ...]:
        """The rests of JSON texts that these last bytes begin, the outermost first."""
        found: list[Sequence[int]] = []
        for place in range(max(0, len(text) - _MAX_BEGUN), len(text)):
            begun = text[place:]
            for splice in self.by_start.get(text[place], ()):
                if splice[: len(begun)] == begun and len(splice) > len(begun):
                    found.append(splice[len(begun) :])
        return self._legal_values(dict.fromkeys(found), matcher)

    def _legal_values(
        self, splices: Iterable[Sequence[int]], matcher: Matcher
    ) -> tuple[KnownCompletion, ...]:
        """The legal ones that are no keys: a key would need a value behind it."""
        legal = _legal(splices, matcher)
        return tuple(
            splice for splice in legal if matcher.num_legal((*splice, *self.colon)) == len(splice)
        )


def _legal(splices: Iterable[Sequence[int]], matcher: Matcher) -> tuple[KnownCompletion, ...]:
    return tuple(tuple(splice) for splice in splices if matcher.num_legal(splice) == len(splice))


NO_SPLICE_TEXTS = SpliceTexts((), {}, ())


@lru_cache(maxsize=32)
def splice_texts_of(hints: tuple[bytes, ...]) -> SpliceTexts:
    """The splice texts of hints, in tokens of one byte."""
    return spelled_splice_texts(hints, bytes)


def spelled_splice_texts(
    hints: Sequence[bytes], spelled: Callable[[bytes], Sequence[int] | None]
) -> SpliceTexts:
    """The splice texts of those hints that can be spelled."""
    plain = [hint for hint in hints if hint and not _is_json(hint)]
    whole = [hint for hint in hints if _is_json(hint)]
    by_start: defaultdict[int, list[Sequence[int]]] = defaultdict(list)
    for text in sorted(whole, key=len):
        splice = spelled(text)
        if splice:
            by_start[text[0]].append(splice)
    texts = [splice for hint in plain if (splice := spelled(hint))]
    values = {start: tuple(found) for start, found in by_start.items()}
    return SpliceTexts(tuple(texts), values, spelled(b":") or ())


def _is_json(hint: bytes) -> bool:
    if hint[:1] not in (b'"', b"{", b"["):
        return False
    try:
        json.loads(hint)
    except (ValueError, RecursionError):
        return False
    return b'"' in hint


def ends_of(text: bytes, max_ends: int) -> Iterable[bytes]:
    """The ends of a text in JSON that begin where a value has just ended; the longest first."""
    places = [0, *(place for place, byte in enumerate(text) if byte in b'",]}')]
    return [text[place:] for place in places[:max_ends]]


MAX_TIME_S = 0.25
# The smallest time and node limits, for outputs whose searches failed repeatedly: less than a shard
# lets an output compute for each token.
MIN_TIME_S = 0.002
MIN_NODES = 6
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
    hints:      texts that are legal as a whole somewhere, such as a schema's leaves
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
        if search.is_exhausted or num_left <= 0:
            break
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
