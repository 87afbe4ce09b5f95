"""Evaluates the checks of a hole with few possible texts on each of them, before the request.

Whole numbers between two bounds are such texts, too.

Then none of them can fail afterwards. A function that raises on one of the texts is left to be
called on the one that comes.
"""

import math
from collections.abc import Iterable, Sequence

from client.query.conditions.bounds import CurrentHole
from client.query.conditions.evaluate import evaluate
from client.query.conditions.kinds import INT
from client.query.conditions.plan import Check
from client.query.conditions.request import Parts, listed
from client.query.conditions.terms import Term
from client.query.errors import ProgramFailed
from constraints.where.terms import Compare, Measure, OneOf, Relation

# Of more texts than these none is enumerate_checks: the program's functions may take their time.
_MAX_TRIED = 64


def enumerate_checks(
    parts: Parts, checks: Sequence[Check], current: CurrentHole
) -> tuple[Parts, tuple[Check, ...]]:
    """The parts with those texts alone that pass, and the checks that are still to be made.

    checks: of finished holes and this one
    """
    if checks and current.kind.name == INT.name:
        parts = (*_numbers(parts), *parts)
    parts = listed(parts)
    if not parts or not isinstance(parts[0], OneOf) or len(parts[0].values) > _MAX_TRIED:
        return parts, tuple(checks)
    texts, left = parts[0].values, []
    for check in checks:
        passing = _passing(check.term, texts, current)
        if passing is None:
            left.append(check)
        else:
            texts = passing
    return (OneOf(texts), *parts[1:]), tuple(left)


def _numbers(parts: Parts) -> Parts:
    """The numbers between the bounds that are said of the hole's value, where they are few."""
    low, high = -math.inf, math.inf
    for part in parts:
        if isinstance(part, Compare) and part.measure is Measure.INT:
            least, most = _range(part.relation, part.bound)
            low, high = max(low, least), min(high, most)
    if not low <= high < low + _MAX_TRIED:
        return ()
    return (OneOf(tuple(map(str, range(int(low), int(high) + 1)))),)


def _range(relation: Relation, bound: int) -> tuple[float, float]:
    """The least and the most that a whole number may be, both included."""
    match relation:
        case Relation.LT:
            return -math.inf, bound - 1
        case Relation.LE:
            return -math.inf, bound
        case Relation.EQ:
            return bound, bound
        case Relation.GE:
            return bound, math.inf
        case Relation.GT:
            return bound + 1, math.inf
    return -math.inf, math.inf


def _passing(term: Term, texts: Iterable[str], current: CurrentHole) -> tuple[str, ...] | None:
    """The texts that satisfy a term; None: that is not known before one of them is made."""
    passing = []
    for text in texts:
        hole = current.kind.finished(text)
        try:
            truth = evaluate(term, {**current.values, current.name: hole})
        except ProgramFailed:
            return None
        if truth is None:
            return None
        if truth:
            passing.append(text)
    return tuple(passing)
