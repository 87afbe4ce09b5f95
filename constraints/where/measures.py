"""Counters: what an expression counts, and the counts that it distinguishes.

len(X) > 2 and len(X) < 5:   counts 0 1 2 | 3 4 | 5 ...    three segments with boundaries 3 and 5
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.where.limits import MAX_COUNT
from constraints.where.terms import (
    And,
    Compare,
    Expression,
    Measure,
    Not,
    Or,
    Relation,
)

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
