"""Translates comparisons of the current hole with constants into the server's language.

    measured(measure, relation, constant)   len(X) < 5, len(words(X)) in [1, 2]
    decimal(relation, constant)             float(X) <= 0.5
    subject(kind, relation, constant)       X == "a", X < 5, X in [...]
    contained(kind, constant)               "a" in X

Returns None for what the language cannot express. Comparisons of decimals are patterns:

    numeral = -? digits (. digits)?      its value is exact: "0.10" is 0.1, "-0" is 0, "007" is 7

Each matches exactly the numerals whose value has the relation to the bound, with any leading and
trailing zeros.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from client.query.conditions.bounds import any_of, opposite
from client.query.conditions.kinds import FLOAT, INT, HoleKind
from client.query.conditions.values import (
    Finished,
    bare,
    compared,
    described,
    exact_number,
    is_number,
    is_scalar,
)
from client.query.errors import BadCondition, Place
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    OneOf,
    Relation,
)


@dataclass(frozen=True, slots=True)
class _Digits:
    """An unsigned bound: digits before and behind the point, without needless zeros."""

    whole: str
    fraction: str


def numerals_related(relation: str, bound: Decimal, *, decimals: bool) -> str:
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


def numerals_among(bounds: Iterable[Decimal], *, decimals: bool) -> str:
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
        return [sign + piece for piece in _equal_to(digits, decimals)]
    is_towards_zero = bound > 0 if relation == "<" else bound < 0
    sign, other = ("", "-") if relation == ">" else ("-", "")
    if is_towards_zero:
        return [sign + anything, *(other + piece for piece in _less(digits, decimals))]
    return [sign + piece for piece in _greater(digits, decimals)]


_FRACTION = r"(?:\.[0-9]+)?"


def _digits(bound: Decimal) -> _Digits:
    whole, _, fraction = format(abs(bound), "f").partition(".")
    return _Digits(whole.lstrip("0"), fraction.rstrip("0"))


def _equal_to(bound: _Digits, decimals: bool) -> list[str]:
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


FLIPPED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">=": "<=", ">": "<"}
# The server's language has numbers of at most 18 digits, more than any count needs.
MAX_BOUND = 10**18 - 1
# All substrings of a text are listed if they have at most so many characters together.
_MAX_SUBSTRINGS_LEN = 20_000


def measured(measure: Measure, relation: str, constant: object, place: Place) -> Expression:
    """A measure of the hole compared with a number, or `in` some numbers."""
    constant = bare(constant)
    if relation in FLIPPED:
        _require_number(constant, measure.value, place)
        return _bounded(measure, relation, exact_number(constant))
    numbers = _numbers(constant)
    if relation not in ("in", "not in") or numbers is None:
        what = f"{measure.value} is a number, compared with numbers"
        raise BadCondition(f"{what}. Given: {relation} {described(constant)}", place)
    is_one = _among(measure, numbers)
    if relation == "in":
        return is_one
    # A text that is no integer satisfies no comparison.
    return And((IsInt(), opposite(is_one))) if measure is Measure.INT else opposite(is_one)


def decimal(relation: str, constant: object, place: Place) -> Expression:
    """float(X), or a hole of that kind, compared with a number."""
    if relation in FLIPPED:
        _require_number(bare(constant), "float(X)", place)
        number = exact_number(constant)
        if number.is_finite():
            return Matches(numerals_related(relation, number, decimals=True))
        return _beyond(relation, number, IsFloat())
    numbers = _numbers(bare(constant))
    if relation not in ("in", "not in") or numbers is None:
        what = "float(X) is a number, compared with numbers"
        raise BadCondition(f"{what}. Given: {relation} {described(constant)}", place)
    found = Matches(numerals_among(map(exact_number, numbers), decimals=True))
    return found if relation == "in" else And((IsFloat(), opposite(found)))


def _require_number(constant: object, what: str, place: Place) -> None:
    if not is_number(constant):
        raise BadCondition(
            f"{what} is a number, compared with numbers. Given: {described(constant)}", place
        )


def _bounded(measure: Measure, relation: str, bound: Decimal) -> Expression:
    """The measure is a whole number, the bound any number."""
    is_int = measure is Measure.INT
    always: Expression = IsInt() if is_int else Constant(True)
    if not bound.is_finite():
        return _beyond(relation, bound, always)
    if bound != bound.to_integral_value():
        if relation in ("==", "!="):
            return Constant(False) if relation == "==" else always
        relation, whole = ("<=", math.floor(bound)) if "<" in relation else (">=", math.ceil(bound))
    else:
        whole = int(bound)
    if not is_int and (whole < 0 or (whole == 0 and relation in ("<", ">="))):
        return Constant(relation in (">", ">=", "!="))
    if abs(whole) <= MAX_BOUND:
        return Compare(measure, Relation(relation), whole)
    if is_int:
        return Matches(numerals_related(relation, Decimal(whole), decimals=False))
    return Constant(relation in ("<", "<=", "!="))


def _beyond(relation: str, bound: Decimal, always: Expression) -> Expression:
    """Comparison with infinity or NaN."""
    wanted = ("!=",) if bound.is_nan() else ("!=", "<", "<=") if bound > 0 else ("!=", ">", ">=")
    return always if relation in wanted else Constant(False)


def _numbers(value: object) -> range | list[object] | None:
    """The numbers of a collection; None: it is none."""
    if isinstance(value, range):
        return value
    if isinstance(value, str | bytes | Iterator) or not isinstance(value, Iterable):
        return None
    numbers = list(value)
    return numbers if all(map(is_number, numbers)) else None


def _among(measure: Measure, numbers: range | list[object]) -> Expression:
    if isinstance(numbers, range) and numbers.step == 1 and numbers:
        low = _bounded(measure, ">=", Decimal(numbers[0]))
        return And((low, _bounded(measure, "<=", Decimal(numbers[-1]))))
    bounds = [exact_number(number) for number in numbers]
    if measure is Measure.INT and len(bounds) > 1:
        finite = (bound for bound in bounds if bound.is_finite())
        return Matches(numerals_among(finite, decimals=False))
    return any_of(_bounded(measure, "==", bound) for bound in bounds)


# The hole itself


def subject(kind: HoleKind, relation: str, constant: object, place: Place) -> Expression | None:
    """The hole's text or value on the left; `in` a text only if that is short."""
    if kind.schema is not None:
        return None
    if kind.choices:
        holding = [
            text
            for text in kind.choices
            if compared(kind.finished(text), relation, constant, place)
        ]
        return OneOf(tuple(holding))
    match relation:
        case "in":
            return _member(kind, constant, place)
        case "not in":
            found = _member(kind, constant, place)
            return None if found is None else opposite(found)
        case "==" | "is":
            return _equal(kind, "==", constant, place)
        case "!=" | "is not":
            return _equal(kind, "!=", constant, place)
    return _ordered(kind, relation, constant, place)


