"""Reads JSON schemas: their JSON, the values of their keywords, and references within them.

The draft is that of `$schema`, or 2020-12 if there is none or an unknown one. Keywords that a draft
does not have are enforced all the same, since their author means them.

Unknown keywords are annotations, as JSON Schema specifies. One that is similar to an assertion is
refused as a probable typo, since the schema would enforce less than its author expects.

References are pointers, anchors and `$id`s of the same document only. OpenAPI 3.0's `nullable`,
draft 4's switches and Gemini's types in capitals are read in newer words.

    {"type": "string", "nullable": true}  ->  {"type": ["string", "null"]}
    {"$ref": "#/a", "nullable": true}     ->  {"anyOf": [{"$ref": "#/a"}, {"type": "null"}]}
    {"type": "STRING", "maxLength": "3"}  ->  {"type": "string", "maxLength": 3}
    {"minimum": 0, "exclusiveMinimum": true}  ->  {"exclusiveMinimum": 0}

Beside an `enum` null has to be listed, as OpenAPI 3.0.3 says.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from constraints.errors import Malformed, NotEnforced, TooComplex

# A schema, or any JSON value.
Json = Any

# The engine reads JSON no deeper than 128.
MAX_DEPTH = 100
# Of an item, as RFC 6901 has it: without zeros in front.
_INDEX = re.compile(r"0|[1-9][0-9]*")


def read(text: str) -> Json:
    """The value of a JSON text. Raises Malformed with a position, TooComplex."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=no_key_twice,
            parse_float=_fraction,
            parse_constant=no_constant,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Malformed(f"the schema is not JSON: {error}", error.pos) from None
    except RecursionError:
        raise TooComplex(f"the schema is nested more than {MAX_DEPTH} deep") from None
    except UnicodeEncodeError:
        raise Malformed("a string of the schema has half of a surrogate pair") from None
    except ValueError as error:
        raise Malformed(f"the schema is not JSON: {error}") from None
    _check_depth(value, 0)
    return value


def shown(value: Json, max_len: int = 60) -> str:
    """A value as JSON, shortened for an error message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= max_len else text[:max_len] + "..."


def hashable(value: Json) -> Hashable:
    """A key that is equal for values that are equal in JSON Schema."""
    match value:
        case dict():
            return frozenset((key, hashable(member)) for key, member in value.items())
        case list():
            return tuple(map(hashable, value))
        case bool():
            # Python's True is 1.
            return (bool, value)
    return value  # type: ignore[no-any-return]


def below(pointer: str, key: str | int) -> str:
    """The JSON Pointer of a member."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


def at(value: Json, pointer: str) -> Json:
    """The value at a JSON Pointer. Raises KeyError."""
    for escaped in pointer.split("/")[1:]:
        key = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value[key]
        elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            raise KeyError(pointer)
    return value


