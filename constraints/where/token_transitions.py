"""The transitions of all tokens from one place, grouped into few kinds, and masks of them.

token -> kind -> (place, gains of each count)      a kind is legal or not as a whole

Both are kept in bounded caches of a language. They are walks over the token trie, for which a
machine over bytes is packed:

place = state of the machine * places of UTF-8 + place inside a character
entry = next place * width, and above it the gains, one bit field for each counter
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.regex.char_sets import Utf8
from constraints.regex.limits import MAX_NODES, TooManyStates
from constraints.token_trie import (
    PLACE_BITS,
    PLACE_MASK,
    Actions,
    Ends,
    Packed,
    TokenTrie,
    actions_of,
)
from constraints.where.counter_grid import NEVER, CounterGrid, Slacks, Ways, best_through
from constraints.where.machine import Counts, Machine

GAIN_BITS = 12
_GAIN_MASK = (1 << GAIN_BITS) - 1


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
        if num_places > MAX_NODES or num_places * width > PLACE_MASK or gain > _GAIN_MASK:
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
            ways = Ways.of(counter_grid, sources, targets, gains, num_layer_counters=0)
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


# Up to so many entries, kinds are numbered by a table of all places and gains.
_MAX_TABLE = 1 << 22
# So many kinds fit into 16 bits, with one to spare.
_MAX_SMALL = (1 << 16) - 1


class TokenTransitions:
    """Immutable; shared by threads."""

    def __init__(
        self,
        packed: Packed,
        tokens: "_Tokens",
        table: ByteTable,
        counter_grid: CounterGrid,
    ) -> None:
        """packed: the state of each kind; tokens: the kind of each token."""
        self.targets = table.targets(packed)
        self.gains: Counts = table.gains(packed)
        self.num_kinds = len(packed)
        self._counter_grid = counter_grid
        self._tokens = tokens
        self._cells = self.targets * counter_grid.num_cells
        # Each counter on the counter grid: its place, cells and stride.
        strides = counter_grid.strides().tolist()
        self._layout = tuple(zip(counter_grid.cells, counter_grid.shape, strides, strict=True))
        # Its size in memory.
        self.num_bytes = tokens.num_bytes + 8 * self.num_kinds * (3 + len(counter_grid.counters))

    @classmethod
    def of_ends(
        cls, ends: Ends, table: ByteTable, counter_grid: CounterGrid, trie: TokenTrie
    ) -> "TokenTransitions":
        """Made from the state behind each token."""
        kinds, packed = _kinds(ends, table)
        examples = np.full(len(packed), trie.vocab_size, dtype=np.int64)
        np.minimum.at(examples, kinds, trie.plainness[ends.token_ids])
        if len(kinds) * 8 < trie.vocab_size or len(packed) > _MAX_SMALL:
            tokens = _Tokens(trie, examples, kinds, ends.token_ids)
        else:
            dense = np.full(_num_bits(trie), len(packed), dtype=np.uint16)
            dense[ends.token_ids] = kinds
            tokens = _Tokens(trie, examples, dense)
        return cls(packed, tokens, table, counter_grid)

    @classmethod
    def of_actions(
        cls,
        actions: Actions,
        index: int,
        table: ByteTable,
        counter_grid: CounterGrid,
        trie: TokenTrie,
    ) -> "TokenTransitions":
        """Made from the actions of tokens at one of several places."""
        packed, kinds = np.unique(actions.ends[:, index], return_inverse=True)
        num_dead = int(packed[0] == 0)  # the last action is dead everywhere, and others may be here
        packed = packed[num_dead:]
        kinds = np.where(kinds.reshape(-1) < num_dead, len(packed), kinds.reshape(-1) - num_dead)
        examples = np.full(len(packed) + 1, trie.vocab_size, dtype=np.int64)
        np.minimum.at(examples, kinds, actions.plainest)
        tokens = _Tokens(
            trie,
            examples[:-1],
            actions.of_tokens,
            kinds=kinds.astype(np.uint16),
            num_sharing=actions.ends.shape[1],
        )
        return cls(packed, tokens, table, counter_grid)

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
        return np.packbits(self._tokens.bits(legal), bitorder="little")

    def first_token(self, legal: npt.NDArray[np.bool_]) -> int | None:
        """The plainest token of a legal kind."""
        return self._tokens.plainest(legal) if legal.any() else None

    def farthest_token(self, legal: npt.NDArray[np.bool_], counts: list[int]) -> int | None:
        """The token of a legal kind that raises counts most towards their caps; None: none does."""
        caps = np.array([counter.cap for counter in self._counter_grid.counters])
        gained = np.minimum(self.gains, caps - counts)
        progress = np.where(legal, (gained / caps).sum(axis=1), 0.0)
        return self._tokens.plainest(progress == progress.max()) if progress.any() else None


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """Which tokens are of which kind.

    Few are listed, in `token_ids`. For many, the group of every token is stored, which is its kind
    or, where `kinds` are given, its action: kinds has the kind of each action. The kind behind the
    last one is that of tokens that cannot follow.

    examples: the plainest token of each kind, as its rank among all
    groups:   of the listed tokens, or [num_bits]; shared by `num_sharing` transitions
    """

    trie: TokenTrie
    examples: npt.NDArray[np.int64]
    groups: npt.NDArray[np.integer]
    token_ids: npt.NDArray[np.int64] | None = None
    kinds: npt.NDArray[np.uint16] | None = None
    num_sharing: int = 1

    @property
    def num_bytes(self) -> int:
        own = sum(each.nbytes for each in (self.token_ids, self.kinds) if each is not None)
        return own + self.groups.nbytes // self.num_sharing

    def bits(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """For every token, whether its kind is chosen."""
        if self.token_ids is not None:
            bits = np.zeros(_num_bits(self.trie), dtype=np.bool_)
            bits[self.token_ids[chosen[self.groups]]] = True
            return bits
        chosen = np.append(chosen, False)
        return (chosen if self.kinds is None else chosen[self.kinds]).take(self.groups)

    def plainest(self, chosen: npt.NDArray[np.bool_]) -> int:
        """The plainest token of the chosen kinds."""
        return int(self.trie.plain_first[self.examples[chosen].min()])


def _num_bits(trie: TokenTrie) -> int:
    """The bits of a mask, in whole words."""
    return -(-trie.vocab_size // 32) * 32


def _kinds(ends: Ends, table: ByteTable) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The kind of each end, and the packed state of each kind."""
    states = ends.states
    if not len(states):
        return states, states
    keys = (states & PLACE_MASK) // table.width
    size = table.num_places
    for counter in range(table.num_counters):
        gained = (states >> (PLACE_BITS + GAIN_BITS * counter)) & ((1 << GAIN_BITS) - 1)
        keys += gained * size
        size *= int(gained.max()) + 1
        if size > _MAX_TABLE:
            packed, kinds = np.unique(states, return_inverse=True)
            return kinds.reshape(-1), packed
    packed_at = np.full(size, -1, dtype=np.int64)
    packed_at[keys] = states
    present = np.flatnonzero(packed_at >= 0)
    numbers = np.zeros(size, dtype=np.int64)
    numbers[present] = np.arange(len(present))
    return numbers[keys], packed_at[present]


_MAX_TRANSITIONS_BYTES = 64_000_000
_MAX_MASKS = 512
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
        found: dict[int, TokenTransitions] = {}
        left = list(places)
        while len(left) >= _MIN_ACTED <= self._num_acted:
            if self._act_from(left[: self._num_acted], found):
                left = left[self._num_acted :]
            else:
                self._num_acted //= 4  # from fewer places more tokens are equal
        for place in left:
            self._num_nodes += self._trie.num_nodes_from(
                self._table.entries, self._columns, place * self._table.width
            )
            if self._num_nodes > _MAX_NODES:
                raise TooComplex("tokens do too many different things from too many places")
            found[place] = self.transitions(place)
        return [found[place] for place in places]

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
