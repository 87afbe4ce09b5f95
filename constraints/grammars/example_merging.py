"""Merges two schemas without choices into one that requires both, for small instances."""

from collections.abc import Callable
from itertools import chain

from constraints.grammars.schema.reading import Json, equal_key

# Keywords that are merged together.
_OBJECT = ("properties", "patternProperties", "additionalProperties")
_ARRAY = ("prefixItems", "items")


def merged(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json] | None:
    """The conjunction. None: nothing satisfies both, as far as a quick check shows."""
    if not one:
        return dict(other)
    both = {**one, **other}
    for key, join in _JOINS.items():
        if key in one and key in other:
            both[key] = join(one[key], other[key])
    if "const" in one or "const" in other or ("enum" in one and "enum" in other):
        both.pop("const", None)
        both["enum"] = _common_values(one, other)
    if any(key in one for key in _OBJECT) and any(key in other for key in _OBJECT):
        both.update(_both_objects(one, other))
    if any(key in one for key in _ARRAY) and any(key in other for key in _ARRAY):
        both.update(_both_arrays(one, other))
    return None if _is_empty(both) else both


def both_schemas(one: Json, other: Json) -> Json:
    """The conjunction of two schemas, with or without choices."""
    if one is True or other is False or one is other:
        return other
    if other is True or one is False:
        return one
    return {"allOf": [one, other]}


def _is_empty(schema: dict[str, Json]) -> bool:
    if schema.get("type") == [] or schema.get("enum") == []:
        return True
    properties = schema.get("properties", {})
    return schema.get("type") == "object" and any(
        properties.get(name) is False for name in schema.get("required", ())
    )


def _common_values(one: dict[str, Json], other: dict[str, Json]) -> list[Json]:
    lists: list[list[Json]] = [
        [each["const"]] if "const" in each else each["enum"]
        for each in (one, other)
        if each.keys() & {"const", "enum"}
    ]
    if len(lists) == 1:
        return lists[0]
    ours, theirs = lists
    known = set(map(equal_key, theirs))
    return [value for value in ours if equal_key(value) in known]


def _both_objects(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    names = dict.fromkeys(chain(one.get("properties", ()), other.get("properties", ())))
    patterns = dict(one.get("patternProperties", {}))
    for pattern, inner in other.get("patternProperties", {}).items():
        patterns[pattern] = both_schemas(patterns.get(pattern, True), inner)
    made: dict[str, Json] = {
        "properties": {name: both_schemas(_at(one, name), _at(other, name)) for name in names},
        "additionalProperties": both_schemas(
            one.get("additionalProperties", True), other.get("additionalProperties", True)
        ),
    }
    return made | ({"patternProperties": patterns} if patterns else {})


def _at(schema: dict[str, Json], name: str) -> Json:
    """The schema of a property; `true` where patterns decide."""
    rest = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    return schema.get("properties", {}).get(name, rest)


def _both_arrays(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    firsts = one.get("prefixItems", [])
    others = other.get("prefixItems", [])
    rest = one.get("items", True)
    rest_of_other = other.get("items", True)
    count = max(len(firsts), len(others))
    return {
        "prefixItems": [
            both_schemas(
                firsts[index] if index < len(firsts) else rest,
                others[index] if index < len(others) else rest_of_other,
            )
            for index in range(count)
        ],
        "items": both_schemas(rest, rest_of_other),
    }


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _common_types(one: Json, other: Json) -> Json:
    """The common types; an integer is a number, too."""
    ours, theirs = (
        [*kinds, "integer"] if "number" in kinds and "integer" not in kinds else kinds
        for kinds in map(_listed, (one, other))
    )
    common = [kind for kind in ours if kind in theirs]
    return common[0] if len(common) == 1 else common


def _both_lists(one: Json, other: Json) -> Json:
    """The items of both; a value that is no list counts as one item."""
    return list(dict.fromkeys((*_listed(one), *_listed(other))))


_JOINS: dict[str, Callable[[Json, Json], Json]] = {
    "type": _common_types,
    **dict.fromkeys(("pattern", "format", "required", "multipleOf"), _both_lists),
    **dict.fromkeys(("minimum", "exclusiveMinimum"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum"), min),
    **dict.fromkeys(("minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), min),
}
