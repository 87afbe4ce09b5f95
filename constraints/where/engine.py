"""The engine for `where` expressions: a compiled language, and the state of one output in it.

    place    of the byte table: the joint state of all automata, and the place inside a character
    counts   of characters, words and sentences, each held at its last bound
    legal    a token behind which the counts are within the slack of the place

Masks respect `max_len`, since distances are computed in tokens. Where there are too many counts for
that, completions are searched for.
len(tokens(X)) counts every token, those of a phrase that stops_before drops included.

Tokens can complete whatever bytes can complete, unless tokens are counted or some byte has no
token: then a place is alive if tokens lead from it to an end, as far as distances are known.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask, row_of
from constraints.errors import Contradiction, IllegalToken, TooComplex
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.search import shortest_completion
from constraints.regex.char_sets import WHITESPACE, Utf8, plain_places, utf8_of
from constraints.token_trie import PLACE_MASK, trie_of
from constraints.vocabulary import Vocabulary, kept_with_vocabulary
from constraints.where.counter_grid import NEVER, CounterGrid, Slacks
from constraints.where.distances import Distances, ways_of_tokens
from constraints.where.evaluate import contradiction, dropped_phrases, is_plainly_empty
from constraints.where.machine import Machine, counter_of, machine_of
from constraints.where.terms import Expression, Measure, text
from constraints.where.token_transitions import ByteTable, TokenTransitions, TransitionCache

Bits = npt.NDArray[np.uint8]  # by token, little-endian

# Control characters that count as white space, and an escape in an expression that may name one.
CONTROL_SPACE = "\x0b\x0c\x1c\x1d\x1e\x1f"
_NAMING = re.compile(r"\\[xuUN0-7vf]")
SPACE = frozenset(chr(each) for first, last in WHITESPACE for each in range(first, last + 1))


@dataclass(frozen=True, slots=True, eq=False)
class PlainSpace:
    """White space that a mask would bring into a text, and the model would not write by itself.

    Where a text has all the words that it may have, nothing but white space and the end may follow,
    and a model that would rather write a word takes the first character that is left to it, such as
    U+001E. So control characters that count as white space are masked unless the expression names
    one or nothing else is legal; and a complete text is over where only white space could follow.

    controls: the tokens with a control character; none where the expression names one
    spaces:   the tokens of white space; None: the expression counts no words
    """

    controls: Bits
    spaces: Bits | None

    @classmethod
    def of(cls, vocabulary: Vocabulary, expression: Expression) -> "PlainSpace":
        is_named = _NAMING.search(text(expression)) is not None
        controls = b"(?!)" if is_named else b"(?s:.*[%b].*)" % CONTROL_SPACE.encode()
        counts_words = counter_of(Measure.WORDS, expression) is not None
        return cls(
            _tokens_matching(vocabulary, controls),
            _tokens_matching(vocabulary, _SPACES) if counts_words else None,
        )

    def cleared(self, mask: Bits, *, is_complete: bool) -> Bits:
        """The mask without white space that nobody asked for."""
        plain: Bits = mask & ~self.controls[: len(mask)]
        if not is_complete:
            return plain if plain.any() else mask
        is_over = self.spaces is not None and not (plain & ~self.spaces[: len(mask)]).any()
        return np.zeros_like(plain) if is_over else plain


@kept_with_vocabulary(16)
def _tokens_matching(vocabulary: Vocabulary, pattern: bytes) -> Bits:
    matches = re.compile(pattern).fullmatch
    bits = np.zeros(32 * vocabulary.num_words, dtype=np.bool_)
    bits[: len(vocabulary.tokens)] = [
        bool(token) and matches(token) is not None for token in vocabulary.tokens
    ]
    return np.packbits(bits, bitorder="little")


def _beginning(texts: list[bytes]) -> bytes:
    """A pattern of what any number of these texts begins with."""
    begun = {text[:end] for text in texts for end in range(1, len(text))}
    return b"(?:%b)*(?:%b)?" % tuple(b"|".join(map(re.escape, each)) for each in (texts, begun))


# The last character may be incomplete.
_SPACES = _beginning([char.encode() for char in sorted(SPACE)])


# The most kinds of tokens that are compared in a few microseconds.
_MAX_QUICK_KINDS = 1_000
# The most forced bytes that are returned at once.
_MAX_FORCED = 4096


class WhereLanguage:
    """A compiled expression; immutable but for its caches, shared by threads.

    accepted:            slacks of accepting now, for each segment of tokens
    coaccessible_slacks: of every place, computed over bytes
    plain_space:         white space that masks do not bring into a text; None: they may
    follows_bytes:       tokens can complete whatever bytes can
    """

    may_have_dead_ends = False
    # Every part of an expression is enforced.
    not_enforced: tuple[str, ...] = ()
    # Tables depend on the vocabulary, so each process compiles the expression.
    translation = None

    def __init__(
        self,
        expression: Expression,
        vocabulary: Vocabulary,
        machine: Machine,
        utf8: Utf8,
        counter_grid: CounterGrid,
        by_state: Slacks,
        plain_space: PlainSpace | None,
    ) -> None:
        """by_state: the coaccessible slacks between characters. Raises TooComplex, OutOfReach."""
        self.vocabulary = vocabulary
        self.machine = machine
        self.counter_grid = counter_grid
        self.plain_space = plain_space
        self.dropped_phrases = dropped_phrases(expression)
        trie = trie_of(vocabulary)
        self.table = ByteTable.of(machine, utf8, trie.max_token_len)
        self.accepted = tuple(map(self.table.accepted, counter_grid.accepted(machine)))
        self.coaccessible_slacks = self.table.spread(machine, counter_grid, by_state)
        self.transition_cache = TransitionCache(trie, self.table, counter_grid)
        self.end_mask = row_of(vocabulary.end_ids, vocabulary.num_words).view(np.uint8)
        _, firsts, sizes = np.unique(utf8.classes, return_index=True, return_counts=True)
        # A byte of each class, and how many it has; large classes first.
        self._classes = sorted(zip(sizes.tolist(), firsts.tolist(), strict=True), reverse=True)
        self.tokens = machine.tokens
        self.spells_utf8 = alphabet_of(vocabulary).spells_utf8
        self.distances: Distances | None = None
        try:
            self.distances = self._distances()
        except TooComplex:
            if self.tokens is not None:
                raise
        self.follows_bytes = self.distances is None or (self.tokens is None and self.spells_utf8)

    def _distances(self) -> Distances:
        """Raises TooComplex."""
        is_alive = np.any(self.coaccessible_slacks > NEVER, axis=1)
        is_followed = is_alive
        if self.spells_utf8 and self.tokens is None:
            # Where a byte is a token, it is enough to know of other places how their bytes go on.
            is_plain = plain_places(self.table.utf8)
            is_followed = is_alive & np.tile(is_plain, self.machine.num_states)
        # Where single bytes are tokens, tokens reach every place.
        start = self.table.start // self.table.width
        starts = np.flatnonzero(is_followed) if self.spells_utf8 else np.array([start])
        ways = ways_of_tokens(
            self.counter_grid, self.table, self.transition_cache, starts, is_followed, is_alive
        )
        return Distances(self.counter_grid, self.accepted, self.tokens, ways)

    @property
    def knows_distances(self) -> bool:
        """Masks take account of `max_len`, and `shortest` is exact."""
        return self.distances is not None

    def read(self, token: bytes, packed: int, counts: list[int]) -> tuple[int, list[int]]:
        """The place and the counts behind some bytes; place 0 if they are illegal."""
        after = self.table.read(token, packed)
        gains = self.table.gains_of(after)
        held = [
            min(count + gain, counter.cap)
            for count, gain, counter in zip(counts, gains, self.counter_grid.counters, strict=True)
        ]
        return after & PLACE_MASK, held

    def is_alive(self, slacks: Slacks, packed: int, counts: list[int]) -> bool:
        """Whether the slacks of a place cover the counts."""
        return self.counter_grid.is_within(slacks, packed // self.table.width, counts)

    def only_byte(self, packed: int, counts: list[int]) -> int | None:
        """The only byte that leads to a live place; None: there are several or none."""
        only: int | None = None
        for size, byte in self._classes:
            after, counted = self.read(bytes([byte]), packed, counts)
            if after and self.is_alive(self.coaccessible_slacks, after, counted):
                if size > 1 or only is not None:
                    return None
                only = byte
        return only

    def matcher(self) -> "WhereMatcher":
        """A matcher at the beginning of an output."""
        return WhereMatcher(self, self.table.start, [0] * len(self.counter_grid.counters), 0)

    def prepare_search(self) -> None:
        """There is nothing to prepare."""

    def in_bytes(self) -> None:
        """None: completions come from distances, so no search over bytes is needed."""
        return None

    def known_slacks(self, made_len: int, max_len: int | None) -> Slacks | None:
        """`slacks` if they are computed already, else None; does not wait for other threads."""
        if self.distances is None or (max_len is None and self.follows_bytes):
            return self.coaccessible_slacks
        return self.distances.at_hand(made_len, max_len)

    def slacks(self, made_len: int, max_len: int | None) -> Slacks:
        """Slacks of the places from which at most `max_len` more tokens complete the text."""
        known = self.known_slacks(made_len, max_len)
        if known is not None:
            return known
        assert self.distances is not None
        return self.distances.within(made_len, max_len)


class WhereMatcher:
    """One output's place in a `where` language; used by one thread at a time."""

    def __init__(
        self, language: WhereLanguage, packed: int, counts: list[int], made_len: int
    ) -> None:
        self._language = language
        self._packed = packed  # a place of the byte table, without gains
        self.counts = counts  # of the counters
        self.made_len = made_len  # tokens
        self._has_ended = False
        # Of the current place, once they are computed.
        self._complete: bool | None = None
        self._transitions: TokenTransitions | None = None

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens, within `max_len` tokens where that is known."""
        language = self._language
        octets = row.view(np.uint8)
        octets[:] = 0
        if not self._has_ended and (max_len is None or max_len > 0):
            left = None if max_len is None else max_len - 1
            slacks = language.slacks(self.made_len + 1, left)
            transitions = self.transitions()
            legal = transitions.legal(slacks, self.counts)
            mask = language.transition_cache.mask(self._place, legal)
            if language.plain_space is not None:
                mask = language.plain_space.cleared(mask, is_complete=self.is_complete)
            octets[: len(mask)] = mask
        if self.is_complete:
            octets[: len(language.end_mask)] |= language.end_mask

    def is_quick(self, max_len: int | None) -> bool:
        """Whether the transitions are cached and few, and the slacks computed."""
        left = None if max_len is None else max_len - 1
        self._transitions = self._language.transition_cache.known(self._place)
        if self._transitions is None or self._transitions.num_kinds > _MAX_QUICK_KINDS:
            return False
        return self._language.known_slacks(self.made_len + 1, left) is not None

    @property
    def _place(self) -> int:
        return self._packed // self._language.table.width

    def transitions(self) -> TokenTransitions:
        """The transitions of this place."""
        if self._transitions is None:
            self._transitions = self._language.transition_cache.transitions(self._place)
        return self._transitions

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken."""
        language = self._language
        tokens = language.vocabulary.tokens
        if token_id in language.vocabulary.end_ids and self.is_complete and not self._has_ended:
            self._has_ended = True
            return
        token = tokens[token_id] if 0 <= token_id < len(tokens) and not self._has_ended else b""
        packed, counts = language.read(token, self._packed, self.counts)
        slacks = language.slacks(self.made_len + 1, None)
        if not token or not language.is_alive(slacks, packed, counts):
            raise IllegalToken(f"token {token_id} cannot follow")
        self._packed = packed
        self.counts = counts
        self.made_len += 1
        self._complete = self._transitions = None

    def _holds(self, packed: int, counts: list[int]) -> bool:
        """Whether a text with as many tokens as this one is in the language there."""
        language = self._language
        tokens = language.tokens
        segment = (
            0 if tokens is None else int(np.searchsorted(tokens.boundaries, self.made_len, "right"))
        )
        return language.is_alive(language.accepted[segment], packed, counts)

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted one after the other; changes nothing."""
        ahead = self.fork()
        for num_accepted, token_id in enumerate(token_ids):
            try:
                ahead.advance(token_id)
            except IllegalToken:
                return num_accepted
        return len(token_ids)

    def deterministic_suffix(self) -> bytes:
        """The bytes with which every legal text continues.

        Empty where bytes do not determine what tokens can complete.
        """
        forced = bytearray()
        language = self._language
        packed = self._packed
        counts = self.counts
        if self._has_ended or not language.follows_bytes:
            return b""
        is_complete = self.is_complete
        while len(forced) < _MAX_FORCED and not is_complete:
            following = language.only_byte(packed, counts)
            if following is None:
                break
            forced.append(following)
            packed, counts = language.read(bytes([following]), packed, counts)
            is_complete = self._holds(packed, counts)
        return bytes(forced)

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = (), num_failed: int = 0
    ) -> tuple[int, ...] | None:
        """The fewest tokens that complete the text, plain ones first; None: over `max_len`.

        Without distances fewer tokens may be possible, and none may be found.
        `tails` and `num_failed` are not used: nothing is searched repeatedly.
        """
        if self._has_ended:
            return ()
        distances = self._language.distances
        if distances is None:
            return self._greedy(max_len)
        needed = bisect_left(
            range(max_len + 1),
            True,
            key=lambda length: self._language.is_alive(
                distances.within(self.made_len, length), self._packed, self.counts
            ),
        )
        if needed > max_len:
            return None
        completion: list[int] = []
        ahead = self.fork()
        for left in range(needed - 1, -1, -1):
            transitions = ahead.transitions()
            slacks = distances.within(ahead.made_len + 1, left)
            token_id = transitions.first_token(transitions.legal(slacks, ahead.counts))
            assert token_id is not None, "a text that can be completed has a next token"
            ahead.advance(token_id)
            completion.append(token_id)
        return tuple(completion)

    def _greedy(self, max_len: int) -> tuple[int, ...] | None:
        """A completion whose tokens count as much as possible, with a searched one behind them."""
        ahead = self.fork()
        tokens: list[int] = []
        while not ahead.is_complete and len(tokens) < max_len:
            transitions = ahead.transitions()
            legal = transitions.legal(self._language.coaccessible_slacks, ahead.counts)
            token_id = transitions.farthest_token(legal, ahead.counts)
            if token_id is None:
                rest = shortest_completion(ahead, self._language.vocabulary, max_len - len(tokens))
                return None if rest is None else (*tokens, *rest)
            ahead.advance(token_id)
            tokens.append(token_id)
        return tuple(tokens) if ahead.is_complete else None

    def fork(self) -> "WhereMatcher":
        """Another matcher at the same place."""
        twin = WhereMatcher(self._language, self._packed, self.counts, self.made_len)
        twin._has_ended = self._has_ended
        return twin

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is in the language."""
        if self._complete is None:
            self._complete = self._holds(self._packed, self.counts)
        return self._complete

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""
        if self._has_ended:
            return True
        if not self.is_complete:
            return False
        slacks = self._language.slacks(self.made_len + 1, None)
        return not self.transitions().legal(slacks, self.counts).any()


def compile_where(
    expression: Expression,
    vocabulary: Vocabulary,
    *,
    is_plain: bool = False,
) -> WhereLanguage:
    """The language of an expression.

    is_plain: masks bring no white space into a text that the model would not write
    Raises Contradiction, TooComplex and, for another engine to try, OutOfReach.
    """
    machine = machine_of(expression)
    # Characters without a step from any state need no places for their bytes.
    utf8 = utf8_of(machine.partition, np.any(machine.steps, axis=0))
    counter_grid = CounterGrid.of(machine, utf8.num_places)
    by_state = counter_grid.coaccessible(machine)
    if by_state is None:
        raise contradiction(expression)
    plain_space = PlainSpace.of(vocabulary, expression) if is_plain else None
    language = WhereLanguage(
        expression, vocabulary, machine, utf8, counter_grid, by_state, plain_space
    )
    counts = [0] * len(machine.counters)
    start = language.table.start
    if language.follows_bytes or language.is_alive(language.slacks(0, None), start, counts):
        return language
    error = contradiction(expression)
    if not alphabet_of(vocabulary).spells_utf8 and not is_plainly_empty(expression):
        what = "the model has no tokens that spell such a text"
        raise Contradiction(f"{error}: {what}", error.parts)
    raise error
