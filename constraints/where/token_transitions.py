"""The transitions of all tokens from one place, grouped into few kinds, and masks of them.

token -> kind -> (place, gains of each count)      a kind is legal or not as a whole

Both are kept in bounded caches of a language. They are walks over the token trie, for which a
machine over bytes is packed:

place = state of the machine * places of UTF-8 + place inside a character
entry = next place * width, and above it the gains, one bit field for each counter
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from constraints.errors import TooManyStates
from constraints.regex.char_sets import Utf8
from constraints.token_trie import (
    PLACE_BITS,
    PLACE_MASK,
    Actions,
    Packed,
    TokenTrie,
    actions_of,
)
from constraints.where.counter_grid import NEVER, CounterGrid, Slacks, Ways, best_through
from constraints.where.machine import Counts, Machine

GAIN_BITS = 12
_GAIN_MASK = (1 << GAIN_BITS) - 1
# The most states times places inside of characters: the size of a byte table.
_MAX_PLACES = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class ByteTable:
    """entries: [num_places * width]; place 0 is dead, its entries are 0."""

    entries: Packed
    width: int
    num_places: int
    num_counters: int
    utf8: Utf8
    start: int  # packed, without gains

    @classmethod
    def of(cls, machine: Machine, utf8: Utf8, max_token_len: int) -> "ByteTable":
        """Raises OutOfReach where gains or places do not fit into an entry."""
        inside = utf8.num_places
        width = utf8.labels.shape[1]
        num_places = machine.num_states * inside
        gain = _most_gained(machine, max_token_len)
        if num_places > _MAX_PLACES or num_places * width > PLACE_MASK or gain > _GAIN_MASK:
            raise TooManyStates(f"{num_places} places, {gain} counts in a token")
        shifts = PLACE_BITS + GAIN_BITS * np.arange(len(machine.counters), dtype=np.int64)
        states = np.arange(machine.num_states, dtype=np.int64)
        after = machine.steps.astype(np.int64) * inside * width
        after += (machine.gains << shifts).sum(axis=2)
        entries = np.zeros((machine.num_states, inside, width), dtype=np.int64)
        for place in range(inside):
            for column in range(width):
                if (label := utf8.labels[place, column]) >= 0:
                    entries[:, place, column] = after[:, label]
                elif (deeper := utf8.places[place, column]) >= 0:
                    entries[:, place, column] = (states * inside + deeper) * width
        entries[0] = 0
        return cls(
            entries.reshape(-1),
            width,
            num_places,
            len(machine.counters),
            utf8,
            machine.start * inside * width,
        )

    def steps_inside(self, inside: npt.NDArray[np.int64]) -> tuple[Packed, Packed, Counts]:
        """The steps of single bytes from places inside of characters, in every state.

        inside: which of UTF-8's places. Returns the sources, the targets and the gains.
        """
        # Most bytes lead where others do.
        after = 1 + np.stack([self.utf8.labels[inside], self.utf8.places[inside]], axis=2)
        keys = after @ np.array([self.utf8.num_places + 1, 1])
        keys += np.arange(len(inside))[:, None] * (int(keys.max(initial=0)) + 1)
        _, first = np.unique(keys, return_index=True)
        places, columns = inside[first // self.width], first % self.width
        entries = self.entries.reshape(-1, self.utf8.num_places, self.width)[:, places, columns]
        states, which = np.nonzero(entries & PLACE_MASK)
        packed = entries[states, which]
        sources = states * self.utf8.num_places + places[which]
        return sources, self.targets(packed), self.gains(packed)

    def targets(self, packed: Packed) -> npt.NDArray[np.int64]:
        """The places of packed states."""
        return (packed & PLACE_MASK) // self.width

    def gains(self, packed: Packed) -> Counts:
        """The gains in packed states, [..., num_counters]."""
        shifts = PLACE_BITS + GAIN_BITS * np.arange(self.num_counters, dtype=np.int64)
        return (packed[..., None] >> shifts) & _GAIN_MASK

    def read(self, text: bytes, packed: int) -> int:
        """The packed state behind some bytes; 0 if they are illegal."""
        entries = self.entries.data
        classes = self.utf8.classes.tobytes()
        for byte in text:
            place = packed & PLACE_MASK
            step = entries[place + classes[byte]]
            if not step & PLACE_MASK:
                return 0
            packed += step - place
        return packed

    def gains_of(self, packed: int) -> list[int]:
        """The gains in one packed state, by counter."""
        gained = packed >> PLACE_BITS
        return [gained >> GAIN_BITS * counter & _GAIN_MASK for counter in range(self.num_counters)]

    def spread(self, machine: Machine, counter_grid: CounterGrid, slacks: Slacks) -> Slacks:
        """The slacks of every place, computed from those of the states between characters."""
        inside = self.utf8.num_places
        whole = np.full((machine.num_states, inside, slacks.shape[1]), NEVER, dtype=np.int32)
        whole[:, 0] = slacks
        # Most places complete the same characters.
        completed, kinds = np.unique(
            self.utf8.complete[1:, : machine.steps.shape[1]], axis=0, return_inverse=True
        )
        for kind, completes in enumerate(completed):
            sources, labels = np.nonzero((machine.steps > 0) & completes)
            targets = machine.steps[sources, labels].astype(np.int64)
            gains = machine.gains[sources, labels]
            ways = Ways.of(counter_grid, sources, targets, gains)
            found, best = best_through(counter_grid, ways, slacks[None], 0)
            for place in 1 + np.flatnonzero(kinds.reshape(-1) == kind):
                whole[found, place] = best
        return whole.reshape(-1, slacks.shape[1])

    def accepted(self, accepted: Slacks) -> Slacks:
        """Slacks of accepting now at every place; inside of a character nothing is accepted."""
        whole = np.full(
            (len(accepted), self.utf8.num_places, accepted.shape[1]), NEVER, dtype=np.int32
        )
        whole[:, 0] = accepted
        return whole.reshape(-1, accepted.shape[1])


def _most_gained(machine: Machine, num_chars: int) -> int:
    """The most that so many characters can add to a count.

    A pending gain is counted once: otherwise a character adds no more than it counts itself.
    """
    pending = machine.pending.max(initial=0)
    counted = machine.gains + machine.pending[machine.steps] - machine.pending[:, None]
    return int(max(counted.max(initial=0), 0) * num_chars + pending)


class TokenTransitions:
    """Immutable; shared by threads."""

    def __init__(
        self,
        actions: Actions,
        index: int,
        table: ByteTable,
        counter_grid: CounterGrid,
        trie: TokenTrie,
    ) -> None:
        """actions: of tokens at several places; index: this one among them."""
        # The first action is dead everywhere, and others may be here.
        packed, kinds = np.unique(actions.ends[:, index], return_inverse=True)
        self.targets = table.targets(packed[1:])
        self.gains: Counts = table.gains(packed[1:])
        self.num_kinds = len(packed) - 1
        # The plainest token of each kind, as its rank among all.
        examples = np.full(len(packed), trie.vocab_size, dtype=np.int64)
        np.minimum.at(examples, kinds.reshape(-1), actions.plainest)
        self._examples = examples[1:]
        # Of each action, 1 + its kind; 0 for tokens that cannot follow.
        self._kinds = kinds.reshape(-1).astype(np.min_scalar_type(len(packed)))
        self._of_tokens = actions.of_tokens
        self._trie = trie
        self._counter_grid = counter_grid
        self._cells = self.targets * counter_grid.num_cells
        # Each counter on the counter grid: its place, cells and stride.
        strides = counter_grid.strides().tolist()
        self._layout = tuple(zip(counter_grid.cells, counter_grid.shape, strides, strict=True))
        # Its size in memory.
        shared = self._of_tokens.nbytes // actions.ends.shape[1]
        own = 8 * self.num_kinds * (3 + len(counter_grid.counters))
        self.num_bytes = shared + self._kinds.nbytes + own

    def legal(self, slacks: Slacks, counts: list[int]) -> npt.NDArray[np.bool_]:
        """Whether each kind leads to a place that is alive under `slacks`."""
        counter_grid = self._counter_grid
        cells = self._cells
        for place, size, stride in self._layout:
            cells = cells + np.minimum(self.gains[:, place] + counts[place], size - 1) * stride
        weighed: npt.NDArray[np.int64] | int = 0
        if counter_grid.slack is not None:
            counter = counter_grid.slack
            cap = counter_grid.counters[counter].cap
            weighed = (
                np.minimum(self.gains[:, counter] + counts[counter], cap) * counter_grid.weight
            )
        legal: npt.NDArray[np.bool_] = slacks.reshape(-1).take(cells) >= weighed
        return legal

    def mask(self, legal: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
        """The bitmask of the legal kinds, little-endian, in whole words."""
        chosen = np.concatenate([[False], legal])[self._kinds]
        return np.packbits(chosen.take(self._of_tokens), bitorder="little")

    def first_token(self, legal: npt.NDArray[np.bool_]) -> int | None:
        """The plainest token of a legal kind."""
        return int(self._trie.plain_first[self._examples[legal].min()]) if legal.any() else None

    def farthest_token(self, legal: npt.NDArray[np.bool_], counts: list[int]) -> int | None:
        """The token of a legal kind that raises counts most towards their caps; None: none does."""
        caps = np.array([counter.cap for counter in self._counter_grid.counters])
        gained = np.minimum(self.gains, caps - counts)
        progress = np.where(legal, (gained / caps).sum(axis=1), 0.0)
        return self.first_token(progress == progress.max()) if progress.any() else None


_MAX_TRANSITIONS_BYTES = 64_000_000
_MAX_MASKS = 512
# The most places whose actions are computed at once.
_MAX_AT_ONCE = 256


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
        self._num_at_once = _MAX_AT_ONCE
        self._mask_of = lru_cache(_MAX_MASKS)(self._make_mask)

    def mask(self, place: int, legal: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
        """The bitmask of the legal kinds of a place's transitions. Read only."""
        return self._mask_of(place, legal.tobytes())

    def _make_mask(self, place: int, legal: bytes) -> npt.NDArray[np.uint8]:
        # The lock is held while transitions are computed.
        transitions = self.known(place) or self.transitions(place)
        return transitions.mask(np.frombuffer(legal, dtype=np.bool_))

    def known(self, place: int) -> TokenTransitions | None:
        """The transitions of a place if they are cached; does not wait for other threads."""
        return self._transitions.get(place)

    def transitions(self, place: int) -> TokenTransitions:
        with self._lock:
            found = self._transitions.get(place)
            if found is not None:
                self._transitions.move_to_end(place)
                return found
            actions = self._actions([place])
            assert actions is not None, "one place has no more actions than tokens"
            return self._kept(place, actions, 0)

    def transitions_of(self, places: list[int]) -> Iterator[tuple[int, TokenTransitions]]:
        """The transitions of several places, computed together."""
        while places:
            now = places[: self._num_at_once]
            actions = self._actions(now)
            if actions is None:
                self._num_at_once //= 4  # from fewer places more tokens are equal
                continue
            with self._lock:
                found = [self._kept(place, actions, index) for index, place in enumerate(now)]
            yield from zip(now, found, strict=True)
            places = places[len(now) :]

    def _actions(self, places: list[int]) -> Actions | None:
        starts = np.array(places, dtype=np.int64) * self._table.width
        return actions_of(self._trie, self._table.entries, self._table.width, self._columns, starts)

    def _kept(self, place: int, actions: Actions, index: int) -> TokenTransitions:
        transitions = self._transitions.get(place)
        if transitions is not None:
            return transitions
        transitions = TokenTransitions(actions, index, self._table, self._counter_grid, self._trie)
        self._transitions[place] = transitions
        self._num_bytes += transitions.num_bytes
        while self._num_bytes > _MAX_TRANSITIONS_BYTES and len(self._transitions) > 1:
            _, gone = self._transitions.popitem(last=False)
            self._num_bytes -= gone.num_bytes
        return transitions
