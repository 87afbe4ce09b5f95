"""Counts, as a machine's acceptance needs them: some on a counter grid, one as a reserve.

    cell      the counts of all measures but one, each held at its cap, as one number
    reserve   for each state and cell, how far the remaining measure may have gone: the state is
              alive iff  weighed(count) <= reserve.  A measure with upper bounds alone weighs its
              count, one with lower bounds alone weighs it negatively; without such a measure
              reserves are ALWAYS or NEVER.

So upper bounds alone cost nothing, however high they are, and the highest bound is the cheapest.
Where there are upper bounds alone, a counter grid begins at a base: below it there is room for
every completion that is worth anything, and counts need not be distinguished.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.where.grid import Grid
from constraints.where.limits import MAX_CELLS
from constraints.where.machine import Counts, Machine
from constraints.where.measures import Counter

Reserves = npt.NDArray[np.int32]  # [num_states, num_cells]

ALWAYS = 1 << 29
NEVER = -ALWAYS


@dataclass(frozen=True, slots=True)
class CounterGrid:
    """How the counts of a machine's counters are laid out.

    cells:   places of the counters on the counter grid, the highest cap first
    reserve: place of the counter that is weighed, None where there is none
    weight:  1 or -1
    directions: of the counters on the counter grid: 1 if more never helps, -1 if it never hurts, 0
    otherwise bases: of the counters on the counter grid, the count of their first cell; smaller
    counts are held at it shape: cells along each counter on the counter grid
    """

    counters: tuple[Counter, ...]
    cells: tuple[int, ...]
    reserve: int | None
    weight: int
    directions: tuple[int, ...]
    bases: tuple[int, ...]
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Asked for with every byte that is read.
        cells = zip(self.cells, self.bases, strict=True)
        shape = tuple(self.counters[place].cap + 1 - base for place, base in cells)
        object.__setattr__(self, "shape", shape)

    @classmethod
    def of(cls, machine: Machine, spare: int | None = None) -> "CounterGrid":
        """The smallest counter grid for a machine. Raises TooComplex.

        spare: how much room a base leaves, if there may be one; more if the machine needs more
        """
        directions = [_direction(machine, place) for place in range(len(machine.counters))]
        weighable = [place for place, direction in enumerate(directions) if direction]
        reserve = max(weighable, key=lambda place: machine.counters[place].cap, default=None)
        cells = [place for place in range(len(machine.counters)) if place != reserve]
        cells.sort(key=lambda place: -machine.counters[place].cap)
        bases = [0] * len(cells)
        if spare is not None and all(direction == 1 for direction in directions):
            grid = machine.accepts
            if (grid[..., 1:] <= grid[..., :-1]).all():
                room = max(spare, _worth(machine))
                bases = [max(machine.counters[place].cuts[0] - 1 - room, 0) for place in cells]
        counter_grid = cls(
            machine.counters,
            tuple(cells),
            reserve,
            1 if reserve is None else directions[reserve],
            tuple(directions[place] for place in cells),
            tuple(bases),
        )
        if counter_grid.num_cells * machine.num_states > MAX_CELLS:
            bounds = ", ".join(
                f"{counter.measure.value} ({counter.cap})" for counter in machine.counters
            )
            raise TooComplex(f"too many counts to tell apart at once: {bounds}")
        return counter_grid

    def inner(self, num_layer_axes: int) -> "CounterGrid":
        """The counter grid of one layer: without the first counters."""
        return CounterGrid(
            self.counters,
            self.cells[num_layer_axes:],
            None,
            1,
            self.directions[num_layer_axes:],
            self.bases[num_layer_axes:],
        )

    def room(self, index: int) -> int | None:
        """What a counter of the grid may still gain below its base; None: it has no base."""
        base = self.bases[index]
        return self.counters[self.cells[index]].cuts[0] - 1 - base if base else None

    def cell(self, counts: Sequence[int]) -> int:
        """The cell of the counts of all counters."""
        cell = 0
        for place, base, size in zip(self.cells, self.bases, self.shape, strict=True):
            cell = cell * size + min(max(counts[place] - base, 0), size - 1)
        return cell

    @property
    def num_cells(self) -> int:
        """All combinations of them."""
        return int(np.prod(self.shape, dtype=np.int64))

    def strides(self) -> npt.NDArray[np.int64]:
        """What one more of each counter adds to a cell, [len(cells)]."""
        shape = self.shape
        return np.array(
            [int(np.prod(shape[index + 1 :], dtype=np.int64)) for index in range(len(shape))],
            dtype=np.int64,
        )

    def weighed(self, gains: Counts) -> npt.NDArray[np.int64]:
        """What gains [..., num_axes] take from the reserve, [...]."""
        if self.reserve is None:
            return np.zeros(gains.shape[:-1], dtype=np.int64)
        return gains[..., self.reserve] * self.weight

    def moved(self, gains: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """The cell that each cell becomes by gains of the grid's counters, [num_cells]."""
        shape = self.shape
        cells = np.zeros((1,) * len(shape), dtype=np.int64)
        for index, (gain, size, stride) in enumerate(
            zip(gains, shape, self.strides().tolist(), strict=True)
        ):
            along = [1] * len(shape)
            along[index] = size
            places = np.minimum(np.arange(size) + gain, size - 1)
            cells = cells + (places * stride).reshape(along)
        return cells.reshape(-1)

    def settled(self, reserves: Reserves) -> Reserves:
        """Reserves as they are compared: beyond what can be weighed they are ALWAYS or NEVER."""
        if self.weight > 0:
            reserves[reserves < 0] = NEVER
        else:
            cap = 0 if self.reserve is None else self.counters[self.reserve].cap
            reserves[reserves >= 0] = ALWAYS
            reserves[reserves < -cap] = NEVER
        reserves[reserves > ALWAYS // 2] = ALWAYS
        return reserves

    def accepted(self, machine: Machine, accepts: Grid) -> Reserves:
        """The reserves of holding now. accepts: [num_states, chars, words, sentences] segments."""
        shape = [machine.num_states] + [len(counter.firsts) for counter in self.counters]
        grid = accepts.reshape(shape)
        if self.reserve is None:
            reserves = np.where(grid, ALWAYS, NEVER).astype(np.int32)
        else:
            reserves = self._bounds(np.moveaxis(grid, 1 + self.reserve, -1))
        order = sorted(self.cells)
        reserves = np.transpose(reserves, [0] + [1 + order.index(place) for place in self.cells])
        for index, (place, base) in enumerate(zip(self.cells, self.bases, strict=True)):
            reserves = np.take(reserves, self.counters[place].segments()[base:], axis=1 + index)
        reserves = np.ascontiguousarray(reserves.reshape(machine.num_states, -1))
        return self._with_pending(machine, reserves)

    def _bounds(self, grid: Grid) -> npt.NDArray[np.int32]:
        """The reserve of each row of segments, [..., segments] to [...]."""
        assert self.reserve is not None
        firsts = np.array([*self.counters[self.reserve].firsts, ALWAYS + 1])
        num_held = grid.sum(axis=-1)
        if self.weight > 0:
            bounds = np.where(num_held > 0, firsts[num_held] - 1, NEVER)
        else:
            least = firsts[grid.shape[-1] - num_held]
            bounds = np.where(num_held > 0, np.where(least == 0, ALWAYS, -least), NEVER)
        return bounds.astype(np.int32)

    def _with_pending(self, machine: Machine, reserves: Reserves) -> Reserves:
        """Looked up as if what is pending had been counted."""
        pending, kinds = np.unique(machine.pending, axis=0, return_inverse=True)
        kinds = kinds.reshape(-1)
        for kind, gains in enumerate(pending):
            if not gains.any():
                continue
            states = kinds == kind
            moved = self.moved(tuple(int(gains[place]) for place in self.cells))
            reserves[states] = reserves[states][:, moved] - int(self.weighed(gains))
        return self.settled(reserves)


def _direction(machine: Machine, place: int) -> int:
    """1 if more of the counter never helps, -1 if it never hurts, 0 otherwise."""
    # [num_states, segments of chars, words, sentences, tokens]; counters that are counted only
    counted = [index for index, size in enumerate(machine.accepts.shape[1:4]) if size > 1]
    grid = np.moveaxis(machine.accepts, 1 + counted[place], 0)
    if (grid[1:] <= grid[:-1]).all():
        return 1
    return -1 if (grid[1:] >= grid[:-1]).all() else 0


def _worth(machine: Machine) -> int:
    """More than a completion gains that goes through no state twice."""
    most = int(machine.gains.max(initial=0))
    return machine.num_states * most + int(machine.pending.max(initial=0))
