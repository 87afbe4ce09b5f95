"""The coaccessible states and counts, from which an expression can still hold: backward induction.

    slacks[state, cell] = the best of  accepting now  and of  the state behind each character

Counts never fall, so the grid is computed from its highest layer down; within a layer states are
repeated until nothing changes. Where layers repeat, all layers down to the next bound are equal.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.where.counter_grid import ALWAYS, CounterGrid, Slacks
from constraints.where.machine import Counts, Machine
from constraints.where.sources import Sources

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
        num_layer_counters: int = 1,
    ) -> "Ways":
        """gains: [num_ways, num_counters]. Drops ways that are never better than another one.

        num_layer_counters: 0 puts the whole grid into one layer
        """
        capped = np.minimum(
            gains, np.array([counter.cap for counter in counter_grid.counters], dtype=np.int64)
        )
        steps = capped[:, list(counter_grid.cells)]
        costs = counter_grid.weighed(capped)
        kept = _needed(counter_grid, sources, targets, steps, costs)
        sources = sources[kept]
        targets = targets[kept]
        steps = steps[kept]
        costs = costs[kept]
        layered = min(num_layer_counters, len(counter_grid.cells))
        inner = counter_grid.inner(layered)
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


def _needed(
    counter_grid: CounterGrid, sources: Indices, targets: Indices, steps: Counts, costs: Indices
) -> Indices:
    """The ways that no other dominates, by source and target.

    A way dominates another between the same places if it uses no more of the slack, gains no more
    where more never helps, no less where more never hurts, and the same everywhere else.
    """
    directions = np.array(counter_grid.directions, dtype=np.int64)
    fixed = steps[:, directions == 0]
    # Columns that should be small, the use of the slack last.
    losses = np.column_stack([steps[:, directions != 0] * directions[directions != 0], costs])
    order = np.lexsort([*losses.T[::-1], *fixed.T[::-1], targets, sources])
    if not len(order):
        return order
    groups = np.column_stack([sources, targets, fixed])[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (groups[1:] != groups[:-1]).any(axis=1)
    group = np.cumsum(is_new) - 1
    losses = losses[order]
    kept = np.zeros(len(order), dtype=np.bool_)
    left = np.arange(len(order))
    while len(left):
        # No way dominates the first one left of a group; drop those that it dominates.
        is_first = np.ones(len(left), dtype=np.bool_)
        is_first[1:] = group[left[1:]] != group[left[:-1]]
        firsts = left[is_first]
        kept[firsts] = True
        best = losses[firsts][np.cumsum(is_first) - 1]
        left = left[(losses[left] < best).any(axis=1)]
    return order[kept]


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
        self._settle(top, self._ways, self._by_target(self._ways))
        inner = self._ways.picked(self._ways.layers == 0)
        by_target = self._by_target(inner)
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
        return np.ascontiguousarray(self._values.swapaxes(0, 1)).reshape(self._values.shape[1], -1)

    def _repeats(self, layer: int, depth: int) -> bool:
        """Whether all layers that the lower layers can reach are equal to this one."""
        last = min(layer + depth, self._num_layers - 1)
        first = self._values[layer]
        return all((self._values[above] == first).all() for above in range(layer + 1, last + 1))

    def _by_target(self, ways: Ways) -> Sources:
        return Sources(ways.targets, self._values.shape[1])

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


def coaccessible_slacks(machine: Machine, counter_grid: CounterGrid, accepted: Slacks) -> Slacks:
    """The slacks of every state between two characters. Raises TooComplex."""
    sources, labels = np.nonzero(machine.steps)
    ways = Ways.of(
        counter_grid,
        sources,
        machine.steps[sources, labels].astype(np.int64),
        machine.gains[sources, labels],
    )
    return Induction(counter_grid, ways, accepted).slacks()
