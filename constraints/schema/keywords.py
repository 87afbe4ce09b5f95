"""All known keywords: the shape of their values, and whether masks enforce them.

Unknown keywords are annotations, as JSON Schema specifies. One that is similar to an assertion is
refused as a probable typo, since the schema would enforce less than its author expects.
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache

from constraints.schema.reading import Json

# Unlike any known keyword.
_MAX_NAME_LEN = 40

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_schema(each) for each in value)


def _is_schema_map(value: Json) -> bool:
    return isinstance(value, dict) and all(_is_schema(each) for each in value.values())


def _is_count(value: Json) -> bool:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool) and value >= 0


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_strings(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_strings_map(value: Json) -> bool:
    return isinstance(value, dict) and all(_is_strings(each) for each in value.values())


def _is_type(value: Json) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(each, str) and each in TYPES for each in names)


def _is_dependencies(value: Json) -> bool:
    return isinstance(value, dict) and all(
        _is_schema(each) or _is_strings(each) for each in value.values()
    )


# Keywords, the shape of their values as a check, and in words.
_SHAPES: tuple[tuple[str, Callable[[Json], bool], str], ...] = (
    ("type", _is_type, f"one of {', '.join(TYPES)}, or a list of them"),
    ("enum", lambda value: isinstance(value, list), "a list of values"),
    ("const", lambda value: True, "any value"),
    ("allOf anyOf oneOf prefixItems", _is_schemas, "a list of schemas, at least one"),
    (
        "properties patternProperties $defs definitions dependentSchemas",
        _is_schema_map,
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
    ("minimum maximum exclusiveMinimum exclusiveMaximum", _is_number, "a number"),
    ("multipleOf", lambda value: _is_number(value) and value > 0, "a number above 0"),
    ("uniqueItems nullable", lambda value: isinstance(value, bool), "true or false"),
    ("required propertyOrdering", _is_strings, "a list of strings"),
    (
        "pattern format $ref $dynamicRef $recursiveRef $id $anchor $schema",
        lambda value: isinstance(value, str),
        "a string",
    ),
    ("dependentRequired", _is_strings_map, "an object whose values are lists of strings"),
    (
        "dependencies",
        _is_dependencies,
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
