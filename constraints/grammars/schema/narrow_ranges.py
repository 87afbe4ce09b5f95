"""Works around open ranges that the engine treats as closed: `exclusiveMinimum: 0, maximum: 0.5`.

It does so where a range excludes a whole number and lies between it and the next whole number that
is farther from zero. There the end is moved to the next number that is included.
"""

from collections.abc import Iterable

from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.unproductive_definitions import parts

# Digits of a bound that the engine considers; numbers with more may lie between the ends.
_NUM_DIGITS = 15
_ENDS = (
    # the open end, the closed one, the keywords of the other end, the sign of the range
    ("exclusiveMinimum", "minimum", ("maximum", "exclusiveMaximum"), 1),
    ("exclusiveMaximum", "maximum", ("minimum", "exclusiveMinimum"), -1),
)


def close_narrow_ranges(root: Json, definitions: dict[str, Json]) -> None:
    """Rewrite such ends of ranges, in place.

    The other end may be anywhere in the schema: the engine merges its parts.
    """
    schemas = [part for schema in (root, *definitions.values()) for part in parts(schema)]
    for opened, closed, others, sign in _ENDS:
        ends = {sign * part[key] for part in schemas for key in others if key in part}
        for part in schemas:
            if opened in part and part.get("type") != "integer":
                end = sign * part[opened]
                if end >= 0 and end == int(end) and _has_between(ends, end, end + 1):
                    _close(part, opened, closed, sign)


def _has_between(ends: Iterable[float], low: float, high: float) -> bool:
    return any(low < end < high for end in ends)


def _close(part: dict[str, Json], opened: str, closed: str, sign: int) -> None:
    end = sign * part.pop(opened)
    places = max(1, _NUM_DIGITS - len(str(int(end))))
    least = sign * (end + 10.0**-places)
    both = (least, part.get(closed, least))
    part[closed] = max(both) if sign > 0 else min(both)
