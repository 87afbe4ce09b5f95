"""Resolves `$ref`: pointers, anchors and `$id`s of the same document only.

Also OpenAPI 3.0's `nullable` and Gemini's types in capitals, in the words of JSON Schema.

    {"type": "string", "nullable": true}  ->  {"type": ["string", "null"]}
    {"$ref": "#/a", "nullable": true}     ->  {"anyOf": [{"$ref": "#/a"}, {"type": "null"}]}
    {"type": "STRING", "maxLength": "3"}  ->  {"type": "string", "maxLength": 3}

Beside an `enum` null has to be listed, as OpenAPI 3.0.3 says.
"""

from collections.abc import Callable, Iterator
from urllib.parse import unquote, urldefrag, urljoin

from constraints.errors import Malformed, NotEnforced, TooComplex
from constraints.schema.keywords import is_annotation
from constraints.schema.reading import Draft, Json, at, below, draft_of

# Keywords whose values are schemas, lists of them, or maps of them.
_APPLICATORS = (
    "additionalItems additionalProperties allOf anyOf contains else if items not oneOf"
    " prefixItems propertyNames then unevaluatedItems unevaluatedProperties"
).split()
_MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties")
_PROPERTIES = ("properties",)
# The most characters of all pointers: a long name counts for each schema below it.
_MAX_POINTERS_LEN = 8_000_000


class References:
    """The named places of one document."""

    def __init__(self, document: Json) -> None:
        """Raises Malformed, TooComplex."""
        self._document = document
        self._names_draft = isinstance(document, dict) and "$schema" in document
        # Pointers by address, and the base address for the references at a pointer.
        self._resources: dict[str, str] = {"": ""}
        self._anchors: dict[str, str] = {}
        self._bases: dict[str, str] = {}
        self._pointers_len = 0
        # By pointer, the draft of a schema that names one; it applies to its subschemas, too, as in
        # validators, and to the root.
        self._drafts: dict[str, Draft] = {"": draft_of(document)}
        if isinstance(document, dict):
            self._index(document, "", "", self._drafts[""])

    def resolve(self, reference: str, pointer: str) -> str:
        """The pointer of the target of a reference at `pointer`."""
        target = self._target(reference, pointer, self._base(pointer))
        above = self._base(pointer.rpartition("/")[0])
        if above == self._base(pointer) or self._names_draft:
            return target
        try:
            is_ambiguous = self._target(reference, pointer, above) != target
        except NotEnforced:
            return target
        if is_ambiguous:
            raise NotEnforced(
                f"an $id beside {reference!r} counts since 2019-09: name the draft in $schema",
                below(pointer, "$ref"),
            )
        return target

    def _target(self, reference: str, pointer: str, base: str) -> str:
        address, fragment = _joined(base, reference, below(pointer, "$ref"))
        fragment = unquote(fragment)
        resource = self._resources.get(address)
        if resource is None:
            raise NotEnforced(
                f"{address!r} is not in this schema, and other documents are not fetched",
                below(pointer, "$ref"),
            )
        if fragment and not fragment.startswith("/"):
            target = self._anchors.get(f"{address}#{fragment}")
        else:
            target = resource + fragment
            if fragment == "/" and not self._is_schema(target):
                target = resource  # a common spelling of the whole document
        if target is None or not self._is_schema(target):
            raise NotEnforced(
                f"{reference!r} leads to no schema",
                below(pointer, "$ref"),
            )
        return target

    def draft(self, pointer: str) -> Draft:
        """The draft of the schema at a pointer."""
        while len(self._drafts) > 1 and pointer:
            pointer = pointer.rpartition("/")[0]
            if pointer in self._drafts:
                return self._drafts[pointer]
        return self._drafts[""]

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

    def _index(self, schema: dict[str, Json], pointer: str, base: str, draft: Draft) -> None:
        self._pointers_len += len(pointer)
        if self._pointers_len > _MAX_POINTERS_LEN:
            raise TooComplex("the names above the schema's parts are too long")
        if "$schema" in schema and pointer:
            draft = self._drafts[pointer] = draft_of(schema, draft)
        # A property with that name is not a string.
        identity = draft.read(schema).get(draft.address)
        if isinstance(identity, str):
            address, fragment = _joined(base, identity, below(pointer, draft.address))
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
                self._index(inner, place, base, draft)


def _joined(base: str, reference: str, pointer: str) -> tuple[str, str]:
    """A resolved address, and its fragment."""
    try:
        address, fragment = urldefrag(urljoin(base, reference))
    except ValueError as error:
        message = f"{pointer}: {reference!r} is no address: {error}"
        raise Malformed(message, pointer=pointer) from None
    return address, fragment


def with_subschemas(schema: dict[str, Json], change: Callable[[Json], Json]) -> dict[str, Json]:
    """A schema whose direct subschemas are changed."""
    changed = dict(schema)
    for key, value in schema.items():
        if key in _APPLICATORS:
            changed[key] = list(map(change, value)) if isinstance(value, list) else change(value)
        elif (key in _MAPS or key in _PROPERTIES) and isinstance(value, dict):
            changed[key] = {name: change(inner) for name, inner in value.items()}
    return changed


def subschemas(schema: dict[str, Json], pointer: str) -> Iterator[tuple[str, Json]]:
    """The direct subschemas of a schema, with their pointers."""
    for key, value in schema.items():
        place = below(pointer, key)
        if key in _APPLICATORS and not isinstance(value, list):
            yield place, value
        elif key in _APPLICATORS:
            for index, inner in enumerate(value):
                yield below(place, index), inner
        elif (key in _MAPS or key in _PROPERTIES) and isinstance(value, dict):
            for name, inner in value.items():
                yield below(place, name), inner


_COUNTS = frozenset(
    f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Properties")
)
NULL: dict[str, Json] = {"type": "null"}


def is_nullable(schema: dict[str, Json]) -> bool:
    return schema.get("nullable") is True


def bare(schema: dict[str, Json]) -> tuple[dict[str, Json], bool]:
    """A nullable schema without the word, and whether null is an alternative to all of it."""
    inner = {key: value for key, value in schema.items() if key != "nullable"}
    types = inner.get("type")
    if types is None:
        return inner, True
    names = types if isinstance(types, list) else [types]
    return {**inner, "type": [*names, *([] if "null" in names else ["null"])]}, False


def in_lower_case(document: Json) -> Json:
    """A document whose types are not in capitals, and beside these no counts in strings."""
    if not isinstance(document, dict):
        return document
    schema = with_subschemas(document, in_lower_case)
    types = schema.get("type")
    if isinstance(types, str) and types.isupper():
        schema["type"] = types.lower()
        for key in _COUNTS & schema.keys():
            if isinstance(schema[key], str) and schema[key].isdecimal():
                schema[key] = int(schema[key])
    return schema


def spelt_out(document: Json) -> Json:
    """A document in the words of JSON Schema alone, for validators that know no others."""
    return _without_nullable(in_lower_case(document))


def _without_nullable(document: Json) -> Json:
    if not isinstance(document, dict):
        return document
    schema = with_subschemas(document, _without_nullable)
    if not is_nullable(schema):
        return schema
    inner, has_alternative = bare(schema)
    if not has_alternative:
        return inner
    # What references lead to stays where it is.
    kept = {key: value for key, value in inner.items() if is_annotation(key)}
    said = {key: value for key, value in inner.items() if key not in kept}
    return {**kept, "anyOf": [said, NULL]}
