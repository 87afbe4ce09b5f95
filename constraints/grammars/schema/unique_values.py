"""Arrays whose items differ and come from a short list, as pydantic writes a set of an Enum.

   {"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b"]}}
-> {"enum": [[], ["a"], ["b"], ["a", "b"], ["b", "a"]]}
"""

from collections.abc import Callable
from itertools import permutations

from constraints.grammars.schema.reading import Json, equal_key

# Five values have 326 arrays, six 1 957.
_MAX_VALUES = 5
_MAX_REFERENCES = 20
_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    type(None): ("null",),
    list: ("array",),
    dict: ("object",),
}
_ARRAY_KEYWORDS = frozenset(
    ("type", "uniqueItems", "items", "minItems", "maxItems", "additionalItems")
)


def listed(
    schema: dict[str, Json], follow: Callable[[str], Json], is_annotation: Callable[[str], bool]
) -> dict[str, Json] | None:
    """The schema with its arrays listed; None: it is no such schema. `follow` reads a reference."""
    keywords = {key for key in schema if not is_annotation(key)}
    if schema.get("type") != "array" or schema.get("uniqueItems") is not True:
        return None
    if not keywords <= _ARRAY_KEYWORDS:
        return None
    values = _values(schema.get("items"), follow, is_annotation)
    if values is None or len(values) > _MAX_VALUES:
        return None
    shortest = int(schema.get("minItems", 0))
    longest = min(int(schema.get("maxItems", len(values))), len(values))
    arrays = [
        list(items) for size in range(shortest, longest + 1) for items in permutations(values, size)
    ]
    return {"enum": arrays}


def _values(
    items: Json, follow: Callable[[str], Json], is_annotation: Callable[[str], bool]
) -> list[Json] | None:
    """The different values that an item may have; None: they are not listed."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(items, dict):
            return None
        said = {key: value for key, value in items.items() if not is_annotation(key)}
        if set(said) == {"$ref"}:
            items = follow(said["$ref"])
            continue
        if "const" in said:
            said["enum"] = [said.pop("const")]
        if set(said) <= {"enum", "type"} and "enum" in said:
            fits = [value for value in said["enum"] if _is_of(value, said.get("type"))]
            return list({equal_key(value): value for value in fits}.values())
        return None
    return None


def _is_of(value: Json, types: Json) -> bool:
    """Whether a value is of one of the types; None: any."""
    wanted = types if isinstance(types, list) else [types]
    is_whole = isinstance(value, float) and value.is_integer()
    return types is None or bool({*_TYPES[type(value)], *(["integer"] * is_whole)} & {*wanted})
