"""Keywords of types, values, numbers and strings."""

from collections.abc import Iterator
from math import lcm

from constraints.errors import Malformed, NotEnforced
from constraints.regex.look_around import conjuncts
from constraints.regex.writing import between
from constraints.schema import formats
from constraints.schema.reading import TYPES, Json, shown
from constraints.schema.rewriting import Handler, Place

# Whole numbers that a double holds exactly reach to here; the engine counts in doubles.
_EXACT = 2**53
# It counts characters in 32 bits.
_MOST_COUNTED = 2**31
_SMALLEST = 1e-9
_LARGEST = 1e15
_INEXACT = "{} is beyond the numbers that are held exactly"


def _type(place: Place, value: Json, pointer: str) -> None:
    place.out["type"] = value


def _count(place: Place, value: Json, pointer: str) -> None:
    if value > _MOST_COUNTED:
        place.rewriter.refuse(pointer, f"must be at most {_MOST_COUNTED}. Given: {shown(value)}")
    else:
        place.out[pointer.rpartition("/")[2]] = int(value)


def _values(place: Place, value: Json, pointer: str) -> None:
    keyword = pointer.rpartition("/")[2]
    for leaf in _leaves(value):
        if isinstance(leaf, str):
            place.rewriter.string(leaf, pointer)
        elif not _is_exact(leaf):
            place.rewriter.refuse(pointer, _INEXACT.format(leaf))
    if keyword == "enum" and not value:
        place.also.append(False)
    else:
        place.out[keyword] = value


def _leaves(value: Json) -> Iterator[Json]:
    """The scalars and keys inside of a value."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _is_exact(value: Json) -> bool:
    if isinstance(value, float):
        return value == 0 or _SMALLEST <= abs(value) <= _LARGEST
    return not isinstance(value, int) or abs(value) <= _EXACT


def _bound(place: Place, value: Json, pointer: str) -> None:
    keyword = pointer.rpartition("/")[2]
    is_low = keyword.endswith("inimum")
    is_tiny = bool(value) and abs(value) < _SMALLEST
    if is_tiny or (abs(value) > _EXACT and (value < 0) != is_low):
        place.rewriter.refuse(pointer, _INEXACT.format(value))
    else:
        # The bounds of machine words, and larger ones, are reduced to exact numbers.
        place.out[keyword] = max(-_EXACT, min(value, _EXACT))


def _multiple_of(place: Place, value: Json, pointer: str) -> None:
    # The engine multiplies combined steps in 32 bits.
    digits = repr(value).removesuffix(".0")
    if "e" in digits or len(digits.replace(".", "").strip("0")) > 4 or len(digits) > 9:
        place.rewriter.refuse(pointer, f"a step of {value} has too many digits to be enforced")
        return
    # The engine wants all decimals of the step, and takes no negative number in bounds whose last
    # one is 0: so a multiple of 0.25 may be one of 0.5 as well.
    steps = [value, *_coarser(digits)]
    if len(steps) == 1:
        place.out["multipleOf"] = value
        return
    place.also.append({"anyOf": [_typed(place, {"multipleOf": each}) for each in steps]})


def _coarser(step: str) -> list[float]:
    """The steps of those multiples that have fewer decimals, where the engine cannot tell them."""
    num_decimals = len(step.partition(".")[2])
    digits = int(step.replace(".", ""))
    if 10 % digits == 0:
        return []
    return [lcm(digits, 10**more) / 10**num_decimals for more in range(1, num_decimals)]


def _typed(place: Place, said: dict[str, Json]) -> Json:
    """A further schema of the values that a schema is about."""
    return said | ({"type": place.schema["type"]} if "type" in place.schema else {})


def _pattern(place: Place, value: Json, pointer: str) -> None:
    for piece in conjuncts(value):
        translated = engine_pattern(place, piece, pointer)
        if translated is not None:
            _add_pattern(place, translated)


def _add_pattern(place: Place, pattern: str) -> None:
    if "pattern" in place.out:
        place.also.append(_typed(place, {"pattern": pattern}))
    else:
        place.out["pattern"] = pattern


def engine_pattern(place: Place, pattern: str, pointer: str) -> str | None:
    """The rewritten form of a pattern; None if it was refused."""
    try:
        return place.rewriter.translated(pattern)
    except NotEnforced as error:
        place.rewriter.refuse(pointer, str(error))
    except Malformed as error:
        raise Malformed(f"{pointer}: {error}", pointer=pointer) from None
    return None


def _format(place: Place, value: Json, pointer: str) -> None:
    if value in formats.MAX_LEN:
        place.also.append(_typed(place, {"maxLength": formats.MAX_LEN[value]}))
    if value in formats.PATTERNS:
        _add_pattern(place, f"^(?:{formats.PATTERNS[value]})$")
    elif value in formats.BY_ENGINE:
        place.out["format"] = value
    elif value in formats.RANGES:
        _integer_format(place, value, pointer)
    elif value not in formats.ANNOTATIONS and "pattern" not in place.schema:
        # Generators write a format of their own beside its pattern.
        place.rewriter.note(pointer)


def _integer_format(place: Place, value: Json, pointer: str) -> None:
    """A format that is a range of integers: of numbers, and of strings of digits."""
    types = place.schema.get("type", TYPES)
    names = [types] if isinstance(types, str) else types
    low, high = formats.RANGES[value]
    plain = dict.fromkeys("integer" if name == "number" else name for name in names)
    in_range: Json = {"minimum": low, "maximum": high}
    options: list[Json] = [{"type": [name for name in plain if name != "string"], **in_range}]
    if "string" in plain:
        digits = rf"^(?:{between(0, high)}{f'|-{between(1, -low)}' if low else ''})$"
        options.append({"type": "string", "pattern": digits})
    options = [option for option in options if option["type"]]
    place.more(options[0] if len(options) == 1 else {"anyOf": options}, pointer)


HANDLERS: dict[str, Handler] = {
    "type": _type,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("const", "enum"), _values),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _bound),
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "format": _format,
}
