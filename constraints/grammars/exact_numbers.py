"""Numbers of JSON as they are written, and what the `jsonschema` package makes of them.

It computes in doubles, where 19.99 is no multiple of 0.01, 1e400 is no number and what is beyond
raises. Here numbers that a Python int or a double might change are decimals, and multiples exact.
"""

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache

import jsonschema

from constraints.grammars.schema.reading import Json

# Longer integers are decimals: Python neither reads nor shows those that are much longer.
_MAX_INT_LEN = 1000
# Digits that are made an integer at a time, which takes the square of their number.
_PIECE_LEN = 1000
# Decimals have exponents of 18 digits.
_MAX_EXPONENT_LEN = 16


class Number(Decimal):
    """Any number with a point or an exponent."""

    def __repr__(self) -> str:
        return str(self).replace("E", "e")


class LongInteger(Number):
    """An integer of very many digits."""


def loads(text: str) -> Json:
    """A JSON value with exact numbers. Raises ValueError and RecursionError."""
    return json.loads(text, parse_float=_number, parse_int=_integer, parse_constant=_no_constant)


def _number(text: str) -> Number:
    digits, _, exponent = text.lower().partition("e")
    if len(exponent) > _MAX_EXPONENT_LEN:
        # So far out that no other number of a schema is beyond it.
        exponent = f"{'-' if exponent[0] == '-' else ''}1{'0' * (_MAX_EXPONENT_LEN - 2)}"
    return Number(f"{digits}e{exponent or 0}")


def _integer(text: str) -> int | LongInteger:
    return int(text) if len(text) <= _MAX_INT_LEN else LongInteger(text)


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


def is_multiple(value: int | Number, step: int | Number) -> bool:
    """Whether `value` is a whole multiple of `step`, which is above 0; exactly.

    In a time that grows with the digits of `value`, not with their square.
    """
    digits, exponent = _parts(value)
    step_digits, step_exponent = _parts(step)
    whole = int(Decimal((0, step_digits, 0)))
    shift = exponent - step_exponent
    if shift >= 0:
        return _rest(digits, whole) * pow(10, shift, whole) % whole == 0
    # Behind the step's last place there may be nothing but zeros.
    is_possible = not any(digits[shift:])
    return is_possible and _rest(digits[:shift], whole) == 0


def _rest(digits: tuple[int, ...], step: int) -> int:
    """What is left of a whole number when it is divided."""
    rest = 0
    for start in range(0, len(digits), _PIECE_LEN):
        piece = digits[start : start + _PIECE_LEN]
        rest = (rest * 10 ** len(piece) + int(Decimal((0, piece, 0)))) % step
    return rest


def _parts(value: int | Number) -> tuple[tuple[int, ...], int]:
    """The digits, and the power of ten that they are multiplied by; the sign does not matter."""
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int), "JSON has no infinity"
    return digits, exponent


@lru_cache(maxsize=32)
def exact(kind: type[jsonschema.Validator]) -> type[jsonschema.Validator]:
    """The same draft of JSON Schema for values that `loads` read."""
    integers = kind.TYPE_CHECKER
    takes_points = integers.is_type(1.0, "integer")

    def is_integer(_: jsonschema.TypeChecker, value: object) -> bool:
        if not isinstance(value, Number):
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
