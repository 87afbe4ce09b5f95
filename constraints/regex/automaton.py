"""Small deterministic automata over characters.

All are complete: every state has a step for every character. State 0 is the start.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.regex.char_sets import Partition

Steps = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

# Smaller numbers are sorted in one pass.
_SMALL = 1 << 16


class Sources:
    """The sources of every target; the numbers of both are indices."""

    def __init__(self, targets: npt.NDArray[np.integer], num_targets: int) -> None:
        """targets: of each source, its only one [num_sources] or all [num_sources, num_labels]."""
        flat = targets.reshape(-1)
        if num_targets < _SMALL:
            flat = flat.astype(np.uint16)
        order = np.argsort(flat, kind="stable")
        self._sources = order if targets.ndim == 1 else order // targets.shape[1]
        self._begins = np.searchsorted(flat[order], np.arange(num_targets + 1))

    def of(self, targets: Indices) -> Indices:
        """The sources of some targets, each once and ascending."""
        begins = self._begins[targets]
        counts = self._begins[targets + 1] - begins
        before = np.cumsum(counts) - counts
        return np.unique(
            self._sources[np.arange(int(counts.sum())) + np.repeat(begins - before, counts)]
        )


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """steps: [num_states, num_labels] of `partition`; accepts: [num_states]."""

    partition: Partition
    steps: Steps
    accepts: Flags

    @property
    def num_states(self) -> int:
        """The number of states, with sinks."""
        return len(self.accepts)

    def decided(self) -> tuple[Flags, Flags]:
        """For each state, whether an accepting and whether a rejecting state is reachable."""
        return can_reach(self.steps, self.accepts), can_reach(self.steps, ~self.accepts)


def can_reach(steps: Steps, wanted: Flags) -> Flags:
    """The states from which a wanted state is reachable, including the wanted ones."""
    sources = Sources(steps, len(steps))
    reached = wanted.copy()
    fresh = np.flatnonzero(wanted)
    while len(fresh):
        found = sources.of(fresh)
        fresh = found[~reached[found]]
        reached[fresh] = True
    return reached


def refined(blocks: npt.NDArray[np.int64], steps: Steps) -> npt.NDArray[np.int64]:
    """The coarsest refinement of blocks 0, 1, ... in which states of one lead to the same blocks.

    A state is visited again only if a successor has left its block. When a block splits, the part
    that was not visited, or else the largest, keeps the block's number.
    """
    blocks = blocks.copy()
    sources = Sources(steps, len(steps))
    sizes = np.zeros(len(steps), dtype=np.int64)
    sizes[: int(blocks.max()) + 1] = np.bincount(blocks)
    num_blocks = int(blocks.max()) + 1
    seen = np.arange(len(steps))
    while len(seen := seen[sizes[blocks[seen]] > 1]):
        parts = numbered(np.concatenate([blocks[seen, None], blocks[steps[seen]]], axis=1))
        part_sizes = np.bincount(parts)
        of_parts = np.zeros(len(part_sizes), dtype=np.int64)
        of_parts[parts] = blocks[seen]
        stays = _largest_of_each(of_parts, part_sizes)
        stays &= sizes[of_parts] == np.bincount(of_parts, part_sizes)[of_parts]
        numbers = np.where(stays, of_parts, num_blocks + np.cumsum(~stays) - 1)
        np.subtract.at(sizes, of_parts[~stays], part_sizes[~stays])
        sizes[numbers[~stays]] = part_sizes[~stays]
        num_blocks += int((~stays).sum())
        leaving = seen[~stays[parts]]
        blocks[seen] = numbers[parts]
        seen = sources.of(leaving)
    return blocks


def _largest_of_each(groups: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> Flags:
    """The heaviest member of each group."""
    order = np.lexsort([weights, groups])
    is_largest = np.zeros(len(groups), dtype=np.bool_)
    is_last = np.append(groups[order][1:] != groups[order][:-1], True)
    is_largest[order[is_last]] = True
    return is_largest


def numbered(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number the distinct rows in order of first appearance."""
    packed = np.ascontiguousarray(rows)
    view = packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(view, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
