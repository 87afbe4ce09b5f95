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

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from constraints.bitmask import Bitmask
from constraints.errors import Contradiction, IllegalToken, TooComplex
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.search import shortest_completion
from constraints.regex.char_sets import plain_places, utf8_of
from constraints.token_trie import PLACE_MASK, trie_of
from constraints.vocabulary import Vocabulary
from constraints.where.contradictions import contradiction, is_plainly_empty
from constraints.where.counter_grid import NEVER, CounterGrid, Slacks
from constraints.where.distances import Distances, ways_of_tokens
from constraints.where.evaluate import dropped_phrases
from constraints.where.machine import Machine, machine_of
from constraints.where.plain_space import PlainSpace
from constraints.where.terms import Expression
from constraints.where.token_transitions import ByteTable, TokenTransitions, TransitionCache


class ByteSteps:
    """Immutable; shared by threads."""

    def __init__(self, table: ByteTable, counter_grid: CounterGrid) -> None:
        self._table = table
        self._counter_grid = counter_grid
        self._entries = table.entries.data
        self._classes: list[int] = table.utf8.classes.tolist()
        self._letters = _letters(self._classes)

    def read(self, text: bytes, packed: int, counts: list[int]) -> tuple[int, list[int]]:
        """The place and the counts behind some bytes; place 0 if they are illegal."""
        entries = self._entries
        classes = self._classes
        state = packed
        for byte in text:
            place = state & PLACE_MASK
            step = entries[place + classes[byte]]
            if not step & PLACE_MASK:
                return 0, counts
            state = step + (state - place)
        gains = self._table.gains_of(state)
        held = [
            min(count + gain, counter.cap)
            for count, gain, counter in zip(counts, gains, self._counter_grid.counters, strict=True)
        ]
        return state & PLACE_MASK, held

    def is_alive(self, slacks: Slacks, packed: int, counts: list[int]) -> bool:
        """Whether the slacks of a place cover the counts."""
        return self._counter_grid.is_within(slacks, packed // self._table.width, counts)

    def only_byte(self, slacks: Slacks, packed: int, counts: list[int]) -> int | None:
        """The only byte that leads to a live place; None: there are several or none."""
        only: int | None = None
        for letter, has_equals in self._letters:
            after, counted = self.read(letter, packed, counts)
            if after and self.is_alive(slacks, after, counted):
                if has_equals or only is not None:
                    return None
                only = letter[0]
        return only


def _letters(classes: list[int]) -> list[tuple[bytes, bool]]:
    """A representative of each class of bytes, and whether it has equals; large classes first."""
    likes: dict[int, list[int]] = {}
    for byte, kind in enumerate(classes):
        likes.setdefault(kind, []).append(byte)
    largest_first = sorted(likes.values(), key=len, reverse=True)
    return [(bytes(each[:1]), len(each) > 1) for each in largest_first]


# States whose transitions are computed while compiling, where distances do not need all of them.
_MAX_AHEAD = 32
# The most kinds of tokens that are compared in a few microseconds.
_MAX_QUICK_KINDS = 1_000
# The most forced bytes that are returned at once.
_MAX_FORCED = 4096


@dataclass(eq=False)
class WhereLanguage:
    """A compiled expression; immutable but for its caches, shared by threads.

    coaccessible_slacks: of every place, computed over bytes
    expression:          what was compiled
    plain_space:         white space that masks do not bring into a text; None: they may
    """

    vocabulary: Vocabulary
    machine: Machine
    counter_grid: CounterGrid
    table: ByteTable
    accepted: tuple[Slacks, ...]
    coaccessible_slacks: Slacks
    expression: Expression
    dropped_phrases: tuple[str, ...] = ()
    plain_space: PlainSpace | None = None

    may_have_dead_ends: ClassVar[bool] = False
    # Every part of an expression is enforced.
    not_enforced: ClassVar[tuple[str, ...]] = ()
    # Tables depend on the vocabulary, so each process compiles the expression.
    translation: ClassVar[None] = None
    # A search needs nothing but the tables.

    def __post_init__(self) -> None:
        self.transition_cache = TransitionCache(
            trie_of(self.vocabulary), self.table, self.counter_grid
        )
        ends = np.zeros(self.vocabulary.num_words * 32, dtype=np.bool_)
        ends[list(self.vocabulary.end_ids)] = True
        self.end_mask = np.packbits(ends, bitorder="little")
        self.steps = ByteSteps(self.table, self.counter_grid)
        self.tokens = self.machine.tokens
        self.spells_utf8 = alphabet_of(self.vocabulary).spells_utf8
        self.distances: Distances | None = None
        try:
            self.distances = self._distances()
        except TooComplex:
            if self.tokens is not None:
                raise
            self._warm_up()
        self.follows_bytes = self.distances is None or (self.tokens is None and self.spells_utf8)

    def _distances(self) -> Distances:
        """Raises TooComplex."""
        is_alive = np.any(self.coaccessible_slacks > NEVER, axis=1)
        is_followed = is_alive
        if self.spells_utf8 and self.tokens is None:
            # Where a byte is a token, it is enough to know of other places how their bytes go on.
            is_plain = plain_places(self.table.utf8, self.machine.partition)
            is_followed = is_alive & np.tile(is_plain, self.machine.num_states)
        # Where single bytes are tokens, tokens reach every place.
        start = self.table.start // self.table.width
        starts = np.flatnonzero(is_followed) if self.spells_utf8 else np.array([start])
        ways = ways_of_tokens(
            self.counter_grid, self.table, self.transition_cache, starts, is_followed, is_alive
        )
        return Distances(self.counter_grid, self.accepted, self.tokens, ways)

    def _warm_up(self) -> None:
        """Compute the transitions of the first places, which would delay the first masks."""
        inside = self.table.utf8.num_places
        for state in range(1, min(self.machine.num_states, _MAX_AHEAD)):
            self.transition_cache.transitions(state * inside)

    @property
    def knows_distances(self) -> bool:
        """Masks take account of `max_len`, and `shortest` is exact."""
        return self.distances is not None

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
            mask = language.transition_cache.mask(self._place, transitions, legal)
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

    def is_alive(self, slacks: Slacks) -> bool:
        """Whether the counts are within the slacks of this place."""
        return self._language.steps.is_alive(slacks, self._packed, self.counts)

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken."""
        after = self._after(token_id, self._packed, self.counts, self.made_len)
        if self._has_ended or after is None:
            raise IllegalToken(f"token {token_id} cannot follow")
        packed, self.counts = after
        self._complete = self._transitions = None
        if token_id in self._language.vocabulary.end_ids:
            self._has_ended = True
            return
        self._packed = packed
        self.made_len += 1

    def _after(
        self, token_id: int, packed: int, counts: list[int], made_len: int
    ) -> tuple[int, list[int]] | None:
        """The place and the counts behind a legal token; None for other tokens."""
        language = self._language
        if not 0 <= token_id < len(language.vocabulary.tokens):
            return None
        if token_id in language.vocabulary.end_ids:
            return (packed, counts) if self._holds(packed, counts, made_len) else None
        token = language.vocabulary.tokens[token_id]
        if not token:
            return None
        packed, counts = language.steps.read(token, packed, counts)
        slacks = language.slacks(made_len + 1, None)
        return (packed, counts) if language.steps.is_alive(slacks, packed, counts) else None

    def _holds(self, packed: int, counts: list[int], made_len: int) -> bool:
        language = self._language
        tokens = self._language.tokens
        segment = (
            0 if tokens is None else int(np.searchsorted(tokens.boundaries, made_len, "right"))
        )
        return language.steps.is_alive(language.accepted[segment], packed, counts)

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted one after the other; changes nothing."""
        packed = self._packed
        counts = self.counts
        made_len = self.made_len
        if self._has_ended:
            return 0
        for num_accepted, token_id in enumerate(token_ids):
            after = self._after(token_id, packed, counts, made_len)
            if after is None:
                return num_accepted
            if token_id in self._language.vocabulary.end_ids:
                return num_accepted + 1
            packed, counts = after
            made_len += 1
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
            following = language.steps.only_byte(language.coaccessible_slacks, packed, counts)
            if following is None:
                break
            forced.append(following)
            packed, counts = language.steps.read(bytes([following]), packed, counts)
            is_complete = self._holds(packed, counts, self.made_len)
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
        language = self._language
        if language.distances is not None:
            return _shortest_by_distances(self, language.distances, max_len)
        return self._greedy(max_len)

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
            self._complete = self._holds(self._packed, self.counts, self.made_len)
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


def _shortest_by_distances(
    state: "WhereMatcher", distances: Distances, max_len: int
) -> tuple[int, ...] | None:
    """The fewest tokens that complete the text, plain tokens first; None: more than `max_len`."""
    needed = _smallest(
        lambda length: state.is_alive(distances.within(state.made_len, length)), max_len
    )
    if needed is None:
        return None
    tokens: list[int] = []
    ahead = state.fork()
    for left in range(needed - 1, -1, -1):
        token_id = _next(ahead, distances.within(ahead.made_len + 1, left))
        assert token_id is not None, "a text that can be completed has a next token"
        ahead.advance(token_id)
        tokens.append(token_id)
    return tuple(tokens)


def _next(state: "WhereMatcher", slacks: Slacks) -> int | None:
    """The plainest token behind which the counts are within the slacks."""
    transitions = state.transitions()
    return transitions.first_token(transitions.legal(slacks, state.counts))


def _smallest(is_enough: Callable[[int], bool], limit: int) -> int | None:
    """The smallest number that is enough (as all above it are); None: `limit` is not enough."""
    found = bisect_left(range(limit + 1), True, key=is_enough)
    return found if found <= limit else None


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
    plain_space = PlainSpace.of(vocabulary, expression) if is_plain else None
    language = _language(expression, vocabulary, plain_space)
    if language is not None:
        return language
    error = contradiction(expression)
    if not alphabet_of(vocabulary).spells_utf8 and not is_plainly_empty(expression):
        what = "the model has no tokens that spell such a text"
        raise Contradiction(f"{error}: {what}", error.parts)
    raise error


def _language(
    expression: Expression,
    vocabulary: Vocabulary,
    plain_space: PlainSpace | None = None,
) -> WhereLanguage | None:
    """None if nothing satisfies the expression."""
    machine = machine_of(expression)
    # Characters without a step from any state need no places for their bytes.
    utf8 = utf8_of(machine.partition, np.any(machine.steps, axis=0))
    counter_grid = CounterGrid.of(machine, utf8.num_places)
    by_state = counter_grid.coaccessible(machine)
    if by_state is None:
        return None
    table = ByteTable.of(machine, utf8, trie_of(vocabulary).max_token_len)
    language = WhereLanguage(
        vocabulary=vocabulary,
        machine=machine,
        counter_grid=counter_grid,
        table=table,
        accepted=tuple(table.accepted(slacks) for slacks in counter_grid.accepted(machine)),
        coaccessible_slacks=table.spread(machine, counter_grid, by_state),
        expression=expression,
        dropped_phrases=dropped_phrases(expression),
        plain_space=plain_space,
    )
    if not language.follows_bytes:
        start = table.start // table.width
        if not counter_grid.is_within(language.slacks(0, None), start, [0] * len(machine.counters)):
            return None
    return language
