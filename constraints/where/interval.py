"""The whole numbers that satisfy comparisons of one measure."""

from dataclasses import dataclass

from constraints.where.terms import Compare, Measure, Relation


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from `low` to `high`, both included, without the `holes` within.

    None: no bound on that side. A count has none below 0.
    """

    low: int | None = None
    high: int | None = None
    holes: frozenset[int] = frozenset()

    @classmethod
    def of(cls, compare: Compare) -> "Interval":
        """The numbers that satisfy one comparison."""
        least = None if compare.measure is Measure.INT else 0
        bound = compare.bound
        match compare.relation:
            case Relation.LT:
                return cls(least, bound - 1)
            case Relation.LE:
                return cls(least, bound)
            case Relation.EQ:
                return cls(bound if least is None else max(bound, least), bound)
            case Relation.NE:
                return cls(least).meet(cls(holes=frozenset({bound})))
            case Relation.GE:
                return cls(bound if least is None else max(bound, least))
            case Relation.GT:
                return cls(bound + 1 if least is None else max(bound + 1, least))

    def meet(self, other: "Interval") -> "Interval":
        """The numbers in both."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        low = max(lows, default=None)
        high = min(highs, default=None)
        holes = set(self.holes | other.holes)
        while low is not None and low in holes:
            holes.remove(low)
            low += 1
        while high is not None and high in holes:
            holes.remove(high)
            high -= 1
        return Interval(low, high, frozenset(hole for hole in holes if _lies(low, hole, high)))

    @property
    def is_empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low > self.high

    def __contains__(self, number: int) -> bool:
        return _lies(self.low, number, self.high) and number not in self.holes

    def comparisons(self, measure: Measure) -> tuple[Compare, ...]:
        """Comparisons that are equivalent to this interval."""
        if self.low is not None and self.low == self.high:
            return (Compare(measure, Relation.EQ, self.low),)
        least = None if measure is Measure.INT else 0
        found = [Compare(measure, Relation.NE, hole) for hole in sorted(self.holes)]
        if self.high is not None:
            found.insert(0, Compare(measure, Relation.LE, self.high))
        if self.low is not None and self.low != least:
            found.insert(0, Compare(measure, Relation.GE, self.low))
        return tuple(found)


def _lies(low: int | None, number: int, high: int | None) -> bool:
    return (low is None or low <= number) and (high is None or number <= high)
