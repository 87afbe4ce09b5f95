"""Derives bounds of the measures of future holes from the conditions on them.

    len(X) + len(Y) == 9 and len(Y) < len(Z) and len(Z) in [3, 4]       at X
    Z: 3 to 4      Y: 0 to 3      and so X: 6 to 9

A hole that the program never reaches counts as if it could have any text within these bounds.
Unsatisfiable conditions give no bounds, since such a hole may never be reached.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from client.query.conditions.bounds import CurrentHole, FutureBounds, names_of
from client.query.conditions.hole_type import type_from_conditions
from client.query.conditions.kinds import TEXT, HoleKind
from client.query.conditions.linear import Linear, Quantity
from client.query.conditions.ranges import ANY, Number, Range
from client.query.conditions.reduce import bounds
from client.query.conditions.sums import LinearComparison, related
from client.query.conditions.terms import Compared, Term, Value
from client.query.conditions.values import integer
from client.query.errors import QueryError, Unsatisfiable
from client.query.place import Place
from constraints.where import terms as where
from constraints.where.evaluate import measured
from constraints.where.interval import Interval
from constraints.where.normal_form import to_nnf

# The most rounds of propagation: some bounds never converge (X < Y and Y < X).
_MAX_ROUNDS = 16
# The most texts whose lengths are compared.
_MAX_TEXTS = 1000

# The key of a sum without its shift, for its known range.
_Sums = dict[tuple[tuple[Quantity, Number], ...], Range]


def future_bounds_of(conjuncts: Sequence[Term], current: CurrentHole) -> FutureBounds:
    """The bounds of future holes, as known at the current one.

    conjuncts: all conditions that surely apply, to this hole and to others
    Raises Unsatisfiable if no text of this hole leaves any text to the others.
    """
    known = {current.name, *current.values}
    to_come = frozenset().union(*map(names_of, conjuncts)) - known
    if not to_come:
        return FutureBounds()
    kinds = {hole: kind for hole in sorted(to_come) if (kind := _kind(conjuncts, hole))}
    apart = CurrentHole(current.name, current.kind, current.values, FutureBounds(kinds))
    others = [part for part in conjuncts if names_of(part) & to_come]
    of_others = [part for part in others if current.name not in names_of(part)]
    ranges = _ranges(of_others, apart)
    if any(found.is_empty for found in ranges.values()):
        return FutureBounds(kinds)
    own = [part for part in conjuncts if current.name in names_of(part)]
    together = _ranges([*of_others, *own], apart)
    if any(found.is_empty for found in together.values()):
        names = " and ".join(f"`{name}`" for name in sorted(to_come))
        what = f"no text of `{current.name}` satisfies what is said of it and {names}"
        raise Unsatisfiable(what, _place(own, to_come))
    return FutureBounds(kinds, together, ranges)


def _place(own: Sequence[Term], to_come: frozenset[str]) -> Place | None:
    shared = (part for part in own if names_of(part) & to_come)
    return next((part.place for part in shared if not isinstance(part, Value)), None)


def _kind(conjuncts: Sequence[Term], hole: str) -> HoleKind | None:
    try:
        return type_from_conditions(conjuncts, hole)
    except QueryError:
        return None  # the error is reported when the hole is reached


def _ranges(conjuncts: Sequence[Term], current: CurrentHole) -> dict[Quantity, Range]:
    """The range of each quantity, as far as known."""
    sums: _Sums = {}
    for part in conjuncts:
        for linear, found in _said(part, current):
            _note(sums, linear, found)
    ranges: dict[Quantity, Range] = {}
    for _ in range(_MAX_ROUNDS):
        before = dict(ranges)
        for key, found in sums.items():
            _carry(dict(key), found, ranges)
        if ranges == before or any(found.is_empty for found in ranges.values()):
            break
    return ranges


def _said(part: Term, current: CurrentHole) -> Iterator[tuple[Linear, Range]]:
    """Sums, and the ranges that a condition implies for them."""
    try:
        sums = related(part, current) if isinstance(part, Compared) else None
        if sums is not None:
            yield from _of_sums(sums)
            return
        holes = names_of(part) - current.values.keys()
        if len(holes) == 1:
            (hole,) = holes
            kind = current.kind_of(hole) or TEXT
            upper = bounds(part, CurrentHole(hole, kind, current.values)).upper
            yield from _of_expression(upper, hole)
    except QueryError:
        return  # the error is reported when the hole is reached


def _of_sums(sums: Sequence[LinearComparison]) -> Iterator[tuple[Linear, Range]]:
    """One of these comparisons holds; those made from `in` differ in their shifts only."""
    ends = {"<": Range(None, 0), "<=": Range(None, 0), "==": Range(0, 0)}
    ends |= {">": Range(0, None), ">=": Range(0, None)}
    if not sums:
        return
    found = Range(0, -1)
    for one in sums:
        if one.relation not in ends or one.linear.is_rounded:
            return
        end = ends[one.relation]
        shift = one.linear.shift
        if one.relation in ("<", ">") and one.linear.is_whole:
            end = end.plus(Range(-1, -1) if one.relation == "<" else Range(1, 1))
        each = end.plus(Range(-shift, -shift))
        found = each if found.is_empty else found.join(each)
    yield sums[0].linear, found


def _of_expression(upper: where.Expression, hole: str) -> Iterator[tuple[Linear, Range]]:
    """The ranges that an expression about one hole implies for its measures."""
    for measure in where.Measure:
        found = _range_of(upper, measure)
        if found != ANY:
            yield Linear({Quantity(hole, measure): 1}), found


def _range_of(expression: where.Expression, measure: where.Measure) -> Range:
    match expression:
        case where.And(parts):
            met = ANY
            for part in parts:
                met = met.meet(_range_of(part, measure))
            return met
        case where.Or(parts):
            return _joined(_range_of(part, measure) for part in parts)
        case where.Compare(about) if about is measure:
            interval = Interval.of(expression)
            return Range(interval.low, interval.high)
        case where.Not(where.Compare(about)) if about is measure:
            return _range_of(to_nnf(expression), measure)
        case where.OneOf(texts) if texts and len(texts) <= _MAX_TEXTS:
            return _of_texts(texts, measure)
    return ANY


def _joined(ranges: Iterable[Range]) -> Range:
    first, *others = ranges
    for other in others:
        first = first.join(other)
    return first


def _of_texts(texts: Sequence[str], measure: where.Measure) -> Range:
    if measure is where.Measure.TOKENS:
        return ANY
    if measure is where.Measure.INT:
        numbers = [integer(text) for text in texts]
        whole = [number for number in numbers if number is not None]
        # A text that is no number satisfies no comparison, but may be the one generated.
        return Range(min(whole), max(whole)) if len(whole) == len(numbers) else ANY
    counts = [measured(measure, text) for text in texts]
    return Range(min(counts), max(counts))


# Propagating bounds from sum to sum


def _note(sums: _Sums, linear: Linear, found: Range) -> None:
    """Record a range under a canonical sum: `Y - X` as `X - Y`, `2 * X + 2 * Y` as `X + Y`."""
    scales = [(quantity, scale) for quantity, scale in linear.scales.items() if scale]
    if not scales:
        return
    scales.sort(key=lambda pair: (pair[0].hole, str(pair[0].measure)))
    first = Fraction(scales[0][1])
    key = tuple((quantity, Fraction(scale) / first) for quantity, scale in scales)
    sums[key] = sums.get(key, ANY).meet(found.times(1 / first))


def _carry(scales: Mapping[Quantity, Number], found: Range, ranges: dict[Quantity, Range]) -> None:
    """Propagate the range of a sum to its quantities."""
    linear = Linear(scales)
    if len(scales) > 1 and found.is_empty:
        ranges[next(iter(scales))] = found
        return
    for quantity, scale in scales.items():
        rest = linear.without(quantity).range(ranges)
        left = found.plus(rest.times(-1)).times(Fraction(1) / scale)
        left = left if quantity.measure is None else left.whole()
        ranges[quantity] = ranges.get(quantity, quantity.possible).meet(left)
