"""The counts that a machine needs: all but one are cells of a grid, one is compared with a slack.

    cell      the counts of all measures but one, each held at its cap, as one number
    slack     for each state and cell, how much the remaining measure may have counted: the state is
              alive iff  weighed(count) <= slack.  A measure with upper bounds only weighs its count
              positively, one with lower bounds only negatively; without such a measure slacks are
              ALWAYS or NEVER.

So a measure with upper bounds only needs no cells, however high they are; the one with the highest
bound is chosen. If all bounds are upper bounds, the grid begins at a base: below the base every
useful completion fits, so counts need not be distinguished.
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

Slacks = npt.NDArray[np.int32]  # [num_states, num_cells]

ALWAYS = 1 << 29
NEVER = -ALWAYS


@dataclass(frozen=True, slots=True)
class CounterGrid:
    """How the counts of a machine's counters are laid out.

    cells:      indices of the counters on the grid, the highest cap first
    slack:      index of the counter that is weighed, None: there is none
    weight:     1 or -1
    directions: by counter of the grid, 1 if more never helps, -1 if it never hurts, 0 otherwise
    bases:      by counter of the grid, the count of its first cell; smaller counts are held at it
    shape:      by counter of the grid, the number of its cells
    """

    counters: tuple[Counter, ...]
    cells: tuple[int, ...]
    slack: int | None
    weight: int
    directions: tuple[int, ...]
    bases: tuple[int, ...]
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Computed once: every byte that is read needs it.
        cells = zip(self.cells, self.bases, strict=True)
        shape = tuple(self.counters[place].cap + 1 - base for place, base in cells)
        object.__setattr__(self, "shape", shape)

    @classmethod
    def of(cls, machine: Machine, spare: int | None = None) -> "CounterGrid":
        """The smallest counter grid for a machine. Raises TooComplex.

        spare: how much room a base leaves, at least what the machine needs; None: no base
        """
        directions = [_direction(machine, place) for place in range(len(machine.counters))]
        weighable = [place for place, direction in enumerate(directions) if direction]
        slack = max(weighable, key=lambda place: machine.counters[place].cap, default=None)
        cells = [place for place in range(len(machine.counters)) if place != slack]
        cells.sort(key=lambda place: -machine.counters[place].cap)
        bases = [0] * len(cells)
        if spare is not None and all(direction == 1 for direction in directions):
            grid = machine.accepts
            if (grid[..., 1:] <= grid[..., :-1]).all():
                room = max(spare, _worth(machine))
                bases = [
                    max(machine.counters[place].boundaries[0] - 1 - room, 0) for place in cells
                ]
        counter_grid = cls(
            machine.counters,
            tuple(cells),
            slack,
            1 if slack is None else directions[slack],
            tuple(directions[place] for place in cells),
            tuple(bases),
        )
        if counter_grid.num_cells * machine.num_states > MAX_CELLS:
            bounds = ", ".join(
                f"{counter.measure.value} ({counter.cap})" for counter in machine.counters
            )
            raise TooComplex(f"too many counts to tell apart at once: {bounds}")
        return counter_grid

    def inner(self, num_layer_counters: int) -> "CounterGrid":
        """The counter grid of one layer: without the first counters."""
        return CounterGrid(
            self.counters,
            self.cells[num_layer_counters:],
            None,
            1,
            self.directions[num_layer_counters:],
            self.bases[num_layer_counters:],
        )

    def room(self, index: int) -> int | None:
        """What a counter of the grid may still gain below its base; None: it has no base."""
        base = self.bases[index]
        return self.counters[self.cells[index]].boundaries[0] - 1 - base if base else None

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
        """By how much a cell rises with one more of each counter, [len(cells)]."""
        shape = self.shape
        return np.array(
            [int(np.prod(shape[index + 1 :], dtype=np.int64)) for index in range(len(shape))],
            dtype=np.int64,
        )

    def weighed(self, gains: Counts) -> npt.NDArray[np.int64]:
        """The part of the slack that gains [..., num_counters] use, [...]."""
        if self.slack is None:
            return np.zeros(gains.shape[:-1], dtype=np.int64)
        return gains[..., self.slack] * self.weight

    def moved(self, gains: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """The cell to which these gains lead from each cell, [num_cells]."""
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

    def settled(self, slacks: Slacks) -> Slacks:
        """Normalised slacks: those outside of the range of counts become ALWAYS or NEVER."""
        if self.weight > 0:
            slacks[slacks < 0] = NEVER
        else:
            cap = 0 if self.slack is None else self.counters[self.slack].cap
            slacks[slacks >= 0] = ALWAYS
            slacks[slacks < -cap] = NEVER
        slacks[slacks > ALWAYS // 2] = ALWAYS
        return slacks

    def accepted(self, machine: Machine, accepts: Grid) -> Slacks:
        """Slacks of accepting now. accepts: [num_states, chars, words, sentences] segments."""
        shape = [machine.num_states] + [len(counter.firsts) for counter in self.counters]
        grid = accepts.reshape(shape)
        if self.slack is None:
            slacks = np.where(grid, ALWAYS, NEVER).astype(np.int32)
        else:
            slacks = self._bounds(np.moveaxis(grid, 1 + self.slack, -1))
        order = sorted(self.cells)
        slacks = np.transpose(slacks, [0] + [1 + order.index(place) for place in self.cells])
        for index, (place, base) in enumerate(zip(self.cells, self.bases, strict=True)):
            slacks = np.take(slacks, self.counters[place].segments()[base:], axis=1 + index)
        slacks = np.ascontiguousarray(slacks.reshape(machine.num_states, -1))
        return self._with_pending(machine, slacks)

    def _bounds(self, grid: Grid) -> npt.NDArray[np.int32]:
        """The slack of each row of segments, [..., segments] to [...]."""
        assert self.slack is not None
        firsts = np.array([*self.counters[self.slack].firsts, ALWAYS + 1])
        num_held = grid.sum(axis=-1)
        if self.weight > 0:
            bounds = np.where(num_held > 0, firsts[num_held] - 1, NEVER)
        else:
            least = firsts[grid.shape[-1] - num_held]
            bounds = np.where(num_held > 0, np.where(least == 0, ALWAYS, -least), NEVER)
        return bounds.astype(np.int32)

    def _with_pending(self, machine: Machine, slacks: Slacks) -> Slacks:
        """The slacks when pending gains are counted, too."""
        pending, kinds = np.unique(machine.pending, axis=0, return_inverse=True)
        kinds = kinds.reshape(-1)
        for kind, gains in enumerate(pending):
            if not gains.any():
                continue
            states = kinds == kind
            moved = self.moved(tuple(int(gains[place]) for place in self.cells))
            slacks[states] = slacks[states][:, moved] - int(self.weighed(gains))
        return self.settled(slacks)


def _direction(machine: Machine, place: int) -> int:
    """1 if more of the counter never helps, -1 if it never hurts, 0 otherwise."""
    # [num_states, segments of chars, words, sentences, tokens]; counters that are counted only
    counted = [index for index, size in enumerate(machine.accepts.shape[1:4]) if size > 1]
    grid = np.moveaxis(machine.accepts, 1 + counted[place], 0)
    if (grid[1:] <= grid[:-1]).all():
        return 1
    return -1 if (grid[1:] >= grid[:-1]).all() else 0


def _worth(machine: Machine) -> int:
    """An upper bound of the gains of a completion that visits no state twice."""
    most = int(machine.gains.max(initial=0))
    return machine.num_states * most + int(machine.pending.max(initial=0))
