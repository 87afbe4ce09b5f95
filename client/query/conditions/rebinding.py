"""Conditions on holes whose variables the program has assigned again.

    "[N: int]"
    N = N * 100
    "[M: int]" where M > N        at M: M > 300; the condition no longer concerns hole N

Such a name is a plain Python variable: its value has no text and no tokens.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from client.query.conditions.evaluate import computed
from client.query.conditions.linear import ARITHMETIC
from client.query.conditions.terms import (
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
)
from client.query.conditions.value_comparisons import RELATIONS
from client.query.conditions.values import is_scalar
from client.query.conditions.writing import written

_NUMBERS: Mapping[str, Callable[..., object]] = {"int": int, "float": float}
_RELATIONS: Mapping[str, Callable[[Any, Any], object]] = RELATIONS | {
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
    "is": operator.is_,
    "is not": operator.is_not,
}


def is_same(value: object, bound: object) -> bool:
    """Whether a variable still has the value of its hole."""
    if value is bound:
        return True
    return is_scalar(bound) and type(value) is type(bound) and value == bound


def with_values(term: Term, values: Mapping[str, object]) -> Term:
    """The term with these values in place of the holes."""
    match term:
        case Ref(name) if name in values:
            return Value(values[name])
        case Not(part):
            return replace(term, part=with_values(part, values))
        case All(parts) | AnyOf(parts):
            return replace(term, parts=tuple(with_values(part, values) for part in parts))
        case Compared(left, _, right) | Calculated(left, _, right):
            return _with_sides(term, with_values(left, values), with_values(right, values))
        case Called():
            return _called(term, values)
        case Opaque():
            return _opaque(term, values)
    return term


def _with_sides(term: Compared | Calculated, left: Term, right: Term) -> Term:
    """The term with these sides; evaluated by Python if no hole is left."""
    sides = replace(term, left=left, right=right)
    if not isinstance(left, Value) or not isinstance(right, Value):
        return sides
    one = left.value
    other = right.value
    if isinstance(term, Calculated):
        return Value(computed(term, lambda: ARITHMETIC[term.symbol](one, other)))
    return Opaque((), lambda: _RELATIONS[term.relation](one, other), term.place, written(sides))


def _called(term: Called, values: Mapping[str, object]) -> Term:
    """In conditions `int` and `float` apply to texts only; here to numbers, too, as in Python."""
    arguments = tuple(with_values(argument, values) for argument in term.arguments)
    match arguments:
        case (Value(value),) if term.operator.lower() in _NUMBERS and not isinstance(value, str):
            number = _NUMBERS[term.operator.lower()]
            return Opaque((), lambda: number(value), term.place, written(term))
    return Called(term.operator, arguments, term.place)


def _opaque(term: Opaque, values: Mapping[str, object]) -> Opaque:
    left = tuple(name for name in term.names if name not in values)

    def function(*others: object) -> object:
        known = {**values, **dict(zip(left, others, strict=True))}
        return term.function(*(known[name] for name in term.names))

    return Opaque(left, function, term.place, term.text)
