"""The engine for `where` expressions: a language, and where one output stands in it.

    place    of the byte table: the joint state of all automata, and the place inside a character
    counts   of characters, words and sentences, each held at its last bound
    legal    a token after which the reserve of the place covers the counts

Masks take account of `max_len` exactly, for a text is looked at in tokens as well as in bytes.
Where there are too many places for that, completions are known along some of them: routes.
len(tokens(X)) counts every token made, those of a phrase that stops_before drops included.

What bytes can complete tokens can, too, unless tokens are counted or some byte is no token: then
places are alive by what tokens lead to, as far as distances are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask
from constraints.errors import IllegalToken, TooComplex
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.search import shortest_completion
from constraints.token_trie import TokenTrie
from constraints.vocabulary import Vocabulary
from constraints.where.byte_steps import ByteSteps
from constraints.where.byte_table import ByteTable
from constraints.where.completions import along, fewest
from constraints.where.counter_grid import NEVER, CounterGrid, Reserves
from constraints.where.distances import MAX_WORK, Distances
from constraints.where.machine import Machine
from constraints.where.terms import Expression
from constraints.where.token_transitions import TokenTransitions
from constraints.where.utf8 import plain_places
from constraints.where.views import Views

# States whose transitions are made while compiling, where distances do not need all of them.
_MAX_AHEAD = 32
# Work on routes: a tenth of a second, where counts can lead to an end as well.
_MAX_ROUTED = 8_000_000
# Kinds of tokens that are looked through in a few microseconds.
_MAX_QUICK_KINDS = 1_000
# Forced bytes that are returned at once.
_MAX_FORCED = 4096


@dataclass(eq=False)
class WhereLanguage:
    """A compiled expression; immutable but for what it remembers, shared by threads.

    live:       reserves of every place, as far as bytes can tell
    expression: what was compiled
    """

    vocabulary: Vocabulary
    walk: TokenTrie
    machine: Machine
    counter_grid: CounterGrid
    table: ByteTable
    accepted: tuple[Reserves, ...]
    live: Reserves
    expression: Expression
    dropped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.views = Views(self.walk, self.table, self.counter_grid)
        ends = np.zeros(self.vocabulary.num_words * 32, dtype=np.bool_)
        ends[list(self.vocabulary.end_ids)] = True
        self.end_mask = np.packbits(ends, bitorder="little")
        self.steps = ByteSteps(self.table, self.counter_grid)
        self.tokens = self.machine.tokens
        self.spells_utf8 = alphabet_of(self.vocabulary).spells_utf8
        self.distances: Distances | None = None
        # Where places are too many to know the distances of all: those of some.
        self.routes: Distances | None = None
        is_alive = np.any(self.live > NEVER, axis=1)
        try:
            self.distances = self._distances(is_alive)
        except TooComplex:
            if self.tokens is not None:
                raise
            self.routes = self._routes(is_alive)
            if self.routes is None:
                self._look_ahead()
        self.follows_bytes = self.distances is None or (self.tokens is None and self.spells_utf8)

    def _distances(self, is_followed: npt.NDArray[np.bool_], max_work: int = MAX_WORK) -> Distances:
        """Distances along these places alone. Raises TooComplex."""
        inside = self.table.utf8.num_places
        is_inside = np.arange(len(is_followed)) % inside > 0
        # Where single bytes are tokens, tokens come to every place.
        everywhere = np.flatnonzero(is_followed).tolist()
        return Distances(
            self.counter_grid,
            self.accepted,
            self.tokens,
            self.views.transitions_of,
            everywhere if self.spells_utf8 else [self.table.start // self.table.width],
            is_followed,
            int((is_followed & is_inside).sum()) * self.walk.num_nodes_after(0x80, 0xBF),
            max_work,
        )

    def _routes(self, is_alive: npt.NDArray[np.bool_]) -> Distances | None:
        """Distances along the plainest characters; None where these are no fewer, or too many.

        Tokens may have others, too, as long as they do not end inside of them.
        """
        is_plain = plain_places(self.table.utf8, self.machine.partition)
        is_followed = is_alive & np.tile(is_plain, self.machine.num_states)
        if (is_followed == is_alive).all():
            return None
        try:
            return self._distances(is_followed, _MAX_ROUTED)
        except TooComplex:
            return None

    def _look_ahead(self) -> None:
        """Nobody has looked out of any place yet: the first masks would take milliseconds."""
        inside = self.table.utf8.num_places
        for state in range(1, min(self.machine.num_states, _MAX_AHEAD)):
            self.views.transitions(state * inside)

    @property
    def knows_distances(self) -> bool:
        """Masks take account of `max_len`, and `shortest` is exact."""
        return self.distances is not None

    @property
    def dropped_phrases(self) -> tuple[str, ...]:
        """The phrases of stops_before."""
        return self.dropped

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """Nothing: expressions are kept whole."""
        return ()

    @property
    def translation(self) -> None:
        """Nothing: its tables are made for a vocabulary, where they are used."""

    def matcher(self) -> "WhereMatcher":
        """A matcher at the beginning of an output."""
        return WhereMatcher(self, self.table.start, [0] * len(self.counter_grid.counters), 0)

    @property
    def is_equipped(self) -> bool:
        """It searches with nothing but its tables."""
        return True

    def prepare_search(self) -> None:
        """Nothing is left to be made."""

    def in_bytes(self) -> None:
        """Tokens are counted, and distances known: no search is needed that walks over bytes."""
        return None

    def reserves_at_hand(self, made_len: int, max_len: int | None) -> Reserves | None:
        """As `reserves`, where nothing has to be made for it; waits for no other thread."""
        if self.distances is None or (max_len is None and self.follows_bytes):
            return self.live
        return self.distances.at_hand(made_len, max_len)

    def reserves(self, made_len: int, max_len: int | None) -> Reserves:
        """Reserves of places from which `max_len` more tokens can complete the text."""
        known = self.reserves_at_hand(made_len, max_len)
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
        # Of this place, once they were asked for.
        self._complete: bool | None = None
        self._outlook: TokenTransitions | None = None

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens, within `max_len` tokens where that is known."""
        language = self._language
        octets = row.view(np.uint8)
        octets[:] = 0
        if not self._has_ended and (max_len is None or max_len > 0):
            left = None if max_len is None else max_len - 1
            reserves = language.reserves(self.made_len + 1, left)
            transitions = self.transitions()
            legal = transitions.legal(reserves, self.counts)
            mask = language.views.mask(self._place, transitions, legal)
            octets[: len(mask)] = mask
        if self.is_complete:
            octets[: len(language.end_mask)] |= language.end_mask

    def is_quick(self, max_len: int | None) -> bool:
        """What the place looks out on is there, and is little, and so are the reserves."""
        left = None if max_len is None else max_len - 1
        self._outlook = self._language.views.known(self._place)
        if self._outlook is None or self._outlook.num_kinds > _MAX_QUICK_KINDS:
            return False
        return self._language.reserves_at_hand(self.made_len + 1, left) is not None

    @property
    def _place(self) -> int:
        return self._packed // self._language.table.width

    @property
    def is_inside(self) -> bool:
        """A character has begun and is not complete."""
        return self._place % self._language.table.utf8.num_places > 0

    def transitions(self) -> TokenTransitions:
        """What tokens lead to from here."""
        if self._outlook is None:
            self._outlook = self._language.views.transitions(self._place)
        return self._outlook

    def is_alive(self, reserves: Reserves) -> bool:
        """Whether the reserves of the place cover the counts."""
        return self._language.steps.is_alive(reserves, self._packed, self.counts)

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken."""
        after = self._after(token_id, self._packed, self.counts, self.made_len)
        if self._has_ended or after is None:
            raise IllegalToken(f"token {token_id} cannot follow")
        packed, self.counts = after
        self._complete = self._outlook = None
        if token_id in self._language.vocabulary.end_ids:
            self._has_ended = True
            return
        self._packed = packed
        self.made_len += 1

    def _after(
        self, token_id: int, packed: int, counts: list[int], made_len: int
    ) -> tuple[int, list[int]] | None:
        """Where a legal token leads; None for others."""
        language = self._language
        if not 0 <= token_id < len(language.vocabulary.tokens):
            return None
        if token_id in language.vocabulary.end_ids:
            return (packed, counts) if self._holds(packed, counts, made_len) else None
        token = language.vocabulary.tokens[token_id]
        if not token:
            return None
        packed, counts = language.steps.read(token, packed, counts)
        reserves = language.reserves(made_len + 1, None)
        return (packed, counts) if language.steps.is_alive(reserves, packed, counts) else None

    def _holds(self, packed: int, counts: list[int], made_len: int) -> bool:
        language, tokens = self._language, self._language.tokens
        segment = 0 if tokens is None else int(np.searchsorted(tokens.cuts, made_len, "right"))
        return language.steps.is_alive(language.accepted[segment], packed, counts)

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted one after the other; changes nothing."""
        packed, counts, made_len = self._packed, self.counts, self.made_len
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

    def forced_bytes(self) -> bytes:
        """The bytes that every legal text goes on with.

        None are returned where bytes do not say what tokens can complete.
        """
        forced = bytearray()
        language, packed, counts = self._language, self._packed, self.counts
        if self._has_ended or not language.follows_bytes:
            return b""
        is_complete = self.is_complete
        while len(forced) < _MAX_FORCED and not is_complete:
            following = language.steps.only_byte(language.live, packed, counts)
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

        Without distances there may be fewer, and without routes a completion may be missed.
        CompletionHints are not needed, and nothing is searched for again and again.
        """
        if self._has_ended:
            return ()
        language = self._language
        if language.distances is not None:
            return fewest(self, language.distances, max_len)
        found = None
        if language.routes is not None:
            found = along(self, language.routes, language.live, max_len)
            # Where every byte can be written, routes lead from everywhere to an end.
            if language.spells_utf8:
                return found
        return self._greedy(max_len) if found is None else found

    def _greedy(self, max_len: int) -> tuple[int, ...] | None:
        """A completion that counts as much as can be with every token, then any that is found."""
        ahead = self.fork()
        tokens: list[int] = []
        while not ahead.is_complete and len(tokens) < max_len:
            transitions = ahead.transitions()
            legal = transitions.legal(self._language.live, ahead.counts)
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
        """What was accepted so far is in the language."""
        if self._complete is None:
            self._complete = self._holds(self._packed, self.counts, self.made_len)
        return self._complete

    @property
    def is_over(self) -> bool:
        """It is, and nothing but the end may follow."""
        if self._has_ended:
            return True
        if not self.is_complete:
            return False
        language = self._language
        if language.follows_bytes:
            return not language.steps.goes_on(language.live, self._packed, self.counts)
        transitions = self.transitions()
        reserves = language.reserves(self.made_len + 1, None)
        return not transitions.legal(reserves, self.counts).any()
