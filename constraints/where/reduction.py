"""Minimises machines: removes unreachable and dead states, merges equivalent ones."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from constraints.where.automata import Flags, can_reach
from constraints.where.machine import Machine
from constraints.where.sources import Sources, Steps


def minimised(machine: Machine) -> Machine:
    """The equivalent machine with the fewest states; state 0 is dead."""
    machine = _without_hopeless(machine)
    kept = np.flatnonzero(_reachable(machine.steps, machine.start))
    kept = np.concatenate([[0], kept[kept > 0]])
    places = np.zeros(machine.num_states, dtype=np.int32)
    places[kept] = np.arange(len(kept))
    return _merged(_picked(machine, kept, places))


def _picked(
    machine: Machine, kept: npt.NDArray[np.int64], places: npt.NDArray[np.int32]
) -> Machine:
    """The machine with the kept states only; places: the new state of each old one."""
    return replace(
        machine,
        start=int(places[machine.start]),
        steps=places[machine.steps[kept]],
        gains=machine.gains[kept],
        pending=machine.pending[kept],
        accepts=machine.accepts[kept],
    )


def _reachable(steps: Steps, start: int) -> Flags:
    reached = np.zeros(len(steps), dtype=np.bool_)
    reached[start] = True
    frontier = np.array([start])
    while len(frontier):
        after = np.unique(steps[frontier])
        frontier = after[~reached[after]]
        reached[frontier] = True
    return reached


def _without_hopeless(machine: Machine) -> Machine:
    """Merge all states that cannot reach acceptance with any counts into the dead state."""
    holds = machine.accepts.reshape(machine.num_states, -1)
    hopeful = can_reach(machine.steps, np.any(holds, axis=1))
    states = np.where(hopeful, np.arange(machine.num_states), 0).astype(np.int32)
    steps = states[machine.steps]
    steps[~hopeful] = 0
    gains = np.where((steps == 0)[:, :, None], 0, machine.gains)
    return replace(machine, start=int(states[machine.start]), steps=steps, gains=gains)


def _merged(machine: Machine) -> Machine:
    """Merge equivalent states (Moore's partition refinement)."""
    num_states = machine.num_states
    traits = [machine.accepts, machine.gains, machine.pending]
    blocks = _numbered(
        np.concatenate([trait.reshape(num_states, -1).astype(np.int64) for trait in traits], axis=1)
    )
    blocks = _numbered(_refined(blocks, machine.steps)[:, None])
    _, kept = np.unique(blocks, return_index=True)
    return _picked(machine, kept, blocks.astype(np.int32))


def _refined(blocks: npt.NDArray[np.int64], steps: Steps) -> npt.NDArray[np.int64]:
    """The coarsest refinement in which states of a block lead to the same blocks.

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
        parts = _numbered(np.concatenate([blocks[seen, None], blocks[steps[seen]]], axis=1))
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


def _numbered(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number the distinct rows in order of first appearance."""
    packed = np.ascontiguousarray(rows)
    view = packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(view, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
