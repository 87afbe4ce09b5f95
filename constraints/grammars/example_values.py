"""The values that a schema lists: their text, and whether the other keywords allow them."""

import json

from constraints.grammars.example_number import is_in_bounds, written_number
from constraints.grammars.example_string import ExampleStrings
from constraints.grammars.schema.reading import Json


def written(value: Json, item: str, key: str) -> str:
    """A value in the spelling of the engine, with these separators; numbers have no exponents."""
    match value:
        case float():
            return written_number(value)
        case list():
            return f"[{item.join(written(each, item, key) for each in value)}]"
        case dict():
            members = (
                f"{written(name, item, key)}{key}{written(member, item, key)}"
                for name, member in value.items()
            )
            return f"{{{item.join(members)}}}"
    return json.dumps(value, ensure_ascii=False)


def fits(value: Json, schema: dict[str, Json], strings: ExampleStrings) -> bool:
    """Whether a value satisfies a schema without choices; some keywords are ignored."""
    kinds = schema.get("type", _names_of(value))
    if not set(_names_of(value)) & set(kinds if isinstance(kinds, list) else [kinds]):
        return False
    match value:
        case bool() | None:
            return True
        case str():
            patterns = schema.get("pattern", [])
            return _is_counted(value, schema, "Length") and all(
                strings.has(pattern, value)
                for pattern in (patterns if isinstance(patterns, list) else [patterns])
            )
        case list():
            return _is_counted(value, schema, "Items")
        case dict():
            return _is_counted(value, schema, "Properties") and all(
                name in value for name in schema.get("required", ())
            )
    return is_in_bounds(value, schema)


def _is_counted(
    value: str | list[Json] | dict[str, Json], schema: dict[str, Json], what: str
) -> bool:
    low = schema.get(f"min{what}", 0)
    high = schema.get(f"max{what}")
    return bool(low <= len(value)) and (high is None or len(value) <= high)


def _names_of(value: Json) -> list[str]:
    """The types of a value."""
    match value:
        case None:
            return ["null"]
        case bool():
            return ["boolean"]
        case str():
            return ["string"]
        case list():
            return ["array"]
        case dict():
            return ["object"]
    return ["integer", "number"] if value == int(value) else ["number"]
