"""The functions that a rewritten `where` clause calls.

Parts of `and` and `or` are passed as functions, so that Python's own parts are evaluated only if
Python would evaluate them.

    len(X) < n and check(X, Y)
    ->  all_(place, lambda: compare(place, called(place, "len", ref(place, "X")), "<", n),
                    lambda: opaque(place, ("X", "Y"), lambda X, Y: check(X, Y), "check(X, Y)"))

A Python value among the parts works as in Python: a false one ends an `and`.
"""

from collections.abc import Callable

from client.query.conditions.evaluate import refuse_awaitable, uncounted_parts
from client.query.conditions.terms import (
    PIECES,
    All,
    AnyOf,
    Calculated,
    Called,
    Compared,
    Not,
    Opaque,
    Ref,
    Term,
    Value,
    written,
)
from client.query.errors import Place

_TERMS = (Value, Ref, All, AnyOf, Not, Compared, Calculated, Called, Opaque)


def term(place: Place | None, value: object) -> Term:
    """A term unchanged, anything else as a Value."""
    if isinstance(value, _TERMS):
        return value
    refuse_awaitable(value, place)
    return Value(value)


def ref(place: Place, name: str) -> Term:
    """A hole's value."""
    return Ref(name, place)


def all_(place: Place, *parts: Callable[[], object]) -> Term:
    """`and`."""
    held: list[Term] = []
    for part in parts:
        made = term(place, part())
        if isinstance(made, Value):
            if not made.value:
                return Value(False)
            continue
        held.append(made)
    return _joined(place, held, All, neutral=True)


def any_(place: Place, *parts: Callable[[], object]) -> Term:
    """`or`."""
    held: list[Term] = []
    for part in parts:
        made = term(place, part())
        if isinstance(made, Value):
            if made.value:
                return Value(True)
            continue
        held.append(made)
    return _joined(place, held, AnyOf, neutral=False)


def _joined(
    place: Place, parts: list[Term], kind: type[All] | type[AnyOf], *, neutral: bool
) -> Term:
    if not parts:
        return Value(neutral)
    return parts[0] if len(parts) == 1 else kind(tuple(parts), place)


def not_(place: Place, part: object) -> Term:
    """`not`."""
    made = term(place, part)
    return Value(not made.value) if isinstance(made, Value) else Not(made, place)


def compare(place: Place, left: object, relation: str, right: object) -> Term:
    return Compared(term(place, left), relation, term(place, right), place)


def calculated(place: Place, left: object, symbol: str, right: object, text: str) -> Term:
    """One arithmetic operation. Raises BadCondition for words(X) and the like."""
    sides = term(place, left), term(place, right)
    for side in sides:
        if isinstance(side, Called) and side.operator.lower() in PIECES:
            raise uncounted_parts(written(side), place)
    return Calculated(sides[0], symbol, sides[1], place, text)


def called(place: Place, operator: str, *arguments: object) -> Term:
    """An operator of the language."""
    return Called(operator, tuple(term(place, argument) for argument in arguments), place)


def opaque(
    place: Place, names: tuple[str, ...], function: Callable[..., object], text: str
) -> Term:
    """Any other Python expression about holes."""
    return Opaque(names, function, place, text)
