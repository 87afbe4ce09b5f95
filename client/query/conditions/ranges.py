"""Ranges of numbers, with sums and multiples."""

from dataclasses import dataclass
from fractions import Fraction

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
