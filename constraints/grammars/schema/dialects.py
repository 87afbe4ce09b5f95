"""OpenAPI 3.0's `nullable` and Gemini's types in capitals, in the words of JSON Schema.

    {"type": "string", "nullable": true}  ->  {"type": ["string", "null"]}
    {"$ref": "#/a", "nullable": true}     ->  {"anyOf": [{"$ref": "#/a"}, {"type": "null"}]}
    {"type": "STRING", "maxLength": "3"}  ->  {"type": "string", "maxLength": 3}

Beside an `enum` null has to be listed, as OpenAPI 3.0.3 says.
"""

from constraints.grammars.schema.keywords import is_annotation
from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.references import with_subschemas

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
