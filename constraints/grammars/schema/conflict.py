"""Finds the parts of a schema that exclude each other, for error messages.

{"type": "integer", "minimum": 5, "maximum": 3, "title": "n"}
->  {"type": "integer"}, {"minimum": 5}, {"maximum": 3}
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from constraints.grammars.schema.reading import Json, keys_below
from constraints.minimal_unsat_core import minimal_unsat_core

_MAX_SHOWN = 200
# Keywords that belong together, and those that are rewritten as one of them.
_GROUPS = (
    (
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "unevaluatedProperties",
    ),
    ("prefixItems", "items", "additionalItems", "unevaluatedItems"),
    ("pattern", "format"),
)


@dataclass(frozen=True, slots=True)
class _Conjunct:
    """One of the schemas of a conjunction: `schema` as rewritten, `raw` as written."""

    schema: Json
    raw: Json


def conflicting(
    part: Json,
    raw: Json,
    pointer_of: Callable[[Json], str | None],
    pointer: str,
    is_empty: Callable[[Json], bool | None],
) -> tuple[str, ...]:
    """A minimal set of parts that nothing satisfies together, as written.

    part:       an unsatisfiable rewritten schema; it came from `raw` at `pointer`
    pointer_of: the origin of a schema inside of it
    is_empty:   whether some conjuncts exclude each other; None: no further answers
    """
    if not isinstance(part, dict):
        return (_shown(part),)
    conjuncts = _conjuncts(part, part if raw is None else raw, pointer_of, pointer)
    kept = minimal_unsat_core(conjuncts, lambda some: is_empty(_together(some)))
    return tuple(dict.fromkeys(_shown(each.raw) for each in kept))


def _conjuncts(
    part: dict[str, Json], raw: Json, pointer_of: Callable[[Json], str | None], pointer: str
) -> list[_Conjunct]:
    written = raw if isinstance(raw, dict) else {}
    found = []
    done = {"allOf"}
    for key in part:
        if key not in done:
            group = next((each for each in _GROUPS if key in each), (key,))
            done.update(group)
            found.append(_Conjunct(_some(group, part), _some(group, written) or raw))
    for schema in part.get("allOf", ()):
        found.append(_Conjunct(schema, _inner(pointer_of(schema), pointer, raw)))
    return found


def _some(keys: Sequence[str], schema: dict[str, Json]) -> dict[str, Json]:
    return {key: schema[key] for key in keys if key in schema}


def _inner(place: str | None, pointer: str, raw: Json) -> Json:
    """The origin of a member of `allOf`: a member as written, or another keyword."""
    if not isinstance(raw, dict):
        return raw
    if place is None and "$ref" in raw:
        return {"$ref": raw["$ref"]}  # its target became false
    keys = keys_below(pointer, place) if place is not None else ()
    match keys:
        case ("allOf", index) if isinstance(raw.get("allOf"), list):
            return raw["allOf"][int(index)]
        case (keyword, *_) if keyword in raw:
            return {keyword: raw[keyword]}
    return raw


def _together(conjuncts: Sequence[_Conjunct]) -> Json:
    return {"allOf": [each.schema for each in conjuncts]}


def _shown(raw: Json) -> str:
    text = json.dumps(raw, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
