"""The counts that a machine needs: all but one are cells of a grid, one is compared with a slack.

    cell      the counts of all measures but one, each held at its cap, as one number
    slack     for each state and cell, how much the remaining measure may have counted: the state is
              alive iff  weighed(count) <= slack.  A measure with upper bounds only weighs its count
              positively, one with lower bounds only negatively; without such a measure slacks are
              ALWAYS or NEVER.

So a measure with upper bounds only needs no cells, however high they are; the one with the highest
bound is chosen.

Slacks are computed by backward induction, from the states and counts at which an expression can
still hold:

    slacks[state, cell] = the best of  accepting now  and of  the state behind each character

Counts never fall, so the grid is computed from its highest layer down; within a layer states are
repeated until nothing changes. Where layers repeat, all layers down to the next bound are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.regex.dfa import Sources
from constraints.where.machine import Counter, Counts, Grid, Machine

Slacks = npt.NDArray[np.int32]  # [num_states, num_cells]

ALWAYS = 1 << 29
NEVER = -ALWAYS

# The most states times places inside of characters, which are hundreds beside Unicode's classes,
# times distinguished counts of all measures: tables of 120 MB.
_MAX_CELLS = 30_000_000


@dataclass(frozen=True)
class CounterGrid:
    """How the counts of a machine's counters are laid out.

    cells:      indices of the counters on the grid, the highest cap first
    slack:      index of the counter that is weighed, None: there is none
    weight:     1 or -1
    """

    counters: tuple[Counter, ...]
    cells: tuple[int, ...]
    slack: int | None
    weight: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """By counter of the grid, the number of its cells."""
        return tuple(self.counters[place].cap + 1 for place in self.cells)

    @classmethod
    def of(cls, machine: Machine, num_inside: int = 1) -> "CounterGrid":
        """The smallest counter grid for a machine. Raises TooComplex."""
        directions = [_direction(machine, place) for place in range(len(machine.counters))]
        weighable = [place for place, direction in enumerate(directions) if direction]
        slack = max(weighable, key=lambda place: machine.counters[place].cap, default=None)
        cells = [place for place in range(len(machine.counters)) if place != slack]
        cells.sort(key=lambda place: -machine.counters[place].cap)
        weight = 1 if slack is None else directions[slack]
        counter_grid = cls(machine.counters, tuple(cells), slack, weight)
        if counter_grid.num_cells * machine.num_states * num_inside > _MAX_CELLS:
            bounds = ", ".join(
                f"{counter.measure.value} ({counter.cap})" for counter in machine.counters
            )
            raise TooComplex(f"too many counts to tell apart at once: {bounds}")
        return counter_grid

    def cell(self, counts: Sequence[int]) -> int:
        """The cell of the counts of all counters."""
        cell = 0
        for place, size in zip(self.cells, self.shape, strict=True):
            cell = cell * size + min(counts[place], size - 1)
        return cell

    def is_within(self, slacks: Slacks, place: int, counts: Sequence[int]) -> bool:
        """Whether a place with these counts is alive."""
        weighed = 0
        if self.slack is not None:
            weighed = min(counts[self.slack], self.counters[self.slack].cap) * self.weight
        slack = int(slacks[place, self.cell(counts)])
        return slack > NEVER and weighed <= slack

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

    def coaccessible(self, machine: Machine) -> "Slacks | None":
        """The slacks of every state between two characters; None if no text is accepted.

        Raises TooComplex.
        """
        sources, labels = np.nonzero(machine.steps)
        targets = machine.steps[sources, labels].astype(np.int64)
        ways = Ways.of(self, sources, targets, machine.gains[sources, labels], is_layered=True)
        accepted = np.maximum.reduce(self.accepted(machine))
        slacks = Induction(self, ways, accepted).slacks()
        is_alive = self.is_within(slacks, machine.start, [0] * len(self.counters))
        return slacks if is_alive else None

    def accepted(self, machine: Machine) -> tuple[Slacks, ...]:
        """Slacks of accepting now, for each segment of tokens."""
        return tuple(
            self._accepted(machine, machine.accepts[..., segment])
            for segment in range(machine.accepts.shape[-1])
        )

    def _accepted(self, machine: Machine, accepts: Grid) -> Slacks:
        """accepts: [num_states, chars, words, sentences] segments"""
        shape = [machine.num_states] + [len(counter.firsts) for counter in self.counters]
        grid = accepts.reshape(shape)
        if self.slack is None:
            slacks = np.where(grid, ALWAYS, NEVER).astype(np.int32)
        else:
            slacks = self._bounds(np.moveaxis(grid, 1 + self.slack, -1))
        order = sorted(self.cells)
        slacks = np.transpose(slacks, [0] + [1 + order.index(place) for place in self.cells])
        for index, place in enumerate(self.cells):
            slacks = np.take(slacks, self.counters[place].segments(), axis=1 + index)
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


# The most ways times cells that one compilation computes.
_MAX_WORK = 1_500_000_000
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """Ways from place to place, by source. Each array is [num_ways].

    sources: ascending
    layers:  gain on the first counter of the counter grid
    moves:   row of `moved` for the other counters
    costs:   how much of the slack each way uses
    gains:   [num_ways, counters on the counter grid]
    """

    sources: Indices
    targets: Indices
    layers: Indices
    moves: Indices
    costs: npt.NDArray[np.int32]
    moved: Indices  # [num_moves, num_cells of one layer]
    gains: Counts

    @classmethod
    def of(
        cls,
        counter_grid: CounterGrid,
        sources: Indices,
        targets: Indices,
        gains: Counts,
        *,
        is_layered: bool = False,
    ) -> "Ways":
        """gains: [num_ways, num_counters]. Of equal ones the cheapest is kept.

        is_layered: there is a layer for each count of the grid's first counter, else one for all
        """
        capped = np.minimum(
            gains, np.array([counter.cap for counter in counter_grid.counters], dtype=np.int64)
        )
        steps = capped[:, list(counter_grid.cells)]
        costs = counter_grid.weighed(capped)
        order = np.lexsort([costs, *steps.T, targets, sources])
        places = np.column_stack([sources, targets, steps])[order]
        kept = order[np.append(True, (places[1:] != places[:-1]).any(axis=1))[: len(order)]]
        sources = sources[kept]
        targets = targets[kept]
        steps = steps[kept]
        costs = costs[kept]
        layered = int(is_layered and len(counter_grid.cells) > 0)
        # One layer: without the first counter.
        inner = CounterGrid(counter_grid.counters, counter_grid.cells[layered:], None, 1)
        keys = steps[:, layered:] @ inner.strides()
        _, first, moves = np.unique(keys, return_index=True, return_inverse=True)
        moved = [inner.moved(tuple(steps[way, layered:].tolist())) for way in first.tolist()]
        return cls(
            sources,
            targets,
            steps[:, 0] if layered else np.zeros(len(sources), dtype=np.int64),
            moves.reshape(-1),
            costs.astype(np.int32),
            np.array(moved, dtype=np.int64).reshape(-1, inner.num_cells),
            steps,
        )

    def picked(self, chosen: npt.NDArray[np.bool_] | Indices) -> "Ways":
        """Some of them, in their order."""
        return Ways(
            self.sources[chosen],
            self.targets[chosen],
            self.layers[chosen],
            self.moves[chosen],
            self.costs[chosen],
            self.moved,
            self.gains[chosen],
        )


def best_through(
    counter_grid: CounterGrid, ways: Ways, values: npt.NDArray[np.int32], layer: int
) -> tuple[Indices, npt.NDArray[np.int32]]:
    """The best slacks that ways lead to from a layer.

    values: [num_layers, num_places, cells of one layer]. Returns the sources that have ways and
    their slacks, [num_sources, cells of one layer].
    """
    if not len(ways.sources):
        return ways.sources, np.zeros((0, values.shape[2]), dtype=np.int32)
    layers = np.minimum(layer + ways.layers, len(values) - 1)
    reached = values[layers[:, None], ways.targets[:, None], ways.moved[ways.moves]]
    reached -= ways.costs[:, None]
    begins = np.flatnonzero(np.diff(ways.sources, prepend=-1))
    best = counter_grid.settled(np.maximum.reduceat(reached, begins, axis=0))
    return ways.sources[begins], best


class Induction:
    """Slacks layer by layer: `values` is [layers, num_places, cells of one layer]."""

    def __init__(self, counter_grid: CounterGrid, ways: Ways, accepted: Slacks) -> None:
        self._counter_grid = counter_grid
        self._num_layers = counter_grid.shape[0] if counter_grid.cells else 1
        self._ways = ways
        self._accepted = np.ascontiguousarray(
            accepted.reshape(len(accepted), self._num_layers, -1).swapaxes(0, 1)
        )
        self._values = self._accepted.copy()
        self._work = 0

    def slacks(self) -> Slacks:
        """[num_places, num_cells]. Raises TooComplex."""
        top = self._num_layers - 1
        num_places = self._values.shape[1]
        self._settle(top, self._ways, Sources(self._ways.targets, num_places))
        inner = self._ways.picked(self._ways.layers == 0)
        by_target = Sources(inner.targets, num_places)
        outer = self._ways.picked(self._ways.layers > 0)
        depth = int(self._ways.layers.max(initial=0)) + 1
        same = (self._accepted[:-1] == self._accepted[1:]).all(axis=(1, 2))
        layer = top - 1
        while layer >= 0:
            if same[layer] and self._repeats(layer + 1, depth):
                bottom = layer
                while bottom > 0 and same[bottom - 1]:
                    bottom -= 1
                self._values[bottom : layer + 1] = self._values[layer + 1]
                layer = bottom - 1
                continue
            self._improve(layer, outer)
            self._settle(layer, inner, by_target)
            layer -= 1
        return np.ascontiguousarray(self._values.swapaxes(0, 1)).reshape(num_places, -1)

    def _repeats(self, layer: int, depth: int) -> bool:
        """Whether all layers that the lower layers can reach are equal to this one."""
        last = min(layer + depth, self._num_layers - 1)
        first = self._values[layer]
        return all((self._values[above] == first).all() for above in range(layer + 1, last + 1))

    def _improve(self, layer: int, ways: Ways) -> Indices:
        """One round of ways within or out of the layer; returns the places that improved."""
        self._work += len(ways.sources) * self._values.shape[2]
        if self._work > _MAX_WORK:
            raise TooComplex("too many counts and characters to look at")
        sources, best = best_through(self._counter_grid, ways, self._values, layer)
        before = self._values[layer, sources]
        better = np.maximum(before, best)
        self._values[layer, sources] = better
        improved: Indices = sources[(better > before).any(axis=1)]
        return improved

    def _settle(self, layer: int, ways: Ways, by_target: Sources) -> None:
        """Repeat rounds until nothing improves. by_target: indices of ways."""
        num_places, num_cells = self._values.shape[1:]
        rounds = 0
        before = self._values[layer].copy()
        improved = self._improve(layer, ways)
        while len(improved):
            rounds += 1
            if rounds > num_places * num_cells + 1:
                # It improves over more steps than there are places: through a loop, without limit.
                self._values[layer][self._values[layer] > before] = ALWAYS
            # Only places that lead to improved ones can improve.
            found = by_target.of(improved)
            few = len(found) * 4 < len(ways.sources)
            before[improved] = self._values[layer, improved]
            improved = self._improve(layer, ways.picked(found) if few else ways)
