"""The fewest states that do what a machine does: unreachable, hopeless and equal ones go."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from constraints.where.automata import Flags, Steps, can_reach
from constraints.where.machine import Machine


def reduced(machine: Machine) -> Machine:
    """The same machine with as few states as can be; state 0 is the dead one."""
    machine = _without_hopeless(machine)
    kept = np.flatnonzero(_reachable(machine.steps, machine.start))
    kept = np.concatenate([[0], kept[kept > 0]])
    places = np.zeros(machine.num_states, dtype=np.int32)
    places[kept] = np.arange(len(kept))
    return _merged(_picked(machine, kept, places))


def _picked(
    machine: Machine, kept: npt.NDArray[np.int64], places: npt.NDArray[np.int32]
) -> Machine:
    """The kept states alone; places: the new state of each old one."""
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
    """All states from which nothing can hold become the dead one, whatever the counts are."""
    holds = machine.accepts.reshape(machine.num_states, -1)
    hopeful = can_reach(machine.steps, np.any(holds, axis=1))
    states = np.where(hopeful, np.arange(machine.num_states), 0).astype(np.int32)
    steps = states[machine.steps]
    steps[~hopeful] = 0
    gains = np.where((steps == 0)[:, :, None], 0, machine.gains)
    return replace(machine, start=int(states[machine.start]), steps=steps, gains=gains)


def _merged(machine: Machine) -> Machine:
    """States that nothing tells apart become one (Moore's refinement)."""
    num_states = machine.num_states
    traits = [machine.accepts, machine.gains, machine.pending]
    blocks = _numbered(
        np.concatenate([trait.reshape(num_states, -1).astype(np.int64) for trait in traits], axis=1)
    )
    num_blocks = int(blocks.max()) + 1
    while True:
        blocks = _numbered(np.concatenate([blocks[:, None], blocks[machine.steps]], axis=1))
        before, num_blocks = num_blocks, int(blocks.max()) + 1
        if num_blocks == before:
            break
    _, kept = np.unique(blocks, return_index=True)
    return _picked(machine, kept, blocks.astype(np.int32))


def _numbered(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Equal rows get equal numbers, in the order in which they first stand."""
    packed = np.ascontiguousarray(rows)
    view = packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(view, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
