"""Patterns of the numerals that compare with a bound in a given way, in Python's syntax.

    numeral = -? digits (. digits)?      its value is exact: "0.10" is 0.1, "-0" is 0, "007" is 7

Each pattern matches exactly the numerals whose value has the relation to the bound, with any
leading and trailing zeros.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class _Digits:
    """An unsigned bound: digits before and behind the point, without needless zeros."""

    whole: str
    fraction: str


def related(relation: str, bound: Decimal, *, decimals: bool) -> str:
    """The pattern of numerals with `value relation bound`; only integers unless `decimals`.

    relation: <, <=, ==, !=, >=, >
    """
    parts = {
        "<": ("<",),
        "<=": ("<", "=="),
        "==": ("==",),
        "!=": ("<", ">"),
        ">=": (">", "=="),
        ">": (">",),
    }[relation]
    return _any(piece for part in parts for piece in _signed(part, bound, decimals))


def among(bounds: Iterable[Decimal], *, decimals: bool) -> str:
    """The pattern of numerals whose value is one of these."""
    return _any(piece for bound in bounds for piece in _signed("==", bound, decimals))


def _any(patterns: Iterable[str]) -> str:
    """The alternation; a pattern that matches nothing if there are none."""
    listed = "|".join(patterns)
    return f"(?:{listed})" if listed else r"[^\s\S]"


def _signed(relation: str, bound: Decimal, decimals: bool) -> list[str]:
    digits = _digits(bound)
    rest = _FRACTION if decimals else ""
    anything = f"[0-9]+{rest}"
    if relation == "==":
        sign = "-?" if not bound else "-" if bound < 0 else ""
        return [sign + piece for piece in _equal(digits, decimals)]
    is_towards_zero = bound > 0 if relation == "<" else bound < 0
    sign, other = ("", "-") if relation == ">" else ("-", "")
    if is_towards_zero:
        return [sign + anything, *(other + piece for piece in _less(digits, decimals))]
    return [sign + piece for piece in _greater(digits, decimals)]


_FRACTION = r"(?:\.[0-9]+)?"


def _digits(bound: Decimal) -> _Digits:
    whole, _, fraction = format(abs(bound), "f").partition(".")
    return _Digits(whole.lstrip("0"), fraction.rstrip("0"))


def _equal(bound: _Digits, decimals: bool) -> list[str]:
    whole = f"0*{bound.whole}" if bound.whole else "0+"
    if bound.fraction:
        return [rf"{whole}\.{bound.fraction}0*"] if decimals else []
    return [whole + (r"(?:\.0+)?" if decimals else "")]


def _less(bound: _Digits, decimals: bool) -> list[str]:
    """Unsigned numerals below a positive bound."""
    pieces = []
    if bound.whole:
        shorter = len(bound.whole) - 1
        pieces.append(f"0*[0-9]{{1,{shorter}}}" if shorter else "0+")
        for index, digit in enumerate(bound.whole):
            below = int(digit) - 1
            if below >= (index == 0):
                lowest = 1 if index == 0 else 0
                after = len(bound.whole) - index - 1
                pieces.append(f"0*{bound.whole[:index]}[{lowest}-{below}]{_any_digits(after)}")
    rest = _FRACTION if decimals else ""
    pieces = [piece + rest for piece in pieces]
    if bound.fraction:
        whole = f"0*{bound.whole}" if bound.whole else "0+"
        pieces.append(whole + (_fraction_below(bound.fraction) if decimals else ""))
    return pieces


def _greater(bound: _Digits, decimals: bool) -> list[str]:
    """Unsigned numerals above a bound that is not negative."""
    longer = len(bound.whole)
    pieces = [f"0*[1-9][0-9]{{{longer},}}"]
    for index, digit in enumerate(bound.whole):
        if digit != "9":
            after = _any_digits(longer - index - 1)
            pieces.append(f"0*{bound.whole[:index]}[{int(digit) + 1}-9]{after}")
    if not decimals:
        return pieces
    whole = f"0*{bound.whole}" if bound.whole else "0+"
    return [*(piece + _FRACTION for piece in pieces), whole + _fraction_above(bound.fraction)]


def _any_digits(count: int) -> str:
    return f"[0-9]{{{count}}}" if count else ""


def _fraction_below(fraction: str) -> str:
    """What may follow the whole part: nothing, or a point and less than `fraction`."""
    pieces = [fraction[:length] for length in range(1, len(fraction))]
    for index, digit in enumerate(fraction):
        if digit != "0":
            pieces.append(f"{fraction[:index]}[0-{int(digit) - 1}][0-9]*")
    return rf"(?:\.{_any(pieces)})?"


def _fraction_above(fraction: str) -> str:
    pieces = [f"{fraction}[0-9]*[1-9][0-9]*"]
    for index, digit in enumerate(fraction):
        if digit != "9":
            pieces.append(f"{fraction[:index]}[{int(digit) + 1}-9][0-9]*")
    return rf"\.{_any(pieces)}"
