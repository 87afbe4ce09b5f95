"""Plans the request of a hole from its conditions.

    terms -> conjuncts about this hole -> bounds (reduce.py) -> parts of a mask, and checks
    parts -> stop strings, a bound of tokens, a constraint (plan.py)

Pure functions. Contradictions that are visible here raise Unsatisfiable at once; the server refuses
the others (phrases and patterns that exclude each other).

Checks are evaluated on all possible texts of the hole before the request, if they are few; whole
numbers between two bounds count as such texts, too. Then no check can fail afterwards.
"""

import math
from collections.abc import Iterable, Sequence

from client.query.conditions.bounds import (
    FALSE,
    OPEN,
    TRUE,
    Bounds,
    CurrentHole,
    all_of,
    conjuncts_of,
    names_of,
)
from client.query.conditions.evaluate import evaluate
from client.query.conditions.kinds import FLOAT, INT, HoleKind, hole_type
from client.query.conditions.plan import Check, HolePlan, Parts, StopMode, hole_request, listed
from client.query.conditions.reduce import bounds
from client.query.conditions.terms import Term, Value, written
from client.query.conditions.values import Values
from client.query.errors import ProgramFailed, Unsatisfiable
from constraints.where.normal_form import top_parts
from constraints.where.terms import Compare, Expression, IsFloat, IsInt, Measure, OneOf, Relation

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


def plan(
    terms: tuple[Term, ...],
    name: str,
    kind: object | None,
    finished: Values,
    stops: StopMode,
    refused: tuple[str, ...] = (),
    is_decorated: bool = False,
) -> HolePlan:
    """The request of the hole `name`, and the checks that remain.

    terms:    all conditions that may mention it; those that mention only other holes are ignored
    kind:     its annotation, None: it has none
    finished: the values of finished holes, or `Finished`, which holds their texts
              and tokens too
    refused:  texts of this hole that failed a check; they are excluded
    is_decorated: decorators may change the value for conditions on later holes
    Raises BadCondition, Unsatisfiable, ProgramFailed.
    """
    others = {other: value for other, value in finished.items() if other != name}
    every = [part for term in terms for part in conjuncts_of(term)]
    conjuncts = [part for part in every if name in names_of(part) or not names_of(part)]
    current = CurrentHole(name, hole_type(conjuncts, name, kind), others)
    says = [_said(part, current, is_decorated) for part in conjuncts]
    _refuse_nothing(conjuncts, says, name)
    inexact = [part for part, said in zip(conjuncts, says, strict=True) if not said.is_exact]
    inexactly = [Check(part, names_of(part), written(part)) for part in inexact]
    known = {name, *others}
    parts, checks = enumerate_checks(
        _parts(current.kind, says), [check for check in inexactly if check.names <= known], current
    )
    request = hole_request(name, current.kind, parts, stops, refused)
    return HolePlan(
        constraint=request.constraint,
        stop=request.stop,
        keeps_stop=request.keeps_stop,
        max_tokens=request.max_tokens,
        checks=(*checks, *request.checks),
        deferred=tuple(check for check in inexactly if not check.names <= known),
        value=request.value,
    )


def _said(part: Term, current: CurrentHole, is_decorated: bool) -> Bounds:
    """The bounds on this hole; open if a decorator may change the meaning of the part."""
    is_later = not names_of(part) <= {current.name, *current.values}
    return OPEN if is_later and is_decorated else bounds(part, current)


def _refuse_nothing(conjuncts: Sequence[Term], says: Sequence[Bounds], name: str) -> None:
    for part, said in zip(conjuncts, says, strict=True):
        if said.upper != FALSE:
            continue
        if isinstance(part, Value):
            raise Unsatisfiable(f"a condition of `{name}` that asks of no hole is {written(part)}")
        what = f"nothing that `{name}` could be satisfies {written(part)}"
        raise Unsatisfiable(what, part.place)


def _parts(kind: HoleKind, says: Sequence[Bounds]) -> tuple[Expression, ...]:
    """The distinct parts of the mask's conjunction."""
    texts = () if kind.texts is None else (kind.texts,)
    whole = all_of((*texts, *(said.upper for said in says)))
    parts = dict.fromkeys(part for part in top_parts(whole) if part != TRUE)
    is_compared = any(isinstance(part, Compare) and part.measure is Measure.INT for part in parts)
    if is_compared or kind.name == INT.name:
        parts.pop(IsInt(), None)
    if kind.name == FLOAT.name:
        parts.pop(IsFloat(), None)
    return tuple(parts)
