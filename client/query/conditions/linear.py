"""Linear sums of measures of holes.

    2 * len(words(X)) + 1 - Y       scales {words of X: 2, value of Y: -1}, shift 1

With whole numbers they are exact, here and in Python. Python rounds decimals: `is_rounded`.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from client.query.conditions.ranges import ANY, COUNTS, Number, Range
from constraints.where.terms import Measure

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