def no_key_twice(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """An object of its members, for `json.loads`. Raises ValueError."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return members


def _fraction(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large a number")
    return number


def no_constant(name: str) -> NoReturn:
    """Refuses NaN and Infinity, for `json.loads`. Raises ValueError."""
    raise ValueError(f"{name} is no JSON number")


def _check_depth(value: Json, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TooComplex(f"the schema is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, depth + 1)


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft.

    ref_is_alone:  keywords beside a `$ref` are ignored, an address among them
    address:       the keyword that gives a schema its address
    """

    ref_is_alone: bool = False
    address: str = "$id"

    def read(self, schema: dict[str, Json]) -> dict[str, Json]:
        """A schema without the keywords that this draft ignores beside a `$ref`."""
        if self.ref_is_alone and "$ref" in schema:
            return {"$ref": schema["$ref"]}
        return schema


def draft_of(schema: Json) -> Draft:
    """The draft that a schema names, or the newest."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    return _OLD.get(named.removesuffix("#"), _NEWEST) if isinstance(named, str) else _NEWEST


_NEWEST = Draft()
_OLD = {
    f"http://json-schema.org/draft-0{number}/schema": Draft(True, "id" if number < 6 else "$id")
    for number in (3, 4, 6, 7)
}


# Unlike any known keyword.
_MAX_NAME_LEN = 40

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_schema(each) for each in value)


def _is_count(value: Json) -> bool:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool) and value >= 0


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_strings(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: Json) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(each, str) and each in TYPES for each in names)


def _map_of(*shapes: Callable[[Json], bool]) -> Callable[[Json], bool]:
    """Whether a value is an object of values that have one of the shapes."""
    return lambda value: (
        isinstance(value, dict)
        and all(any(has_shape(each) for has_shape in shapes) for each in value.values())
    )


# Keywords, the shape of their values as a check, and in words.
_SHAPES: tuple[tuple[str, Callable[[Json], bool], str], ...] = (
    ("type", _is_type, f"one of {', '.join(TYPES)}, or a list of them"),
    ("enum", lambda value: isinstance(value, list), "a list of values"),
    ("const", lambda value: True, "any value"),
    ("allOf anyOf oneOf prefixItems", _is_schemas, "a list of schemas, at least one"),
    (
        "properties patternProperties $defs definitions dependentSchemas",
        _map_of(_is_schema),
        "an object whose values are schemas",
    ),
    (
        "additionalProperties additionalItems not if then else contains propertyNames"
        " unevaluatedItems unevaluatedProperties contentSchema",
        _is_schema,
        "a schema: an object, true or false",
    ),
    (
        "items",
        lambda value: _is_schema(value) or _is_schemas(value) or value == [],
        "a schema, or a list of schemas",
    ),
    (
        "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains",
        _is_count,
        "a whole number, 0 or more",
    ),
    ("minimum maximum exclusiveMinimum exclusiveMaximum", is_number, "a number"),
    ("multipleOf", lambda value: is_number(value) and value > 0, "a number above 0"),
    ("uniqueItems nullable", lambda value: isinstance(value, bool), "true or false"),
    ("required propertyOrdering", _is_strings, "a list of strings"),
    (
        "pattern format $ref $dynamicRef $recursiveRef $id $anchor $schema",
        lambda value: isinstance(value, str),
        "a string",
    ),
    ("dependentRequired", _map_of(_is_strings), "an object whose values are lists of strings"),
    (
        "dependencies",
        _map_of(_is_schema, _is_strings),
        "an object whose values are schemas or lists of strings",
    ),
)
SHAPES = {name: (check, words) for names, check, words in _SHAPES for name in names.split()}

# What a string is encoded in. Drafts may assert it; masks do not.
CONTENT = ("contentEncoding", "contentMediaType", "contentSchema")
# They assert nothing. `discriminator` belongs to OpenAPI and speeds up reading a oneOf;
# `propertyOrdering` is Gemini's, the order of keys.
ANNOTATIONS = frozenset(
    (
        *CONTENT,
        *"$anchor $comment comment $defs $dynamicAnchor $id $recursiveAnchor $schema".split(),
        *"$vocabulary default definitions deprecated description discriminator example".split(),
        *"examples externalDocs id propertyOrdering readOnly title writeOnly xml".split(),
    )
)

# They are read with another keyword, and say nothing without it.
READ_BESIDE = frozenset(("then", "else", "minContains", "maxContains"))

# How people mark keywords of their own.
EXTENSIONS = ("x-", "X-", "_")

# Assertions that masks do not enforce, with a replacement if there is one.
REFUSED = {
    "$dynamicRef": "dynamic references are not followed; write $ref",
    "$recursiveRef": "recursive references are not followed; write $ref",
    "divisibleBy": "this is of draft 3; write multipleOf",
    "disallow": "this is of draft 3; write not",
    "extends": "this is of draft 3; write allOf",
}

KNOWN = frozenset(SHAPES) | ANNOTATIONS | frozenset(REFUSED)


@lru_cache(maxsize=1024)
def intended_assertion(keyword: str) -> str | None:
    """The assertion of which an unknown keyword is probably a typo; None: of none."""
    if len(keyword) > _MAX_NAME_LEN:
        return None
    folded = {known.lower(): known for known in KNOWN}
    plain = keyword.lower().replace("_", "").replace("-", "")
    close = [plain] if plain in folded else get_close_matches(plain, folded, n=1, cutoff=0.87)
    meant = folded[close[0]] if close else None
    return None if meant in ANNOTATIONS else meant


def is_annotation(keyword: str) -> bool:
    """Whether a keyword is an annotation, and no probable typo of an assertion."""
    if keyword in ANNOTATIONS or keyword.startswith(EXTENSIONS):
        return True
    return keyword not in KNOWN and intended_assertion(keyword) is None


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
