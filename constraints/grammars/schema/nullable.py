"""OpenAPI 3.0's `nullable`, in the words of JSON Schema.

    {"type": "string", "nullable": true}  ->  {"type": ["string", "null"]}
    {"$ref": "#/a", "nullable": true}     ->  {"anyOf": [{"$ref": "#/a"}, {"type": "null"}]}

Beside an `enum` null has to be listed, as OpenAPI 3.0.3 says.
"""

from constraints.grammars.schema.keywords import is_annotation
from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.references import with_subschemas

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


def spelt_out(document: Json) -> Json:
    """A document without the word anywhere, for validators that do not know it."""
    if not isinstance(document, dict):
        return document
    schema = with_subschemas(document, spelt_out)
    if not is_nullable(schema):
        return schema
    inner, has_alternative = bare(schema)
    if not has_alternative:
        return inner
    # What references lead to stays where it is.
    kept = {key: value for key, value in inner.items() if is_annotation(key)}
    said = {key: value for key, value in inner.items() if key not in kept}
    return {**kept, "anyOf": [said, NULL]}
