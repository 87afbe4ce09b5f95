"""Resolves `$ref`: pointers, anchors and `$id`s of the same document only.

Also OpenAPI 3.0's `nullable`, draft 4's switches and Gemini's types in capitals, in newer words.

    {"type": "string", "nullable": true}  ->  {"type": ["string", "null"]}
    {"$ref": "#/a", "nullable": true}     ->  {"anyOf": [{"$ref": "#/a"}, {"type": "null"}]}
    {"type": "STRING", "maxLength": "3"}  ->  {"type": "string", "maxLength": 3}
    {"minimum": 0, "exclusiveMinimum": true}  ->  {"exclusiveMinimum": 0}

Beside an `enum` null has to be listed, as OpenAPI 3.0.3 says.
"""

from collections.abc import Iterator
from urllib.parse import unquote, urldefrag, urljoin

from constraints.errors import Malformed, NotEnforced, TooComplex
from constraints.schema.keywords import is_annotation
from constraints.schema.reading import Json, at, below, draft_of

# Keywords whose values are schemas, lists of them, or maps of them.
_APPLICATORS = (
    "additionalItems additionalProperties allOf anyOf contains else if items not oneOf"
    " prefixItems propertyNames then unevaluatedItems unevaluatedProperties"
).split()
_MAPS = ("$defs definitions dependencies dependentSchemas patternProperties properties").split()
# The most characters of all pointers: a long name counts for each schema below it.
_MAX_POINTERS_LEN = 8_000_000


class References:
    """The named places of one document."""

    def __init__(self, document: Json) -> None:
        """Raises Malformed, TooComplex."""
        self._document = document
        # Pointers by address, and the base address for the references at a pointer.
        self._resources: dict[str, str] = {"": ""}
        self._anchors: dict[str, str] = {}
        self._bases: dict[str, str] = {}
        self._pointers_len = 0
        self.draft = draft_of(document)
        if isinstance(document, dict):
            self._index(document, "", "")

    def resolve(self, reference: str, pointer: str) -> str:
        """The pointer of the target of a reference at `pointer`. Raises Malformed, NotEnforced."""
        place = below(pointer, "$ref")
        address, fragment = _joined(self._base(pointer), reference, place)
        fragment = unquote(fragment)
        resource = self._resources.get(address)
        if resource is None:
            raise NotEnforced(
                f"{address!r} is not in this schema, and other documents are not fetched", place
            )
        if fragment and not fragment.startswith("/"):
            target = self._anchors.get(f"{address}#{fragment}")
        else:
            target = resource + fragment
            if fragment == "/" and not self._is_schema(target):
                target = resource  # a common spelling of the whole document
        if target is None or not self._is_schema(target):
            raise NotEnforced(f"{reference!r} leads to no schema", place)
        return target

    def _is_schema(self, pointer: str) -> bool:
        try:
            return isinstance(at(self._document, pointer), dict | bool)
        except KeyError:
            return False

    def _base(self, pointer: str) -> str:
        while pointer not in self._bases:
            if not pointer:
                return ""
            pointer = pointer.rpartition("/")[0]
        return self._bases[pointer]

    def _index(self, schema: dict[str, Json], pointer: str, base: str) -> None:
        self._pointers_len += len(pointer)
        if self._pointers_len > _MAX_POINTERS_LEN:
            raise TooComplex("the names above the schema's parts are too long")
        # A property with that name is not a string.
        identity = self.draft.read(schema).get(self.draft.address)
        if isinstance(identity, str):
            address, fragment = _joined(base, identity, below(pointer, self.draft.address))
            if fragment:
                self._anchors[f"{address}#{fragment}"] = pointer
            else:
                base = address
                self._resources[base] = pointer
        self._bases[pointer] = base
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._anchors[f"{base}#{schema[key]}"] = pointer
        for place, inner in subschemas(schema, pointer):
            if isinstance(inner, dict):
                self._index(inner, place, base)


def _joined(base: str, reference: str, pointer: str) -> tuple[str, str]:
    """A resolved address, and its fragment."""
    try:
        address, fragment = urldefrag(urljoin(base, reference))
    except ValueError as error:
        message = f"{pointer}: {reference!r} is no address: {error}"
        raise Malformed(message, pointer=pointer) from None
    return address, fragment


def subschemas(schema: dict[str, Json], pointer: str) -> Iterator[tuple[str, Json]]:
    """The direct subschemas of a schema, with their pointers."""
    for key, value in schema.items():
        place = below(pointer, key)
        if key in _APPLICATORS and not isinstance(value, list):
            yield place, value
        elif key in _APPLICATORS:
            for index, inner in enumerate(value):
                yield below(place, index), inner
        elif key in _MAPS and isinstance(value, dict):
            for name, inner in value.items():
                yield below(place, name), inner


_COUNTS = frozenset(
    f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Properties")
)


def spelt_out(document: Json) -> Json:
    """A document in the words of JSON Schema alone, and of the draft that its root names."""
    if isinstance(document, dict) and "$schema" in document:
        return {"$schema": document["$schema"], **_spelt_out(document)}
    return _spelt_out(document)


def _spelt_out(document: Json) -> Json:
    if not isinstance(document, dict):
        return document
    schema = {key: value for key, value in document.items() if key != "$schema"}
    for key, value in schema.items():
        if key in _APPLICATORS:
            is_list = isinstance(value, list)
            schema[key] = [*map(_spelt_out, value)] if is_list else _spelt_out(value)
        elif key in _MAPS and isinstance(value, dict):
            schema[key] = {name: _spelt_out(inner) for name, inner in value.items()}
    types = schema.get("type")
    if isinstance(types, str) and types.isupper():
        types = schema["type"] = types.lower()
        for key in _COUNTS & schema.keys():
            if isinstance(schema[key], str) and schema[key].isdecimal():
                schema[key] = int(schema[key])
    for bound in ("minimum", "maximum"):
        exclusive = f"exclusive{bound.capitalize()}"
        is_switch = isinstance(schema.get(exclusive), bool)
        if is_switch and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)
    is_nullable = schema.get("nullable")
    if isinstance(is_nullable, bool):
        del schema["nullable"]
    if is_nullable is not True:
        return schema
    if types is not None:
        names = types if isinstance(types, list) else [types]
        return {**schema, "type": names if "null" in names else [*names, "null"]}
    # What references lead to stays where it is.
    kept = {key: value for key, value in schema.items() if is_annotation(key)}
    said = {key: value for key, value in schema.items() if key not in kept}
    return {**kept, "anyOf": [said, {"type": "null"}]}
