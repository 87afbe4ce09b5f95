"""Exact numbers of JSON, for validation by the `jsonschema` package.

The package computes in doubles: 19.99 is no multiple of 0.01, 1e400 is no number, and larger ones
raise. Here numbers that an int or a double might change are decimals, and multiples are exact.
"""

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache

import jsonschema

from constraints.grammars.schema.reading import Json

# Longer integers are decimals: Python does not parse or print much longer ones.
_MAX_INT_LEN = 1000
# Digits that are converted at once; conversion takes quadratic time.
_PIECE_LEN = 1000
# Exponents of decimals have at most 18 digits.
_MAX_EXPONENT_LEN = 16
# Of a number that is written without exponent.
_MAX_PLACES = 1000


class ExactNumber(Decimal):
    """Any number with a point or an exponent."""

    def __repr__(self) -> str:
        return str(self).replace("E", "e")


class LongInteger(ExactNumber):
    """An integer with too many digits for int."""


def loads(text: str) -> Json:
    """A JSON value with exact numbers. Raises ValueError and RecursionError."""
    return json.loads(text, parse_float=_number, parse_int=_integer, parse_constant=_no_constant)


def _number(text: str) -> ExactNumber:
    digits, _, exponent = text.lower().partition("e")
    if len(exponent) > _MAX_EXPONENT_LEN:
        # Larger than every other number of a schema.
        exponent = f"{'-' if exponent[0] == '-' else ''}1{'0' * (_MAX_EXPONENT_LEN - 2)}"
    return ExactNumber(f"{digits}e{exponent or 0}")


def _integer(text: str) -> int | LongInteger:
    return int(text) if len(text) <= _MAX_INT_LEN else LongInteger(text)


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


def without_exponent(value: Decimal) -> str:
    """The shortest text of the number without an exponent; empty where that has too many zeros."""
    if abs(value.adjusted()) > _MAX_PLACES:
        return ""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return text if value else "0"


def is_multiple(value: int | ExactNumber, step: int | ExactNumber) -> bool:
    """Whether `value` is exactly a multiple of `step`, which is positive.

    Takes time linear in the digits of `value`.
    """
    digits, exponent = _parts(value)
    step_digits, step_exponent = _parts(step)
    whole = int(Decimal((0, step_digits, 0)))
    shift = exponent - step_exponent
    if shift >= 0:
        return _rest(digits, whole) * pow(10, shift, whole) % whole == 0
    # All digits behind the last place of the step must be zeros.
    is_possible = not any(digits[shift:])
    return is_possible and _rest(digits[:shift], whole) == 0


def _rest(digits: tuple[int, ...], step: int) -> int:
    """The remainder of a division."""
    rest = 0
    for start in range(0, len(digits), _PIECE_LEN):
        piece = digits[start : start + _PIECE_LEN]
        rest = (rest * 10 ** len(piece) + int(Decimal((0, piece, 0)))) % step
    return rest


def _parts(value: int | ExactNumber) -> tuple[tuple[int, ...], int]:
    """The digits and their exponent of ten; the sign is ignored."""
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int), "JSON has no infinity"
    return digits, exponent


@lru_cache(maxsize=32)
def exact(kind: type[jsonschema.Validator]) -> type[jsonschema.Validator]:
    """The validator of the same draft for values from `loads`."""
    integers = kind.TYPE_CHECKER
    takes_points = integers.is_type(1.0, "integer")

    def is_integer(_: jsonschema.TypeChecker, value: object) -> bool:
        if not isinstance(value, ExactNumber):
            return integers.is_type(value, "integer")
        is_whole = takes_points and value == value.to_integral_value()
        return isinstance(value, LongInteger) or is_whole

    multiples = dict.fromkeys({"multipleOf", "divisibleBy"} & kind.VALIDATORS.keys(), _multiple_of)
    extend: Callable[..., type[jsonschema.Validator]] = jsonschema.validators.extend
    return extend(kind, validators=multiples, type_checker=integers.redefine("integer", is_integer))


def _multiple_of(
    validator: jsonschema.Validator, step: Json, instance: Json, schema: Json
) -> Iterator[jsonschema.ValidationError]:
    if not validator.is_type(instance, "number"):
        return
    if not step > 0:
        raise ValueError("no number is a multiple of it")
    if not is_multiple(instance, step):
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {step!r}")
