"""Keywords of objects and arrays."""

from constraints.errors import TooComplex
from constraints.grammars.schema import keys
from constraints.grammars.schema.keys import pattern_properties
from constraints.grammars.schema.place import Handler, Place
from constraints.grammars.schema.reading import Json

# Keywords by which it can depend on the instance what is evaluated; below `not` nothing is.
_CONDITIONS = frozenset(
    ("anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "$dynamicRef", "contains")
)
_INSTANCE_DECIDES = "what is evaluated depends on the instance; not enforced"
# The engine takes quadratic time, half a second for so many.
_MAX_PROPERTIES = 2000


def _properties(place: Place, value: Json, pointer: str) -> None:
    if len(value) > _MAX_PROPERTIES:
        raise TooComplex(f"{pointer}: more than {_MAX_PROPERTIES} properties of one object")
    place.rewriter.string(list(value), pointer)
    ordering = place.schema.get("propertyOrdering", ())
    in_order = {name: value[name] for name in (*ordering, *value) if name in value}
    rewritten = place.map(in_order, pointer)
    # `propertyNames` and `unevaluatedProperties` may have been handled before.
    already = place.out.get("properties", {})
    place.out["properties"] = rewritten | {
        name: inner for name, inner in already.items() if name not in rewritten or inner is False
    }


def _rest(place: Place, value: Json, pointer: str) -> None:
    if "additionalProperties" not in place.out:
        place.out["additionalProperties"] = place.rewriter.schema(value, pointer)


def _required(place: Place, value: Json, pointer: str) -> None:
    place.rewriter.string(value, pointer)
    place.out["required"] = list(dict.fromkeys(value))


def _min_properties(place: Place, value: Json, pointer: str) -> None:
    required = set(place.schema.get("required", ()))
    if value <= len(required):
        return
    # The engine counts a repeated key twice; a minimum of one is not affected.
    if value - len(required) > 1 or _has_optional(place):
        place.watch("minProperties", int(value), pointer)
    else:
        place.out["minProperties"] = int(value)


def _max_properties(place: Place, value: Json, pointer: str) -> None:
    if _has_optional(place):
        place.watch("maxProperties", int(value), pointer)
    else:
        # `propertyNames` may have left none already.
        place.out["maxProperties"] = min(int(value), place.out.get("maxProperties", int(value)))


def _has_optional(place: Place) -> bool:
    """Whether a declared property is optional, beside which the engine counts none."""
    declared = place.schema.get("properties", {}).keys() - place.schema.get("required", ())
    return bool(declared) or "propertyNames" in place.schema


def _unevaluated_properties(place: Place, value: Json, pointer: str) -> None:
    if value is True or "additionalProperties" in place.schema:
        place.rewriter.probe(value, pointer)
        return
    applied = _always_applied(place)
    # Allowed names are not evaluated, but are rewritten as properties, which would be.
    if applied is None or "propertyNames" in place.schema:
        place.rewriter.refuse(pointer, _INSTANCE_DECIDES)
        return
    if any(each.keys() & {"additionalProperties", "unevaluatedProperties"} for each in applied):
        place.rewriter.probe(value, pointer)
        return
    own = place.schema.get("properties", {})
    names = [name for each in applied for name in each.get("properties", {})]
    merged = {name: True for name in names if name not in own}
    place.out["properties"] = place.out.get("properties", {}) | merged
    patterns = [name for each in applied for name in each.get("patternProperties", {})]
    if patterns:
        own = place.schema.get("patternProperties", {})
        pattern_properties(place, dict.fromkeys(patterns, True) | own, pointer)
    place.out["additionalProperties"] = place.rewriter.schema(value, pointer)


def _always_applied(place: Place) -> list[dict[str, Json]] | None:
    """The other schemas that always apply; None: that may depend on the instance."""
    found: list[dict[str, Json]] = []
    seen: set[str] = set()
    to_do: list[Json] = [place.schema]
    while to_do:
        schema = to_do.pop(0)
        if isinstance(schema, bool):
            continue
        if schema.keys() & _CONDITIONS:
            return None
        found.append(schema)
        to_do += schema.get("allOf", ())
        if "$ref" in schema:
            target = place.rewriter.resolve(schema["$ref"], place.pointer)
            if target not in seen:
                seen.add(target)
                to_do.append(place.rewriter.raw(target))
    return found[1:]


def _prefix_items(place: Place, value: Json, pointer: str) -> None:
    # `unevaluatedItems` may have been handled before.
    already = place.out.get("prefixItems", [])
    place.out["prefixItems"] = place.list(value, pointer) + already[len(value) :]


def _items(place: Place, value: Json, pointer: str) -> None:
    if not isinstance(value, list):
        place.out["items"] = place.rewriter.schema(value, pointer)
    elif value:
        # Before 2020-12 a list meant what `prefixItems` means now.
        _prefix_items(place, value, pointer)


def _additional_items(place: Place, value: Json, pointer: str) -> None:
    rewritten = place.rewriter.schema(value, pointer)
    if isinstance(place.schema.get("items"), list):
        place.out["items"] = rewritten


def _unevaluated_items(place: Place, value: Json, pointer: str) -> None:
    rewritten = place.rewriter.schema(value, pointer)
    if value is True or _has_rest(place.schema):
        return
    applied = _always_applied(place)
    if applied is None:
        place.rewriter.refuse(pointer, _INSTANCE_DECIDES)
        return
    if any(_has_rest(each) or "unevaluatedItems" in each for each in applied):
        return
    num_evaluated = max(map(_num_first, applied), default=0)
    first = place.out.get("prefixItems", [True] * _num_first(place.schema))
    if first or num_evaluated:
        place.out["prefixItems"] = first + [True] * (num_evaluated - len(first))
    place.out["items"] = rewritten


def _has_rest(schema: dict[str, Json]) -> bool:
    """Whether a schema says what all items are that have no schema of their own."""
    items = schema.get("items")
    return isinstance(items, dict | bool) or (items is not None and "additionalItems" in schema)


def _num_first(schema: dict[str, Json]) -> int:
    """How many items have a schema of their own."""
    items = schema.get("items")
    return len(items if isinstance(items, list) else schema.get("prefixItems", []))


def _unique_items(place: Place, value: Json, pointer: str) -> None:
    if value and place.schema.get("maxItems", 2) > 1:
        place.watch("uniqueItems", value, pointer)


def _contains(place: Place, value: Json, pointer: str) -> None:
    like = place.rewriter.schema(value, pointer)
    least = int(place.schema.get("minContains", 1))
    most = place.schema.get("maxContains")
    if least == 0 and most is None:
        return
    counts = (least, None if most is None else int(most))
    place.watch("contains", [{"schema": value, "counts": counts, "like": like}], pointer)
    if least:
        place.also.append({"minItems": least})


def _of_contains(place: Place, value: Json, pointer: str) -> None:
    """How many items `contains` means; without it they say nothing."""


HANDLERS: dict[str, Handler] = {
    **keys.HANDLERS,
    "properties": _properties,
    "additionalProperties": _rest,
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "unevaluatedProperties": _unevaluated_properties,
    "prefixItems": _prefix_items,
    "items": _items,
    "additionalItems": _additional_items,
    "unevaluatedItems": _unevaluated_items,
    "uniqueItems": _unique_items,
    "contains": _contains,
    **dict.fromkeys(("minContains", "maxContains"), _of_contains),
}
