"""Comparisons of sums of measures, in which later holes may occur.

len(X) + len(Y) == 5    len(Y) is at least 0     needed: len(X) <= 5    sure: nothing
len(X) < len(Y) + 3                              needed: nothing        sure: len(X) < 3

They are read as `sum relation 0`: `len(X) + len(Y) - 5 == 0`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from types import MappingProxyType

from client.query.conditions import compare
from client.query.conditions.bounds import (
    FALSE,
    TRUE,
    Bounds,
    CurrentHole,
    Linear,
    Number,
    Quantity,
    Range,
    all_of,
    any_of,
    exactly,
    names_of,
    negated,
)
from client.query.conditions.compare import numerals_related
from client.query.conditions.evaluate import operand
from client.query.conditions.kinds import FLOAT, INT
from client.query.conditions.operators import PIECES, operator_of
from client.query.conditions.terms import Calculated, Called, Compared, Ref, Term
from client.query.conditions.values import bare, exact_number, is_number
from client.query.errors import Place
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
    if not is_number(value) or not exact_number(value).is_finite():
        return None
    if isinstance(value, int | Fraction):
        return Linear(shift=value)
    return Linear(shift=Fraction(exact_number(value)), is_rounded=True)


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


# Python rounds decimals, so bounds are relaxed by so much.
_SLACK = Fraction(1, 10**6)


def sums_compared(term: Compared, current: CurrentHole) -> Bounds | None:
    """The bounds from a comparison of sums; None: it is none."""
    if term.relation == "not in":
        found = sums_compared(Compared(term.left, "in", term.right, term.place), current)
        is_safe = found is not None and _are_numbers(term.left, current)
        return negated(found) if found is not None and is_safe else None
    sums = related(term, current)
    if sums is None:
        return None
    said = [_said(one, current, term.place) for one in sums]
    return Bounds(any_of(one.lower for one in said), any_of(one.upper for one in said))


def _are_numbers(term: Term, current: CurrentHole) -> bool:
    """Whether each quantity is a number for every text of its hole."""
    found = linear_of(term, current)
    return found is not None and all(_is_number(each, current) for each in found.scales)


def _is_number(quantity: Quantity, current: CurrentHole) -> bool:
    if quantity.is_count or quantity.hole != current.name:
        return quantity.is_count
    kind = current.kind
    is_decimal = kind.name == FLOAT.name and quantity.measure is None
    return kind.name == INT.name or is_decimal


def _said(one: LinearComparison, current: CurrentHole, place: Place) -> Bounds:
    linear = one.linear
    relation = one.relation
    own = [each for each, scale in linear.scales.items() if each.hole == current.name and scale]
    is_exact = len(own) == 1 == len(linear.scales) and own[0].measure is not None
    if is_exact and not linear.is_rounded:
        rest = Range(linear.shift, linear.shift)
        return exactly(_needed(own[0], linear.scales[own[0]], relation, rest, place))
    if relation == "==" and linear.is_whole and _is_indivisible(linear):
        return exactly(FALSE)
    needed = _all_needed(own, one, place)
    is_expressed = all(_is_number(each, current) and each.measure for each in linear.scales)
    if not is_expressed or linear.is_rounded:
        return Bounds(FALSE, needed)
    return Bounds(_any_sure(own, one, place), needed)


def _all_needed(own: Sequence[Quantity], one: LinearComparison, place: Place) -> where.Expression:
    if not own:
        return where.Constant(_may(one.relation, _rest(one.linear, None)))
    scales = one.linear.scales
    rests = {each: _rest(one.linear, each) for each in own}
    return all_of(_needed(each, scales[each], one.relation, rests[each], place) for each in own)


def _any_sure(own: Sequence[Quantity], one: LinearComparison, place: Place) -> where.Expression:
    if not own:
        return where.Constant(_must(one.relation, _rest(one.linear, None)))
    scales = one.linear.scales
    rests = {each: _rest(one.linear, each) for each in own}
    return any_of(_sure(each, scales[each], one.relation, rests[each], place) for each in own)


def _rest(linear: Linear, quantity: Quantity | None) -> Range:
    """The range of the sum without one quantity."""
    rest = linear if quantity is None else linear.without(quantity)
    found = rest.range
    return found.plus(Range(-_SLACK, _SLACK)) if linear.is_rounded else found


def _is_indivisible(linear: Linear) -> bool:
    """Whether the sum cannot be zero for whole numbers: 2 * len(X) + 4 * len(Y) - 5."""
    divisor = math.gcd(*(int(scale) for scale in linear.scales.values()))
    return divisor != 0 and int(linear.shift) % divisor != 0


# One quantity: `scale * quantity + rest relation 0`


def _needed(
    quantity: Quantity, scale: Number, relation: str, rest: Range, place: Place
) -> where.Expression:
    """The condition that the comparison holds for some number of the rest."""
    match relation:
        case "<" | "<=":
            return _bound(quantity, scale, relation, rest.low, place)
        case ">" | ">=":
            return _bound(quantity, scale, relation, rest.high, place)
        case "==" if rest.is_one:
            return _bound(quantity, scale, "==", rest.low, place)
        case "==":
            least = _bound(quantity, scale, "<=", rest.low, place)
            return all_of((least, _bound(quantity, scale, ">=", rest.high, place)))
    return _bound(quantity, scale, "!=", rest.low if rest.is_one else None, place)


def _sure(
    quantity: Quantity, scale: Number, relation: str, rest: Range, place: Place
) -> where.Expression:
    """The condition that the comparison holds for all numbers of the rest."""
    if relation == "==" and not rest.is_one:
        return FALSE
    ways = (">", "<") if relation == "!=" else (relation,)
    ends = ((way, rest.high if way in ("<", "<=") else rest.low) for way in ways)
    parts = ((way, end) for way, end in ends if end is not None)
    return any_of(_bound(quantity, scale, way, end, place) for way, end in parts)


def _bound(
    quantity: Quantity, scale: Number, relation: str, rest: Number | None, place: Place
) -> where.Expression:
    """`scale * quantity + rest relation 0` in the server's language; True if rest is None."""
    if rest is None:
        return TRUE if quantity.is_count else _is_a_number(quantity)
    bound = Fraction(-rest) / scale
    if scale < 0:
        relation = compare.FLIPPED[relation]
    if quantity.measure is None:
        return _decimal(relation, bound)
    if bound.denominator == 1:
        return compare.measured(quantity.measure, relation, bound.numerator, place)
    match relation:
        case "==":
            return FALSE
        case "!=":
            return TRUE if quantity.is_count else where.IsInt()
        case "<" | "<=":
            return compare.measured(quantity.measure, "<=", math.floor(bound), place)
    return compare.measured(quantity.measure, ">=", math.ceil(bound), place)


