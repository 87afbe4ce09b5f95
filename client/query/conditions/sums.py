"""Comparisons read as sums of measures: `len(X) + len(Y) == 5` is `len(X) + len(Y) - 5 == 0`."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from types import MappingProxyType

from client.query.conditions import compare
from client.query.conditions.bounds import CurrentHole, names_of
from client.query.conditions.evaluate import operand
from client.query.conditions.kinds import FLOAT, INT
from client.query.conditions.linear import Linear, Quantity
from client.query.conditions.operators import PIECES, operator_of
from client.query.conditions.terms import Calculated, Called, Compared, Ref, Term
from client.query.conditions.values import bare, is_number, written
from constraints.where import terms as where

# With larger numbers Python's rounding could decide the result.
_MAX_ROUNDED = 10**6
# The most numbers on the right of `in`.
_MAX_LISTED = 64


@dataclass(frozen=True, slots=True)
class LinearComparison:
    """`linear relation 0`: the normal form of a comparison of two sums."""

    linear: Linear
    relation: str


def linear_of(term: Term, current: CurrentHole) -> Linear | None:
    """A side of a comparison as a sum over unfinished holes; None: it is none."""
    if names_of(term) <= current.values.keys():
        return _known(bare(operand(term, current.values)))
    match term:
        case Ref(hole):
            measures = {INT.name: where.Measure.INT, FLOAT.name: None}
            if hole != current.name or current.kind.name not in measures:
                return None
            return _once(Quantity(hole, measures[current.kind.name]))
        case Called():
            quantity = _quantity(term, current)
            return None if quantity is None else _once(quantity)
        case Calculated():
            left = linear_of(term.left, current)
            right = linear_of(term.right, current)
            if left is None or right is None:
                return None
            return _calculated(left, term.symbol, right)
    return None


def _once(quantity: Quantity) -> Linear:
    return Linear(MappingProxyType({quantity: 1}))


def _known(value: object) -> Linear | None:
    if not is_number(value) or not written(value).is_finite():
        return None
    if isinstance(value, int | Fraction):
        return Linear(shift=value)
    return Linear(shift=Fraction(written(value)), is_rounded=True)


def _calculated(left: Linear, symbol: str, right: Linear) -> Linear | None:
    made = left.calculated(symbol, right)
    if made is None or not any(quantity.measure is None for quantity in made.scales):
        return made
    return Linear(made.scales, made.shift, is_rounded=True)


def _quantity(term: Called, current: CurrentHole) -> Quantity | None:
    """len(X), len(words(X)), int(X), float(X)."""
    match operator_of(term), term.arguments[0]:
        case "len", Ref(hole):
            found = Quantity(hole, where.Measure.CHARS)
        case "len", Called(arguments=(Ref(hole), *_)) as inner if operator_of(inner) in PIECES:
            found = Quantity(hole, PIECES[operator_of(inner)])
        case "int", Ref(hole):
            found = Quantity(hole, where.Measure.INT)
        case "float", Ref(hole):
            found = Quantity(hole, None)
        case _:
            return None
    # For JSON only the schema can be enforced.
    return None if hole == current.name and current.kind.schema is not None else found


def related(term: Compared, current: CurrentHole) -> tuple[LinearComparison, ...] | None:
    """Comparisons of sums with zero, one of which must hold; None: the term compares no sums."""
    left = linear_of(term.left, current)
    if left is None:
        return None
    if term.relation == "in":
        return _listed(left, operand(term.right, current.values))
    right = linear_of(term.right, current)
    if right is None or term.relation not in compare.FLIPPED:
        return None
    return _sensible([LinearComparison(left.plus(right.times(-1)), term.relation)])


def _listed(left: Linear, among: object) -> tuple[LinearComparison, ...] | None:
    numbers = bare(among)
    if not isinstance(numbers, list | tuple | set | frozenset | range):
        return None
    listed = list(islice(numbers, _MAX_LISTED + 1))
    if len(listed) > _MAX_LISTED or not all(map(is_number, listed)):
        return None
    known = [_known(number) for number in listed]
    found = (LinearComparison(left.plus(one.times(-1)), "==") for one in known if one is not None)
    return _sensible(found)


def _sensible(found: Iterable[LinearComparison]) -> tuple[LinearComparison, ...] | None:
    """None if numbers are so large that rounding decides."""
    several = tuple(found)
    for one in several:
        numbers = (*one.linear.scales.values(), one.linear.shift)
        is_large = any(not -_MAX_ROUNDED <= number <= _MAX_ROUNDED for number in numbers)
        if one.linear.is_rounded and is_large:
            return None
    return several
