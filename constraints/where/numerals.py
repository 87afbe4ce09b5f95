"""Automata of numbers: integers, their comparison with a constant, decimals."""

from collections.abc import Callable

import numpy as np

from constraints.where.automata import Automaton
from constraints.where.code_points import Partition
from constraints.where.terms import Relation

_MINUS = ord("-")
_POINT = ord(".")
_ZERO = ord("0")
# Labels: 0 other, 1 minus, 2 point, 3 .. 12 the digits.
_PARTITION_SETS = [((_MINUS, _MINUS),), ((_POINT, _POINT),)] + [
    ((_ZERO + digit, _ZERO + digit),) for digit in range(10)
]
_FIRST_DIGIT = 3
_NUM_LABELS = _FIRST_DIGIT + 10

# The state of a numeral: its sign, its number of digits without leading zeros, and how they compare
# with as many digits of the bound. A longer numeral counts as one digit longer than the bound.
_Place = tuple[str, int, int]

_HOLDS: dict[Relation, Callable[[int], bool]] = {
    Relation.LT: lambda order: order < 0,
    Relation.LE: lambda order: order <= 0,
    Relation.EQ: lambda order: order == 0,
    Relation.NE: lambda order: order != 0,
    Relation.GE: lambda order: order >= 0,
    Relation.GT: lambda order: order > 0,
}


def is_int() -> Automaton:
    """Accepts -?[0-9]+."""
    return _numeral(decimals=False)


def is_float() -> Automaton:
    """Accepts -?[0-9]+(\\.[0-9]+)?."""
    return _numeral(decimals=True)


def _numeral(*, decimals: bool) -> Automaton:
    start, signed, whole, pointed, fraction, sink = range(6)
    steps = np.full((6, _NUM_LABELS), sink, dtype=np.int32)
    steps[start, 1] = signed
    steps[[start, signed, whole], _FIRST_DIGIT:] = whole
    steps[[pointed, fraction], _FIRST_DIGIT:] = fraction
    if decimals:
        steps[whole, 2] = pointed
    accepts = np.isin(np.arange(6), [whole, fraction])
    return Automaton(Partition.of_sets(_PARTITION_SETS), steps, accepts)


def compared(relation: Relation, bound: int) -> Automaton:
    """Accepts integers whose value has this relation to the bound; leading zeros are ignored."""
    digits = str(abs(bound)) if bound else ""
    holds = _HOLDS[relation]
    places: dict[_Place | None, int] = {("", -1, 0): 0, None: 1}
    rows: list[list[int]] = [[], [1] * _NUM_LABELS]
    accepts = [False, False]
    queue: list[_Place] = [("", -1, 0)]
    while queue:
        place = queue.pop()
        row = [1] * _NUM_LABELS
        for label in [1, *range(_FIRST_DIGIT, _NUM_LABELS)]:
            following = _after(place, label, digits)
            if following is not None and following not in places:
                places[following] = len(rows)
                rows.append([])
                accepts.append(holds(_order(following, bound, digits)) and following[1] >= 0)
                queue.append(following)
            row[label] = places[following]
        rows[places[place]] = row
    return Automaton(
        Partition.of_sets(_PARTITION_SETS), np.array(rows, dtype=np.int32), np.array(accepts)
    )


def _after(place: _Place, label: int, digits: str) -> _Place | None:
    """`length` is -1 before the first digit."""
    sign, length, order = place
    if label == 1:
        return ("-", -1, 0) if not sign and length < 0 else None
    digit = label - _FIRST_DIGIT
    if digit == 0 and length <= 0:
        return sign, 0, 0
    length = max(length, 0)
    if length >= len(digits):
        return sign, len(digits) + 1, 1
    if order == 0:
        order = (digit > int(digits[length])) - (digit < int(digits[length]))
    return sign, length + 1, order


def _order(place: _Place, bound: int, digits: str) -> int:
    """The comparison of the numeral's value with the bound: negative, 0 or positive."""
    sign, length, order = place
    if length != len(digits):
        order = -1 if length < len(digits) else 1
    is_negative = sign == "-" and length > 0
    if is_negative != (bound < 0):
        return -1 if is_negative else 1
    return -order if is_negative else order
