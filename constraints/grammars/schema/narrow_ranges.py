"""Works around open ranges that the engine treats as closed: `exclusiveMinimum: 0, maximum: 0.5`.

It does so where a range excludes a whole number and lies between it and the next whole number that
is farther from zero. There the end is moved to the next number that is included.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.unproductive_definitions import parts

# Digits of a bound that the engine considers; numbers with more may lie between the ends.
_NUM_DIGITS = 15
_ENDS = (
    # the open end, the closed one, the keywords of the other end, the sign of the range
    ("exclusiveMinimum", "minimum", ("maximum", "exclusiveMaximum"), 1),
    ("exclusiveMaximum", "maximum", ("minimum", "exclusiveMinimum"), -1),
)


# The key of a value that is no member of an object, and of a member of any key.
_NO_KEY = ""
_ANY_KEY = "*"
# A part that describes values of more keys counts as one of any key.
_MAX_KEYS = 32


def close_narrow_ranges(root: Json, definitions: dict[str, Json]) -> None:
    """Rewrite such ends of ranges, in place.

    The engine merges what a schema says of one value in several parts. So the other end may be in
    any part that describes a value of the same key.
    """
    schemas = [part for schema in (root, *definitions.values()) for part in parts(schema)]
    if not any(opened in part for opened, *_ in _ENDS for part in schemas):
        return
    keys = _keys(root, definitions)
    for opened, closed, others, sign in _ENDS:
        ends: defaultdict[str, list[float]] = defaultdict(list)
        for part in schemas:
            for name in keys[id(part)]:
                ends[name] += [sign * part[key] for key in others if key in part]
        for part in schemas:
            if opened in part and part.get("type") != "integer":
                end = sign * part[opened]
                names = ends if _ANY_KEY in keys[id(part)] else {*keys[id(part)], _ANY_KEY}
                near = [other for name in names for other in ends[name]]
                if end >= 0 and end == int(end) and _has_between(near, end, end + 1):
                    _close(part, opened, closed, sign)


def _keys(root: Json, definitions: dict[str, Json]) -> defaultdict[int, set[str]]:
    """By the id() of a part, the keys of the values that it describes."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    todo = [(root, _NO_KEY)]
    while todo:
        part, key = todo.pop()
        keys = found[id(part)]
        if len(keys) >= _MAX_KEYS:
            key = _ANY_KEY
        if isinstance(part, dict) and key not in keys:
            keys.add(key)
            todo += _inside(part, key, definitions)
    return found


def _inside(part: Json, key: str, definitions: dict[str, Json]) -> Iterator[tuple[Json, str]]:
    """The schemas in a part, with the keys of the values that they describe."""
    for keyword, value in part.items():
        match keyword:
            case "allOf" | "anyOf" | "oneOf":
                yield from ((each, key) for each in value)
            case "$ref":
                yield definitions[value.rpartition("/")[2]], key
            case "properties":
                yield from ((each, f"/{name}") for name, each in value.items())
            case "patternProperties":
                yield from ((each, _ANY_KEY) for each in value.values())
            case "additionalProperties":
                yield value, _ANY_KEY
            case "prefixItems":
                yield from ((each, _NO_KEY) for each in value)
            case "items":
                yield value, _NO_KEY


def _has_between(ends: Iterable[float], low: float, high: float) -> bool:
    return any(low < end < high for end in ends)


def _close(part: dict[str, Json], opened: str, closed: str, sign: int) -> None:
    end = sign * part.pop(opened)
    places = max(1, _NUM_DIGITS - len(str(int(end))))
    least = sign * (end + 10.0**-places)
    both = (least, part.get(closed, least))
    part[closed] = max(both) if sign > 0 else min(both)