def _is_a_number(quantity: Quantity) -> where.Expression:
    return where.IsFloat() if quantity.measure is None else where.IsInt()


def _decimal(relation: str, bound: Fraction) -> where.Expression:
    """Decimals may be closer to the bound than Python distinguishes, so `<` includes the bound."""
    steps = bound * 10**9
    match relation:
        case "<" | "<=":
            nearby = Decimal(math.ceil(steps))
        case ">" | ">=":
            nearby = Decimal(math.floor(steps))
        case _:
            return where.IsFloat()
    pattern = numerals_related(relation[0] + "=", nearby.scaleb(-9), decimals=True)
    return where.Matches(pattern)


# None of the current hole


def _may(relation: str, rest: Range) -> bool:
    """Whether `rest relation 0` holds for some number of the rest."""
    low = -math.inf if rest.low is None else rest.low
    high = math.inf if rest.high is None else rest.high
    return {
        "<": low < 0,
        "<=": low <= 0,
        "==": low <= 0 <= high,
        "!=": not low == high == 0,
        ">=": high >= 0,
        ">": high > 0,
    }[relation]


def _must(relation: str, rest: Range) -> bool:
    """Whether `rest relation 0` holds for all numbers of the rest."""
    opposites = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">=": "<", ">": "<="}
    return not _may(opposites[relation], rest)
