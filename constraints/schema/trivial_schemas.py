"""Recognises schemas that are obviously satisfiable, and bounds the length of a text.

Nearly every schema that a client sends is a record of plain fields. It is satisfiable and small
without compiling, so its requests need not wait for a worker.

Only known keywords, types and numbers are accepted; anything else needs a full check.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from constraints.spec import ConstraintSpec, Kind

Schema: TypeAlias = Mapping[str, Any]

_MAX_CHARS = 8_000
_MAX_DEPTH = 8
_MAX_REPEATS = 1_000
_MAX_VALUES = 200
_LONGEST_LITERAL = len("false")

# Keywords without effect on texts.
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
_KEYWORDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "string": frozenset({"minLength", "maxLength"}),
        "integer": frozenset(),
        "number": frozenset(),
        "boolean": frozenset(),
        "null": frozenset(),
        "array": frozenset({"items", "minItems", "maxItems"}),
        "object": frozenset({"properties", "required", "additionalProperties"}),
    }
)


def obvious_len(spec: ConstraintSpec) -> int | None:
    """A number of printable ASCII bytes that suffices for some text of the constraint.

    None: unknown. A constraint with an answer compiles without an error, in time linear in its
    length.
    """
    if spec.kind is Kind.TEXT:
        return 0
    if spec.kind is not Kind.JSON_SCHEMA or spec.lenient or spec.any_key_order:
        return None
    if len(spec.text) > _MAX_CHARS:
        return None
    try:
        schema = json.loads(spec.text, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError):
        return None
    return _len(schema, 0)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _len(schema: object, depth: int) -> int | None:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    said = schema.keys() - _NOTES
    if "enum" in said or "const" in said:
        return _len_of_values(schema, said)
    kind = schema.get("type")
    if not said:
        return _LONGEST_LITERAL
    if not isinstance(kind, str) or kind not in _KEYWORDS or not said - {"type"} <= _KEYWORDS[kind]:
        return None
    match kind:
        case "string":
            fewest = _fewest(schema, "minLength", "maxLength")
            return None if fewest is None else fewest + len('""')
        case "array":
            return _len_of_array(schema, depth)
        case "object":
            return _len_of_object(schema, depth)
        case _:
            return _LONGEST_LITERAL


def _len_of_values(schema: Schema, said: set[str]) -> int | None:
    if said not in ({"enum"}, {"const"}, {"enum", "type"}, {"const", "type"}):
        return None
    values = schema["enum"] if "enum" in said else [schema["const"]]
    if not isinstance(values, list) or not 1 <= len(values) <= _MAX_VALUES:
        return None
    if not all(isinstance(value, str) and _is_plain(value) for value in values):
        return None
    if "type" in said and schema["type"] != "string":
        return None
    return max(len(json.dumps(value)) for value in values)


def _len_of_array(schema: Schema, depth: int) -> int | None:
    fewest = _fewest(schema, "minItems", "maxItems")
    each = _len(schema.get("items", {}), depth + 1)
    if fewest is None or each is None:
        return None
    return len("[]") + fewest * (each + len(", "))


def _len_of_object(schema: Schema, depth: int) -> int | None:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    if not isinstance(schema.get("additionalProperties", True), bool):
        return None
    if not all(isinstance(name, str) for name in required) or len(properties) > _MAX_VALUES:
        return None
    if len(set(required)) < len(required) or not set(required) <= properties.keys():
        return None
    total = len("{}")
    for name, value in properties.items():
        each = _len(value, depth + 1)
        if each is None or not _is_plain(name):
            return None
        if name in required:
            total += len(json.dumps(name)) + len(": ") + each + len(", ")
    return total


def _fewest(schema: Schema, min_key: str, max_key: str) -> int | None:
    """The minimum count; None if the bounds are no plain numbers, or contradict each other."""
    fewest = schema.get(min_key, 0)
    largest = schema.get(max_key, _MAX_REPEATS)
    # A bool is an int to Python and none to JSON.
    if type(fewest) is not int or type(largest) is not int:
        return None
    return fewest if 0 <= fewest <= largest <= _MAX_REPEATS else None


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
