"""The schema of a tool's arguments, which are an object whatever the tool's own schema says."""

from collections.abc import Mapping
from typing import Any

from constraints.errors import ConstraintError
from constraints.grammars.schema.drafts import draft_of
from constraints.grammars.schema.reading import at
from constraints.grammars.schema.references import References
from router.request.errors import wrong

# Where there is room for it; a pointer may lead to any place of a document.
_PLACE = "arguments"


def arguments_schema(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """What is both an object and of this schema, which stands in the field `place`.

    All pointers into the schema lead where they led before. Raises InvalidRequest for one whose
    `type` is another.
    """
    if schema.get("type", "object") != "object":
        raise wrong(f"{place}.type", "must be `object`", schema["type"])
    given = dict(schema)
    reference = given.get("$ref")
    if isinstance(reference, str) and draft_of(given).ref_is_alone:
        return _referring(given, reference)
    return {"type": "object", **given}


def _referring(schema: dict[str, Any], reference: str) -> dict[str, Any]:
    """A schema of a draft that ignores what stands beside a `$ref`, a `type` too.

    The reference is led through a place of ours, where both hold, and nothing that the draft
    ignores comes into force.
    """
    try:
        if _is_object(schema):
            return schema  # and what is wrong with it is told of the places that its author knows
    except (ConstraintError, RecursionError, TypeError, ValueError):
        return schema  # it leads nowhere, and is refused for that in the words of who compiles it
    place = _PLACE
    while place in schema:
        place += "_"
    both = {"type": "object", "allOf": [{"$ref": reference}]}
    return {**schema, "$ref": f"#/{place}", place: both}


def _is_object(schema: dict[str, Any]) -> bool:
    """Whether what references lead to, one after the other, says that it is an object."""
    references, pointer = References(schema), ""
    seen: set[str] = set()
    while pointer not in seen:
        seen.add(pointer)
        target = at(schema, pointer)
        if not isinstance(target, dict):
            return False
        target = references.draft(pointer).read(target)
        if "$ref" not in target or "type" in target:
            return bool(target.get("type") == "object")
        if not isinstance(target["$ref"], str):
            raise TypeError("a reference is a string")
        pointer = references.resolve(target["$ref"], pointer)
    return False
