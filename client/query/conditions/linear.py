"""Whole numbers calculated from a measure of the hole: which bound a comparison with them means.

    2 * len(words(X)) + 1 <= 6      scale 2, shift 1      len(words(X)) <= 5/2

Of whole numbers alone: these are exact, here and in Python.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from constraints.where.terms import Measure

# What a condition may calculate with holes.
ARITHMETIC: dict[str, Callable[[Any, Any], object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


@dataclass(frozen=True, slots=True)
class Linear:
    """`scale * measure + shift`; the scale is not zero."""

    measure: Measure
    scale: int = 1
    shift: int = 0

    def bound(self, constant: int) -> int | Fraction:
        """What the measure is compared with where this is compared with a constant.

        Below zero the scale turns the comparison around.
        """
        bound = Fraction(constant - self.shift, self.scale)
        return bound.numerator if bound.denominator == 1 else bound

    def calculated(self, symbol: str, number: int, *, is_left: bool) -> "Linear | None":
        """`this symbol number`, or turned around if the number `is_left`; None: a constant."""
        scale, shift = self.scale, self.shift
        match symbol:
            case "+":
                return Linear(self.measure, scale, shift + number)
            case "-" if is_left:
                return Linear(self.measure, -scale, number - shift)
            case "-":
                return Linear(self.measure, scale, shift - number)
            case "*" if number:
                return Linear(self.measure, scale * number, shift * number)
        return None
