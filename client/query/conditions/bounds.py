"""Lower and upper bounds of a condition, as constraints on the current hole.

    lower  <=  the condition  <=  upper

Both are expressions of `constraints.where`, combined with truth values simplified away. If they are
equal, the condition is expressed exactly; otherwise the upper one is a mask that is never too
strict, and the condition is checked afterwards.

Linear sums of measures of holes have ranges:

    2 * len(words(X)) + 1 - Y       scales {words of X: 2, value of Y: -1}, shift 1

With whole numbers they are exact, here and in Python. Python rounds decimals: `is_rounded`.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, assert_never

from client.query.conditions.kinds import HoleKind
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
from client.query.conditions.values import Values
from client.query.errors import BadCondition, Place
from constraints.where import terms as where
from constraints.where.terms import Measure

FALSE = where.Constant(False)
TRUE = where.Constant(True)


def all_of(parts: Iterable[where.Expression]) -> where.Expression:
    """The conjunction without duplicates and truth values."""
    kept = dict.fromkeys(part for part in parts if part != TRUE)
    return FALSE if FALSE in kept else where.all_of(kept)


def any_of(parts: Iterable[where.Expression]) -> where.Expression:
    """The disjunction without duplicates and truth values."""
    kept = dict.fromkeys(part for part in parts if part != FALSE)
    return TRUE if TRUE in kept else where.any_of(kept)


def opposite(expression: where.Expression) -> where.Expression:
    """The negation."""
    match expression:
        case where.Constant(value):
            return where.Constant(not value)
        case where.Not(part):
            return part
    return where.Not(expression)


Number = int | Fraction


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers from `low` to `high`, both included; None: no bound on that side."""

    low: Number | None = None
    high: Number | None = None

    @property
    def is_one(self) -> bool:
        """Whether it contains exactly one number."""
        return self.low is not None and self.low == self.high

    def plus(self, other: "Range") -> "Range":
        """The range of sums."""
        low = None if self.low is None or other.low is None else self.low + other.low
        high = None if self.high is None or other.high is None else self.high + other.high
        return Range(low, high)

    def times(self, number: Number) -> "Range":
        """The range of multiples; a negative factor swaps the bounds."""
        if number == 0:
            return Range(0, 0)
        low = None if self.low is None else self.low * number
        high = None if self.high is None else self.high * number
        return Range(low, high) if number > 0 else Range(high, low)


ANY = Range()
COUNTS = Range(0)


# The arithmetic that conditions allow on holes.
ARITHMETIC: dict[str, Callable[[Any, Any], object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of an unfinished hole; `measure` None: its decimal value."""

    hole: str
    measure: Measure | None

    @property
    def is_count(self) -> bool:
        """Whether it is a count: a whole number, not negative."""
        return self.measure not in (None, Measure.INT)

    @property
    def possible(self) -> Range:
        """Its range for any text of the hole."""
        return COUNTS if self.is_count else ANY


@dataclass(frozen=True, slots=True)
class Linear:
    """The sum of each quantity times its scale, and the shift.

    A scale may be zero: a quantity that cancels out still has to be a number.
    """

    scales: Mapping[Quantity, Number] = field(default_factory=lambda: MappingProxyType({}))
    shift: Number = 0
    is_rounded: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is always a whole number."""
        numbers = (*self.scales.values(), self.shift)
        are_whole = all(Fraction(number).denominator == 1 for number in numbers)
        return are_whole and not self.is_rounded and all(q.measure for q in self.scales)

    def calculated(self, symbol: str, other: "Linear") -> "Linear | None":
        """`self symbol other`; None: not linear."""
        match symbol:
            case "+":
                return self.plus(other)
            case "-":
                return self.plus(other.times(-1))
        if other.scales and self.scales:
            return None
        about, number = (self, other) if self.scales else (other, self)
        is_rounded = about.is_rounded or number.is_rounded
        return Linear(about.times(number.shift).scales, about.shift * number.shift, is_rounded)

    def plus(self, other: "Linear") -> "Linear":
        """The sum of both."""
        scales = dict(self.scales)
        for quantity, scale in other.scales.items():
            scales[quantity] = scales.get(quantity, 0) + scale
        is_rounded = self.is_rounded or other.is_rounded
        return Linear(MappingProxyType(scales), self.shift + other.shift, is_rounded)

    def times(self, number: Number) -> "Linear":
        """A multiple."""
        scales = {quantity: scale * number for quantity, scale in self.scales.items()}
        return Linear(MappingProxyType(scales), self.shift * number, self.is_rounded)

    @property
    def range(self) -> Range:
        """Its range, for any texts of the holes."""
        found = Range(self.shift, self.shift)
        for quantity, scale in self.scales.items():
            found = found.plus(quantity.possible.times(scale))
        return found

    def without(self, quantity: Quantity) -> "Linear":
        """The rest of the sum."""
        scales = {each: scale for each, scale in self.scales.items() if each != quantity}
        return Linear(MappingProxyType(scales), self.shift, self.is_rounded)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A sufficient and a necessary constraint."""

    lower: where.Expression
    upper: where.Expression

    @property
    def is_exact(self) -> bool:
        """Whether the condition is expressed exactly."""
        return self.lower == self.upper


OPEN = Bounds(FALSE, TRUE)


@dataclass(frozen=True, slots=True)
class CurrentHole:
    """The hole for which conditions are evaluated.

    values: finished holes by name, without this one
    """

    name: str
    kind: HoleKind
    values: Values


def names_of(term: Term) -> frozenset[str]:
    """The holes in a term."""
    match term:
        case Value():
            return frozenset()
        case Ref(name):
            return frozenset((name,))
        case Opaque(names):
            return frozenset(names)
        case Not(part):
            return names_of(part)
        case All(parts) | AnyOf(parts) | Called(arguments=parts):
            return frozenset().union(*map(names_of, parts))
        case Compared(left, _, right) | Calculated(left, _, right):
            return names_of(left) | names_of(right)
    assert_never(term)


def conjuncts_of(term: Term) -> Iterator[Term]:
    """The parts of nested `and`s."""
    if not isinstance(term, All):
        yield term
        return
    for part in term.parts:
        yield from conjuncts_of(part)


def exactly(expression: where.Expression | None) -> Bounds:
    """Exact bounds; None: no bounds."""
    return OPEN if expression is None else Bounds(expression, expression)


def negated(inner: Bounds) -> Bounds:
    """The bounds of `not`."""
    return Bounds(opposite(inner.upper), opposite(inner.lower))


def require_text(name: str, kind: HoleKind, place: Place) -> None:
    """Raise BadCondition for an operator on text if the hole's text is JSON."""
    if kind.schema is not None:
        raise BadCondition(
            f"`{name}` is about texts, and the hole is {kind.name}, whose text is JSON: say it in"
            " its type or schema, or with a function of its value",
            place,
        )
