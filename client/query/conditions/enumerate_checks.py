"""Evaluates the checks of a hole on all its possible texts before the request, if they are few.

Whole numbers between two bounds count as such texts, too. Then no check can fail afterwards. A
check that raises on one of the texts is evaluated afterwards instead.
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

# Checks are enumerated on at most so many texts, since the program's functions may be slow.
_MAX_TRIED = 64


def enumerate_checks(
    parts: Parts, checks: Sequence[Check], current: CurrentHole
) -> tuple[Parts, tuple[Check, ...]]:
    """The parts restricted to the texts that pass, and the remaining checks.

    checks: on finished holes and this one
    """
    if checks and current.kind.name == INT.name:
        parts = (*_numbers(parts), *parts)
    parts = listed(parts)
    if not parts or not isinstance(parts[0], OneOf) or len(parts[0].values) > _MAX_TRIED:
        return parts, tuple(checks)
    texts = parts[0].values
    left = []
    for check in checks:
        passing = _passing(check.term, texts, current)
        if passing is None:
            left.append(check)
        else:
            texts = passing
    return (OneOf(texts), *parts[1:]), tuple(left)


def _numbers(parts: Parts) -> Parts:
    """The numbers between the bounds of the hole's value, if they are few."""
    low = -math.inf
    high = math.inf
    for part in parts:
        if isinstance(part, Compare) and part.measure is Measure.INT:
            least, most = _range(part.relation, part.bound)
            low = max(low, least)
            high = min(high, most)
    if not low <= high < low + _MAX_TRIED:
        return ()
    return (OneOf(tuple(map(str, range(int(low), int(high) + 1)))),)


def _range(relation: Relation, bound: int) -> tuple[float, float]:
    """The smallest and the largest number allowed, both included."""
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
    """The texts that satisfy a term; None: unknown before the text is generated."""
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
