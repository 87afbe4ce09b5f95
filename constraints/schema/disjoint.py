"""Whether two schemas exclude each other, so that `oneOf` equals `anyOf`.

Sound where it says yes. It compares types and, in objects, the values of keys that one of the two
requires: the tag of a tagged union. Of others it asks the engine whether anything is both.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from constraints.errors import Contradiction
from constraints.schema.grammar import all_parts, refusal_of
from constraints.schema.reading import Json, hashable

OVERLAPPING = (
    "the options of oneOf are not known to exclude each other; write anyOf, or give each"
    " option a required property with a const of its own"
)
# Pairs of options, by their indices; the first one is the smaller.
Pairs: TypeAlias = frozenset[tuple[int, int]]

_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_ALL_TYPES = frozenset(_TYPES.values())
_MAX_DEPTH = 5
# The most options of a `oneOf` that are compared.
_MAX_OPTIONS = 200
# The most questions to the engine for one `oneOf`; each takes 1 or 2 ms.
_MAX_ASKED = 66


def open_one_ofs(root: Json, definitions: dict[str, Json]) -> list[tuple[dict[str, Json], Pairs]]:
    """Turn each `oneOf` whose options exclude each other into `anyOf`, in place.

    Returns the other schemas, and the pairs of their options that may have values in common.
    """
    others = []
    for part in [each for each in all_parts(root, definitions) if "oneOf" in each]:
        pairs = _overlaps(part["oneOf"], definitions)
        if pairs:
            others.append((part, pairs))
        else:
            _rename_one_of(part)
    return others


def _rename_one_of(part: dict[str, Json]) -> None:
    if "anyOf" in part:
        part.setdefault("allOf", []).append({"anyOf": part.pop("oneOf")})
        return
    # At the same position: the engine orders keys by their first occurrence.
    renamed = {"anyOf" if key == "oneOf" else key: value for key, value in part.items()}
    part.clear()
    part.update(renamed)


def _overlaps(options: list[Json], definitions: dict[str, Json]) -> Pairs:
    """The pairs that are not known to exclude each other, by their indices."""
    pairs = list(combinations(range(len(options)), 2))
    if len(options) > _MAX_OPTIONS:
        return frozenset(pairs)
    said = [_said(option, definitions) for option in options]
    unlike = [(one, other) for one, other in pairs if not said[one].excludes(said[other])]
    return frozenset(
        (one, other)
        for index, (one, other) in enumerate(unlike)
        if index >= _MAX_ASKED
        or not isinstance(
            refusal_of({"allOf": [options[one], options[other]]}, definitions), Contradiction
        )
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What a schema says for certain, as far as it is read here.

    types:    that its values may have
    required: keys of objects
    values:   by the key of an object, what it may be there
    """

    types: frozenset[str]
    required: frozenset[str]
    values: Mapping[str, frozenset[Hashable]]

    def excludes(self, other: "_Said") -> bool:
        """Whether no value satisfies both: by type, or by a tag of objects."""
        types = self.types & other.types
        shared = self.values.keys() & other.values.keys() & (self.required | other.required)
        return not types or (
            types == {"object"}
            and any(self.values[key].isdisjoint(other.values[key]) for key in shared)
        )


def _said(schema: Json, definitions: Mapping[str, Json]) -> _Said:
    types = _ALL_TYPES if schema is not False else frozenset()
    required: frozenset[str] = frozenset()
    values: dict[str, frozenset[Hashable]] = {}
    for part in _all_conjuncts(schema, definitions, 0):
        types &= types_of(part)
        required |= {*part.get("required", ())}
        for key, inner in part.get("properties", {}).items():
            for listed in map(values_of, _all_conjuncts(inner, definitions, 0)):
                if listed is not None:
                    values[key] = frozenset(map(hashable, listed))
    return _Said(types, required, values)


def _all_conjuncts(
    schema: Json, definitions: Mapping[str, Json], depth: int
) -> Iterator[dict[str, Json]]:
    """The schema and those that hold beside it, also behind references."""
    if isinstance(schema, dict) and depth <= _MAX_DEPTH:
        yield schema
        for each in conjuncts(schema, definitions):
            yield from _all_conjuncts(each, definitions, depth + 1)


def conjuncts(schema: Json, definitions: Mapping[str, Json]) -> list[Json]:
    """The schemas that hold beside a schema's own keywords."""
    referred = [definitions[schema["$ref"].rpartition("/")[2]]] if "$ref" in schema else []
    return [*referred, *schema.get("allOf", ())]


def types_of(schema: Json) -> frozenset[str]:
    """The types that a schema's own keywords allow; an integer is a number."""
    values = values_of(schema)
    if values is not None:
        return frozenset(_TYPES[type(value)] for value in values)
    types = schema.get("type", _ALL_TYPES)
    names = {types} if isinstance(types, str) else set(types)
    return frozenset("number" if name == "integer" else name for name in names)


def values_of(schema: Json) -> list[Json] | None:
    """The values that a schema lists."""
    if "const" in schema:
        return [schema["const"]]
    values: list[Json] | None = schema.get("enum")
    return values