def contained(kind: HoleKind, constant: object, place: Place) -> Expression | None:
    """`constant in X`."""
    text = text_of(constant)
    if kind.schema is not None:
        return None
    if text is None or (is_number(constant) and not isinstance(constant, Finished)):
        what = f"{described(constant)} cannot be looked for in a text"
        raise BadCondition(what, place)
    return Contains(text)


def text_of(constant: object) -> str | None:
    """The text of a constant, if it has one; a number of an earlier hole has one."""
    if isinstance(constant, Finished) and is_scalar(constant.value):
        return constant.shown
    value = bare(constant)
    return value if isinstance(value, str) else None


def _equal(kind: HoleKind, relation: str, constant: object, place: Place) -> Expression:
    value = bare(constant)
    text = text_of(constant)
    if is_number(value) and kind.name == INT.name:
        return measured(Measure.INT, relation, value, place)
    if is_number(value) and kind.name == FLOAT.name:
        return decimal(relation, constant, place)
    if text is None and is_number(value):
        what = f"the hole is {kind.name} and never {described(value)}"
        raise BadCondition(f"{what}: compare int(X), or write [X: int]", place)
    found: Expression = Constant(False) if text is None else OneOf((text,))
    return found if relation == "==" else opposite(found)


def _ordered(kind: HoleKind, relation: str, constant: object, place: Place) -> Expression | None:
    value = bare(constant)
    if kind.name == INT.name and is_number(value):
        return measured(Measure.INT, relation, constant, place)
    if kind.name == FLOAT.name and is_number(value):
        return decimal(relation, constant, place)
    if isinstance(value, str) and kind.python is str:
        return None
    is_text_with_number = kind.python is str and is_number(value)
    hint = "; compare int(X) or len(X), or write [X: int]" if is_text_with_number else ""
    what = (
        f"the hole is {kind.name}, which `{relation}` does not compare with {described(constant)}"
    )
    raise BadCondition(what + hint, place)


def _member(kind: HoleKind, constant: object, place: Place) -> Expression | None:
    text = text_of(constant)
    if text is not None:
        return _substring_of(text)
    if kind.name == INT.name and isinstance(constant, range):
        return _among(Measure.INT, constant)
    items = _items(constant, place)
    numbers = [item for item in items if is_number(item)]
    if numbers and kind.python is str:
        raise BadCondition(
            f"the hole is text and never one of {described(constant)}: numbers in texts are"
            ' strings, "7", or write [X: int]',
            place,
        )
    parts: list[Expression] = []
    texts = tuple(dict.fromkeys(item for item in items if isinstance(item, str)))
    if texts or not numbers:
        parts.append(OneOf(texts))
    if numbers:
        is_int = kind.name == INT.name
        parts.append(_among(Measure.INT, numbers) if is_int else decimal("in", numbers, place))
    return any_of(parts)


def _items(constant: object, place: Place) -> list[object]:
    value = bare(constant)
    if isinstance(value, Iterator):
        raise BadCondition("an iterator can be read only once; make it a list", place)
    if not isinstance(value, Iterable):
        raise BadCondition(f"nothing is in {described(constant)}", place)
    items = list(value)
    return sorted(items, key=repr) if isinstance(value, set | frozenset) else items


def _substring_of(text: str) -> Expression | None:
    length = len(text)
    if length * (length + 1) * (length + 2) // 6 > _MAX_SUBSTRINGS_LEN:
        return None
    found = (text[start:end] for start in range(length + 1) for end in range(start, length + 1))
    return OneOf(tuple(dict.fromkeys(found)))


def around_substrings(text: str) -> Expression:
    """A superset of the substrings of a text: no longer, and no other characters."""
    chars = "".join(map(re.escape, sorted(set(text))))
    return And((Compare(Measure.CHARS, Relation.LE, len(text)), Matches(f"[{chars}]*")))
