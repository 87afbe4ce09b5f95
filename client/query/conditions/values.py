"""Finished holes for conditions: their values and texts, compared as Python does.

A hole is compared by its text with a text, and by its value with anything else. Numbers are
compared as written, so 0.1 is exactly a tenth.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

from client.query.errors import BadCondition, Place
from constraints.where import evaluate as judge

# The values of holes by name; or Finished, with more data.
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished hole.

    value:      the value of its variable
    text:       its text in the prompt; lengths of a number are those of its text
    num_tokens: without the end token and with a dropped stop phrase; None: unknown
    has_tokens: False if the number will never be known: for nested queries, and for values that are
                not scored yet
    """

    value: object
    text: str
    num_tokens: int | None = None
    has_tokens: bool = True

    @property
    def shown(self) -> str:
        """The text for conditions: the value if that is a text."""
        return self.value if isinstance(self.value, str) else self.text


def finished(value: object) -> Finished:
    """A plain value as a finished hole; its text is that of a prompt."""
    if isinstance(value, Finished):
        return value
    return Finished(value, value if isinstance(value, str) else str(value))


def bare(value: object) -> object:
    """The value of a finished hole, anything else unchanged."""
    return value.value if isinstance(value, Finished) else value


def is_number(value: object) -> bool:
    """Whether it is a number for Python; truth values are."""
    return isinstance(value, int | float | Decimal | Fraction)


def is_scalar(value: object) -> bool:
    """Whether conditions may refer to the text of a hole with this value."""
    return value is None or isinstance(value, str) or is_number(value)


def integer(text: str) -> int | None:
    """The whole number that a text represents, of any length; None: it is none."""
    return None if judge.integer(text) is None else int(Decimal(text))


def exact_number(number: object) -> Decimal:
    """The exact value of a number as written: 0.1 is a tenth. For a hole, that of its text."""
    if isinstance(number, Finished):
        is_written = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", number.text) is not None
        number = Decimal(number.text) if is_written else number.value
    if isinstance(number, Fraction):
        return Decimal(number.numerator) / Decimal(number.denominator)
    if isinstance(number, int):
        return Decimal(number)
    return number if isinstance(number, Decimal) else Decimal(str(number))


RELATIONS: dict[str, Callable[[Any, Any], object]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


class Missing(Enum):
    """Placeholders for missing values."""

    UNKNOWN = "a hole that is not finished"
    NO_NUMBER = "a number of a text that is none"


@dataclass(frozen=True, slots=True)
class TextParts:
    """The value of `words(X)`; `count` None: unknown. `shown`: its source text."""

    operator: str
    shown: str
    count: int | None
    items: tuple[str, ...] = ()

    def listed(self, place: Place) -> tuple[str, ...]:
        """The parts. Raises BadCondition for tokens, whose texts are not available."""
        if self.operator == "tokens":
            raise uncounted_parts(self.shown, place)
        return self.items


def uncounted_parts(shown: str, place: Place) -> BadCondition:
    """The error for parts that are compared or calculated with, uncounted."""
    return BadCondition(f"{shown} can only be counted: write len({shown})", place)


def compared(left: object, relation: str, right: object, place: Place) -> bool | None:
    """Whether `left relation right`, for operands other than TextParts; None: unknown."""
    if left is Missing.UNKNOWN or right is Missing.UNKNOWN:
        return None
    if left is Missing.NO_NUMBER or right is Missing.NO_NUMBER:
        return False
    match relation:
        case "in":
            return _contained(left, right, place)
        case "not in":
            return not _contained(left, right, place)
        case "is":
            return _is(left, right)
        case "is not":
            return not _is(left, right)
    if relation not in RELATIONS:
        raise BadCondition(f"`{relation}` compares nothing", place)
    return _related(left, relation, right, place)


def _related(left: object, relation: str, right: object, place: Place) -> bool:
    if is_number(bare(left)) and is_number(bare(right)):
        return _numbers_related(left, relation, right)
    left, right = _side(left, right), _side(right, left)
    if relation in ("==", "!="):
        _check_comparable(left, right, place)
    try:
        return bool(RELATIONS[relation](left, right))
    except TypeError as error:
        what = f"{described(left)} and {described(right)} cannot be compared by `{relation}`"
        raise BadCondition(what, place) from error


def _numbers_related(left: object, relation: str, right: object) -> bool:
    """Compared as written if one is a decimal, so 0.1 is exactly a tenth."""
    if all(isinstance(bare(side), int) for side in (left, right)):
        return bool(RELATIONS[relation](bare(left), bare(right)))
    exact = exact_number(left), exact_number(right)
    if any(number.is_nan() for number in exact):
        return relation == "!="
    return bool(RELATIONS[relation](*exact))


def _check_comparable(left: object, right: object, place: Place) -> None:
    """Refuse a number and a text, which are never equal."""
    sides = (left, right)
    if any(isinstance(side, str) for side in sides) and any(map(is_number, sides)):
        what = f"{described(left)} never equals {described(right)}: one is text"
        raise BadCondition(f"{what}; compare int(X), or write [X: int]", place)


def _side(this: object, other: object) -> object:
    """A hole's text if it is compared with a text, else its value."""
    if not isinstance(this, Finished):
        return this
    is_with_text = isinstance(bare(other), str)
    return this.shown if is_with_text and is_scalar(this.value) else this.value


def _is(left: object, right: object) -> bool:
    left = bare(left)
    right = bare(right)
    is_plain = isinstance(left, int | float | str) and type(left) is type(right)
    return left is right or (is_plain and left == right)


def _contained(left: object, right: object, place: Place) -> bool:
    if isinstance(right, Finished):
        right = right.shown if is_scalar(right.value) else right.value
    if isinstance(right, Iterator):
        raise BadCondition("an iterator can be read only once; make it a list", place)
    if isinstance(right, str):
        left = _side(left, right)
    elif isinstance(left, Finished):
        if _is_text_among(left, right):
            return True
        left = left.value
    if is_number(left) and isinstance(right, range):
        return _is_in_range(left, right)
    if is_number(left) and isinstance(right, Iterable):
        return any(is_number(one) and _numbers_related(left, "==", one) for one in right)
    try:
        return left in right  # type: ignore[operator]
    except TypeError as error:
        what = f"{described(left)} cannot be looked for in {described(right)}"
        raise BadCondition(what, place) from error


def _is_in_range(number: object, among: range) -> bool:
    """Decided without iterating over the range, which may be large."""
    if isinstance(number, int):
        return number in among
    exact = exact_number(number)
    return exact.is_finite() and exact == exact.to_integral_value() and int(exact) in among


def _is_text_among(hole: Finished, among: object) -> bool:
    """Whether the hole's text is in the collection; its value may be in it, too."""
    if not is_scalar(hole.value) or not isinstance(among, Iterable) or isinstance(among, range):
        return False
    return any(isinstance(one, str) for one in among) and hole.shown in among


def described(value: object) -> str:
    value = bare(value)
    shown = repr(value)
    return f"{shown[:40]}…" if len(shown) > 40 else shown
