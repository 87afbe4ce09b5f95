"""What a hole's conditions mean for its one request.

    terms -> conjuncts about this hole -> bounds (reduce.py) -> parts of a mask, and checks
    parts -> stop strings, a bound of tokens, a constraint (asking.py)

It asks nobody and keeps nothing. What can be seen to be impossible is Unsatisfiable at once; what
only the server sees (phrases and patterns that exclude each other) it refuses.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from client.query.conditions.bounds import Bounds, Current, names_of
from client.query.conditions.expressions import FALSE, TRUE, all_of
from client.query.conditions.kinds import FLOAT, INT, HoleKind, kind_of
from client.query.conditions.operators import operator_of
from client.query.conditions.plan import Check, HolePlan, StopMode
from client.query.conditions.reduce import bounds
from client.query.conditions.request import asked
from client.query.conditions.terms import All, Called, Compared, Ref, Term, Value
from client.query.conditions.trying import tried
from client.query.conditions.values import Values
from client.query.conditions.writing import written
from client.query.errors import BadCondition, Unsatisfiable
from client.query.place import Place
from constraints.where.conflict import top_parts
from constraints.where.terms import Compare, Expression, IsFloat, IsInt, Measure


class PlannedHole(Protocol):
    """What is asked of a hole as a program has reached it."""

    @property
    def name(self) -> str:
        """Its variable's."""
        ...

    @property
    def kind(self) -> object | None:
        """What stands behind its colon."""
        ...


def plan_hole(
    hole: PlannedHole,
    terms: Sequence[Term],
    values: Values,
    *,
    promises: Sequence[Check],
    refused: tuple[str, ...],
    stops: StopMode,
) -> HolePlan:
    """The same as `plan`; `promises` are the deferred checks of finished holes."""
    every = (*terms, *(promise.term for promise in promises))
    return plan(every, hole.name, hole.kind, values, stops, refused)


def plan(
    terms: tuple[Term, ...],
    name: str,
    kind: object | None,
    finished: Values,
    stops: StopMode,
    refused: tuple[str, ...] = (),
) -> HolePlan:
    """The request of the hole `name`, and what is left to be checked.

    terms:    all conditions that may speak of it; those that speak of other holes alone are theirs
    kind:     what stands behind its colon, None: nothing does
    finished: what the variables of finished holes are bound to, or `Finished` to tell their texts
              and tokens too
    refused:  texts of this hole that failed a check; they are left out
    Raises BadCondition, Unsatisfiable, ProgramFailed.
    """
    others = {other: value for other, value in finished.items() if other != name}
    conjuncts = [
        part
        for term in terms
        for part in _conjuncts(term)
        if name in names_of(part) or not names_of(part)
    ]
    current = Current(name, _kind(conjuncts, name, kind), others)
    says = [bounds(part, current) for part in conjuncts]
    _refuse_nothing(conjuncts, says, name)
    inexact = [part for part, said in zip(conjuncts, says, strict=True) if not said.is_exact]
    every = [Check(part, names_of(part), written(part)) for part in inexact]
    known = {name, *others}
    parts, checks = tried(
        _parts(current.kind, says), [check for check in every if check.names <= known], current
    )
    request = asked(name, current.kind, parts, stops, refused)
    return HolePlan(
        constraint=request.constraint,
        stop=request.stop,
        keeps_stop=request.keeps_stop,
        max_tokens=request.max_tokens,
        checks=(*checks, *request.checks),
        deferred=tuple(check for check in every if not check.names <= known),
        value=request.value,
        prompt_text=request.prompt_text,
    )


def _conjuncts(term: Term) -> Iterator[Term]:
    """What `and` joins, however deep."""
    if not isinstance(term, All):
        yield term
        return
    for part in term.parts:
        yield from _conjuncts(part)


def _kind(conjuncts: Sequence[Term], name: str, annotation: object | None) -> HoleKind:
    """What stands behind the colon, or what a condition says: int(X), float(X), type(X) is T."""
    if annotation is not None:
        return kind_of(annotation)
    for part in conjuncts:
        match part:
            case Called(arguments=(Ref(about),)) if about == name:
                typed = {"int": INT, "float": FLOAT}.get(operator_of(part))
                if typed is not None:
                    return typed
            case Compared(Called("type", (Ref(about),)), "is" | "==", Value(wanted), place):
                if about == name:
                    return _typed(wanted, place)
    return kind_of(None)


def _typed(wanted: object, place: Place) -> HoleKind:
    try:
        return kind_of(wanted)
    except BadCondition as error:
        raise BadCondition(error.message, place) from error


def _refuse_nothing(conjuncts: Sequence[Term], says: Sequence[Bounds], name: str) -> None:
    for part, said in zip(conjuncts, says, strict=True):
        if said.upper != FALSE:
            continue
        if isinstance(part, Value):
            raise Unsatisfiable(f"a condition of `{name}` that asks of no hole is {written(part)}")
        what = f"nothing that `{name}` could be satisfies {written(part)}"
        raise Unsatisfiable(what, part.place)


def _parts(kind: HoleKind, says: Sequence[Bounds]) -> tuple[Expression, ...]:
    """The mask as parts of a conjunction, each once."""
    texts = () if kind.texts is None else (kind.texts,)
    whole = all_of((*texts, *(said.upper for said in says)))
    parts = dict.fromkeys(part for part in top_parts(whole) if part != TRUE)
    is_compared = any(isinstance(part, Compare) and part.measure is Measure.INT for part in parts)
    if is_compared or kind.name == INT.name:
        parts.pop(IsInt(), None)
    if kind.name == FLOAT.name:
        parts.pop(IsFloat(), None)
    return tuple(parts)
