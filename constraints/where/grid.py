"""Whether an expression holds, for every state of its automata and every segment of its counts.

grid[state, chars, words, sentences, tokens]    an uncounted measure has one segment
"""

import operator
from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np
import numpy.typing as npt

from constraints.where.measures import Counter
from constraints.where.terms import And, Compare, Constant, Expression, Measure, Not, Or, Relation

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
