"""Whether an expression holds, for every state of its automata and every segment of its counts.

grid[state, chars, words, sentences, tokens]    an uncounted measure has one segment

A counter distinguishes segments of counts:

len(X) > 2 and len(X) < 5:   counts 0 1 2 | 3 4 | 5 ...    three segments with boundaries 3 and 5
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.where.limits import MAX_COUNT
from constraints.where.terms import And, Compare, Constant, Expression, Measure, Not, Or, Relation

_BOUNDARIES = {
    Relation.LT: (0,),
    Relation.GE: (0,),
    Relation.LE: (1,),
    Relation.GT: (1,),
    Relation.EQ: (0, 1),
    Relation.NE: (0, 1),
}


@dataclass(frozen=True, slots=True)
class Counter:
    """The count of one measure. Counts of `cap` and more are held at `cap`: they are equal."""

    measure: Measure
    boundaries: tuple[int, ...]  # ascending: first counts of all segments but the first

    @property
    def cap(self) -> int:
        """The first count of the last segment."""
        return self.boundaries[-1]

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first count of each segment."""
        return (0, *self.boundaries)

    def segments(self) -> npt.NDArray[np.int64]:
        """The segment of each count, [cap + 1]."""
        return np.searchsorted(self.boundaries, np.arange(self.cap + 1), side="right")


def atoms(expression: Expression) -> Iterator[Expression]:
    """The parts that are neither And, Or nor Not, from left to right."""
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from atoms(part)
        case Not(part):
            yield from atoms(part)
        case _:
            yield expression


def counter_of(measure: Measure, expression: Expression) -> Counter | None:
    """The counter of a measure; None where the expression does not compare it."""
    boundaries = {
        atom.bound + shift
        for atom in atoms(expression)
        if isinstance(atom, Compare) and atom.measure is measure
        for shift in _BOUNDARIES[atom.relation]
    }
    above = sorted(cut for cut in boundaries if cut > 0)
    if above and above[-1] > MAX_COUNT:
        raise TooComplex(f"{measure.value} is compared with more than {MAX_COUNT}")
    return Counter(measure, tuple(above)) if above else None


Grid = npt.NDArray[np.bool_]

MEASURES = (Measure.CHARS, Measure.WORDS, Measure.SENTENCES, Measure.TOKENS)

_RELATIONS: dict[Relation, Callable[[int, int], bool]] = {
    Relation.LT: operator.lt,
    Relation.LE: operator.le,
    Relation.EQ: operator.eq,
    Relation.NE: operator.ne,
    Relation.GE: operator.ge,
    Relation.GT: operator.gt,
}


def is_counted(atom: Expression) -> bool:
    """Whether the atom compares a count; the value of an integer is none."""
    return isinstance(atom, Compare) and atom.measure is not Measure.INT


def holds(
    expression: Expression,
    truths: Mapping[Expression, npt.NDArray[np.bool_]],
    counters: Mapping[Measure, Counter],
) -> Grid:
    """The grid of an expression; truths: whether each atom without a count holds, [states]."""
    match expression:
        case And(parts):
            return reduce(np.logical_and, [holds(part, truths, counters) for part in parts])
        case Or(parts):
            return reduce(np.logical_or, [holds(part, truths, counters) for part in parts])
        case Not(part):
            return ~holds(part, truths, counters)
        case Constant(value):
            return np.full((1,) * 5, value)
        case Compare(measure, relation, bound) if is_counted(expression):
            firsts = counters[measure].firsts if measure in counters else (0,)
            along = np.array([_RELATIONS[relation](first, bound) for first in firsts])
            shape = [1] * 5
            shape[1 + MEASURES.index(measure)] = len(firsts)
            return along.reshape(shape)
        case _:
            return truths[expression].reshape(-1, 1, 1, 1, 1)


def may_hold(
    expression: Expression,
    possible: Mapping[Expression, tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]],
    *,
    wanted: bool = True,
) -> npt.NDArray[np.bool_]:
    """Whether the expression could still become `wanted`, judged by each atom on its own.

    possible: whether the atom may still hold, and whether it may still fail, [states] each
    """
    match expression:
        case And(parts) | Or(parts):
            several = [may_hold(part, possible, wanted=wanted) for part in parts]
            needs_all = isinstance(expression, And) == wanted
            return reduce(np.logical_and if needs_all else np.logical_or, several)
        case Not(part):
            return may_hold(part, possible, wanted=not wanted)
        case Constant(value):
            return np.array([value == wanted])
        case _ if is_counted(expression):
            return np.array([True])
        case _:
            return possible[expression][0 if wanted else 1]
