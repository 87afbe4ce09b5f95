"""Whether two schemas exclude each other, so that `oneOf` equals `anyOf`.

Sound where it says yes. It compares types, values, bounds and, in objects, keys that one of
the two requires: the tag of a tagged union. Of others it asks the engine whether anything is both.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import TypeAlias

from llguidance import LLMatcher

from constraints.engine import Limits, error_of
from constraints.errors import Contradiction
from constraints.schema.grammar import grammar_of, parts
from constraints.schema.reading import Json, equal_key
from constraints.spec import Whitespace

OVERLAPPING = (
    "the options of oneOf are not known to exclude each other; write anyOf, or give each"
    " option a required property with a const of its own"
)
# Pairs of options, by their indices; the first one is the smaller.
Pairs: TypeAlias = frozenset[tuple[int, int]]

_ALL_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_MAX_DEPTH = 5
# The most comparisons for one `oneOf`: nested options multiply.
_MAX_COMPARISONS = 50_000
# The most pairs of a `oneOf` that are compared.
_MAX_OPTIONS = 200
# The most questions to the engine for one `oneOf`; each takes 1 or 2 ms.
_MAX_ASKED = 66
_BOUNDS = {
    "number": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}
_OPEN = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
_OF_STRINGS = ("pattern", "format", "enum", "const", "minLength", "maxLength")


def open_one_ofs(root: Json, definitions: dict[str, Json]) -> list[tuple[dict[str, Json], Pairs]]:
    """Turn each `oneOf` whose options exclude each other into `anyOf`, in place.

    Returns the other schemas, and the pairs of their options that may have values in common.
    """
    others = []
    for schema in [root, *definitions.values()]:
        for part in [each for each in parts(schema) if "oneOf" in each]:
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
    comparing = _Definitions(definitions)
    return frozenset(
        (first, second)
        for (first, one), (second, other) in combinations(enumerate(options), 2)
        if len(options) > _MAX_OPTIONS
        or not (are_disjoint(one, other, comparing) or _is_both_empty(one, other, comparing))
    )


class _Definitions(dict[str, Json]):
    """The definitions, and the numbers of comparisons and of questions to the engine so far."""

    num_comparisons = 0
    num_asked = 0


def are_disjoint(one: Json, other: Json, definitions: _Definitions, depth: int = 0) -> bool:
    """Whether no value satisfies both; False where that is not known."""
    definitions.num_comparisons += 1
    if definitions.num_comparisons > _MAX_COMPARISONS:
        return False
    if one is False or other is False:
        return True
    if one is True or other is True or depth > _MAX_DEPTH:
        return False
    for first, second in ((one, other), (other, one)):
        if any(
            are_disjoint(conjunct, second, definitions, depth + 1)
            for conjunct in conjuncts(first, definitions)
        ):
            return True
        for key in ("anyOf", "oneOf"):
            if key in first and all(
                are_disjoint(option, second, definitions, depth + 1) for option in first[key]
            ):
                return True
    return all(
        _differ_as(name, one, other, definitions, depth) for name in types_of(one) & types_of(other)
    )


def conjuncts(schema: Json, definitions: Mapping[str, Json]) -> list[Json]:
    """The schemas that hold beside a schema's own keywords."""
    referred = [definitions[schema["$ref"].rpartition("/")[2]]] if "$ref" in schema else []
    return [*referred, *schema.get("allOf", ())]


def types_of(schema: Json) -> frozenset[str]:
    """The types that a schema's own keywords allow; an integer is a number."""
    values = values_of(schema)
    if values is not None:
        return frozenset(_type_of(value) for value in values)
    types = schema.get("type", _ALL_TYPES)
    names = {types} if isinstance(types, str) else set(types)
    return frozenset("number" if name == "integer" else name for name in names)


def _type_of(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def values_of(schema: Json) -> list[Json] | None:
    """The values that a schema lists."""
    if "const" in schema:
        return [schema["const"]]
    values: list[Json] | None = schema.get("enum")
    return values


def _differ_as(name: str, one: Json, other: Json, definitions: _Definitions, depth: int) -> bool:
    mine = values_of(one)
    theirs = values_of(other)
    if mine is not None and theirs is not None:
        return not {equal_key(value) for value in mine if _type_of(value) == name} & {
            equal_key(value) for value in theirs if _type_of(value) == name
        }
    if name == "string" and _no_string_is_both(one, other, definitions):
        return True
    if mine is not None or theirs is not None:
        return False
    if name == "object":
        return _differ_in_a_key(one, other, definitions, depth)
    return name in _BOUNDS and any(
        _is_below(first, second, *_BOUNDS[name]) for first, second in ((one, other), (other, one))
    )


def _is_below(one: Json, other: Json, low: str, high: str) -> bool:
    """Whether the upper bound of one is below the lower bound of the other."""
    highest = [(one[high], 0)] if high in one else []
    highest += [(one[_OPEN[high]], -1)] if _OPEN.get(high) in one else []
    lowest = [(other[low], 0)] if low in other else []
    lowest += [(other[_OPEN[low]], 1)] if _OPEN.get(low) in other else []
    return bool(highest and lowest) and min(highest) < max(lowest)


def _differ_in_a_key(one: Json, other: Json, definitions: _Definitions, depth: int) -> bool:
    for first, second in ((one, other), (other, one)):
        for key in first.get("required", ()):
            mine = first.get("properties", {}).get(key, True)
            theirs = second.get("properties", {}).get(key)
            if theirs is None and "patternProperties" not in second:
                theirs = second.get("additionalProperties", True)
            if theirs is not None and are_disjoint(mine, theirs, definitions, depth + 1):
                return True
    return False


def _no_string_is_both(one: Json, other: Json, definitions: _Definitions) -> bool:
    narrowed = [{key: each[key] for key in _OF_STRINGS if key in each} for each in (one, other)]
    if not all(narrowed):
        return False
    return _is_both_empty({"type": "string", **narrowed[0]}, narrowed[1], definitions)


def _is_both_empty(one: Json, other: Json, definitions: _Definitions) -> bool:
    """Whether the engine finds that nothing satisfies both."""
    if definitions.num_asked >= _MAX_ASKED:
        return False
    definitions.num_asked += 1
    grammar = grammar_of({"allOf": [one, other]}, definitions, Whitespace.COMPACT)
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(
        grammar, limits=Limits().for_engine()
    )
    return bool(is_wrong) and isinstance(error_of(messages[0]), Contradiction)
