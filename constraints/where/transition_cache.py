"""The transitions of a language's places and their masks, in bounded caches."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.token_actions import actions_of
from constraints.token_trie import TokenTrie
from constraints.where.byte_table import ByteTable
from constraints.where.counter_grid import CounterGrid
from constraints.where.token_transitions import TokenTransitions

_MAX_TRANSITIONS_BYTES = 64_000_000
_MAX_MASKS = 512
# The most places from which the trie is walked at once.
_MAX_WALKED = 128
# Numbers of places whose actions are computed at once; from fewer the trie is walked one by one.
_MIN_ACTED = 4
_MAX_ACTED = 256
# The most trie nodes that are visited one by one, for all places.
_MAX_NODES = 100_000_000


class TransitionCache:
    """Shared by threads; drops the least recently used first."""

    def __init__(self, trie: TokenTrie, table: ByteTable, counter_grid: CounterGrid) -> None:
        self._trie = trie
        self._table = table
        self._counter_grid = counter_grid
        self._columns = trie.bytes_of_levels(table.utf8.classes)
        self._lock = threading.RLock()
        self._transitions: OrderedDict[int, TokenTransitions] = OrderedDict()
        self._num_bytes = 0
        self._num_acted = _MAX_ACTED
        self._num_nodes = 0
        self._masks: OrderedDict[tuple[int, bytes], npt.NDArray[np.uint8]] = OrderedDict()
        # A lock of its own: the other one is held while transitions are computed.
        self._masks_lock = threading.Lock()

    def mask(
        self, place: int, transitions: TokenTransitions, legal: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.uint8]:
        """The bitmask of the legal kinds of a place's transitions. Read only."""
        key = place, legal.tobytes()
        with self._masks_lock:
            found = self._masks.get(key)
            if found is not None:
                self._masks.move_to_end(key)
                return found
        mask = transitions.mask(legal)
        with self._masks_lock:
            self._masks[key] = mask
            if len(self._masks) > _MAX_MASKS:
                self._masks.popitem(last=False)
        return mask

    def known(self, place: int) -> TokenTransitions | None:
        """The transitions of a place if they are cached; does not wait for other threads."""
        return self._transitions.get(place)

    def transitions(self, place: int) -> TokenTransitions:
        with self._lock:
            found = self._transitions.get(place)
            if found is not None:
                self._transitions.move_to_end(place)
                return found
            start = place * self._table.width
            ends = self._trie.walk(self._table.entries, self._columns, start)
            transitions = TokenTransitions.of_ends(
                ends, self._table, self._counter_grid, self._trie
            )
            return self._kept(place, transitions)

    def transitions_of(self, places: Sequence[int]) -> list[TokenTransitions]:
        """The transitions of several places, computed together where that is less work.

        Raises TooComplex where all of them take too much work.
        """
        # Few tokens begin inside of a character: the trie is walked along live ways.
        inside = [place for place in places if place % self._table.utf8.num_places]
        found: dict[int, TokenTransitions] = {}
        for begin in range(0, len(inside), _MAX_WALKED):
            self._follow_from(inside[begin : begin + _MAX_WALKED], found)
        between = [place for place in places if not place % self._table.utf8.num_places]
        while between and len(between) >= _MIN_ACTED <= self._num_acted:
            batch = between[: self._num_acted]
            rest = between[self._num_acted :]
            if self._act_from(batch, found):
                between = rest
            else:
                self._num_acted //= 4  # from fewer places more tokens are equal
        for place in between:
            self._num_nodes += self._trie.num_nodes_from(
                self._table.entries, self._columns, place * self._table.width
            )
            if self._num_nodes > _MAX_NODES:
                raise TooComplex("tokens do too many different things from too many places")
            found[place] = self.transitions(place)
        return [found[place] for place in places]

    def _follow_from(self, places: list[int], found: dict[int, TokenTransitions]) -> None:
        starts = np.array(places, dtype=np.int64) * self._table.width
        ends = self._trie.walk_several(self._table.entries, self._columns, starts)
        with self._lock:
            for place, part in zip(places, ends.split(len(places)), strict=True):
                transitions = TokenTransitions.of_ends(
                    part, self._table, self._counter_grid, self._trie
                )
                found[place] = self._kept(place, transitions)

    def _act_from(self, places: list[int], found: dict[int, TokenTransitions]) -> bool:
        """Whether tokens have few enough different actions at these places."""
        starts = np.array(places, dtype=np.int64) * self._table.width
        actions = actions_of(self._trie, self._table.entries, self._columns, starts)
        if actions is None:
            return False
        with self._lock:
            for index, place in enumerate(places):
                transitions = TokenTransitions.of_actions(
                    actions, index, self._table, self._counter_grid, self._trie
                )
                found[place] = self._kept(place, transitions)
        return True

    def _kept(self, place: int, transitions: TokenTransitions) -> TokenTransitions:
        known = self._transitions.get(place)
        if known is not None:
            return known
        self._transitions[place] = transitions
        self._num_bytes += transitions.num_bytes
        while self._num_bytes > _MAX_TRANSITIONS_BYTES and len(self._transitions) > 1:
            _, gone = self._transitions.popitem(last=False)
            self._num_bytes -= gone.num_bytes
        return transitions
