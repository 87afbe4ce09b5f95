"""The shortest number within bounds that is a multiple of all steps: 0.1 between 0 and 1."""

import math
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import reduce

from constraints.grammars.schema.reading import Json

# The most decimal places that are tried, and multiples of a step.
_MAX_PLACES = 20
_MAX_MULTIPLES = 12
# The comparison with each bound.
_WITHIN: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}


def example_number(schema: Mapping[str, Json], *, is_whole: bool) -> str | None:
    """A whole number, or one with few decimal places; the nearest to zero.

    None: there is none. `multipleOf` may be a list of steps that must all divide it.
    """
    steps = _steps(schema)
    found = _nearest_to_zero(schema, reduce(_common_multiple, steps, Fraction(1)))
    if found is not None:
        return _written(found, 0)
    if is_whole:
        return None
    if steps:
        return _multiple(schema, reduce(_common_multiple, steps))
    for places in range(1, _MAX_PLACES):
        found = _nearest_to_zero(schema, Fraction(1, 10**places))
        if found is not None:
            return _written(found, places)
    return None


def _multiple(schema: Mapping[str, Json], step: Fraction) -> str | None:
    """A multiple with as many decimal places as the step, as the engine expects.

    It misreads some that end in 0, beside bounds.
    """
    first = _nearest_to_zero(schema, step)
    if first is None:
        return None
    places = next((each for each in range(_MAX_PLACES) if (step * 10**each).denominator == 1), 0)
    away = step if first > 0 else -step
    near = [first + index * away for index in range(_MAX_MULTIPLES)]
    texts = [_written(each, places) for each in near if _is_in_range(each, schema)]
    is_single = "minimum" in schema and schema["minimum"] == schema.get("maximum")
    padded = texts[0].rstrip("0") if is_single else texts[0]
    return next((text for text in texts if not text.endswith("0")), padded)


def is_in_bounds(value: Json, schema: Mapping[str, Json]) -> bool:
    """Whether a number satisfies the bounds and steps."""
    exact = exactly(value)
    return _is_in_range(exact, schema) and all(exact % step == 0 for step in _steps(schema))


def _is_in_range(value: Fraction, schema: Mapping[str, Json]) -> bool:
    bounds = {key: exactly(schema[key]) for key in _WITHIN if key in schema}
    return all(_WITHIN[key](value, bound) for key, bound in bounds.items())


def _steps(schema: Mapping[str, Json]) -> list[Fraction]:
    steps = schema.get("multipleOf", [])
    return [exactly(each) for each in (steps if isinstance(steps, list) else [steps])]


def exactly(value: Json) -> Fraction:
    """The exact value of a number as written."""
    return Fraction(repr(value))


def written_number(value: float) -> str:
    """All digits of a number, without an exponent or a needless point."""
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


def _common_multiple(one: Fraction, other: Fraction) -> Fraction:
    return Fraction(
        math.lcm(one.numerator, other.numerator), math.gcd(one.denominator, other.denominator)
    )


def _nearest_to_zero(schema: Mapping[str, Json], step: Fraction) -> Fraction | None:
    firsts = []
    lasts = []
    if "minimum" in schema:
        firsts.append(math.ceil(exactly(schema["minimum"]) / step))
    if "exclusiveMinimum" in schema:
        firsts.append(math.floor(exactly(schema["exclusiveMinimum"]) / step) + 1)
    if "maximum" in schema:
        lasts.append(math.floor(exactly(schema["maximum"]) / step))
    if "exclusiveMaximum" in schema:
        lasts.append(math.ceil(exactly(schema["exclusiveMaximum"]) / step) - 1)
    first = max(firsts, default=None)
    last = min(lasts, default=None)
    if first is not None and last is not None and first > last:
        return None
    if first is not None and first > 0:
        return first * step
    return last * step if last is not None and last < 0 else Fraction(0)


def _written(value: Fraction, places: int) -> str:
    digits = str(abs(int(value * 10**places))).zfill(places + 1)
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[: len(digits) - places]}" + (f".{digits[-places:]}" if places else "")
