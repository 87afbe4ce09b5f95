"""A machine over bytes, packed for walks over the token trie.

place = state of the machine * places of UTF-8 + place inside a character
entry = next place * width, and above it the gains, one bit field for each counter
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.token_trie import PLACE_BITS, PLACE_MASK, Packed
from constraints.where.code_points import Utf8
from constraints.where.counter_grid import NEVER, CounterGrid, Slacks, Ways, best_through
from constraints.where.limits import MAX_NODES, TooManyStates
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
        for place in range(1, inside):
            sources, labels = np.nonzero(
                (machine.steps > 0) & self.utf8.complete[place, : machine.steps.shape[1]]
            )
            targets = machine.steps[sources, labels].astype(np.int64)
            gains = machine.gains[sources, labels]
            ways = Ways.of(counter_grid, sources, targets, gains, num_layer_counters=0)
            found, best = best_through(counter_grid, ways, slacks[None], 0)
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
