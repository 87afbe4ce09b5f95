"""The grammar text of a rewritten schema, with options for the spelling of JSON.

References without a finite instance are taken out first: {"a": {"$ref": "#"}} with "a" required.
The engine would allow their beginnings without end. No value is valid in place of such a reference,
so it is replaced by `false`, which the engine never enters.
"""

import json
from collections.abc import Iterator

from llguidance import LLMatcher

from constraints.definition_graph import check_depth, closure
from constraints.engine import HEADER, LIMITS, error_of
from constraints.errors import ConstraintError
from constraints.schema.reading import Json
from constraints.spec import Whitespace

# What the engine is not given: keywords for which texts are watched beside it.
WATCH = "x-watch"
_ALL_TYPES = ("null", "boolean", "number", "string", "array", "object")


def prune(root: Json, definitions: dict[str, Json]) -> bool:
    """Replace such references by `false`, in place; returns whether `root` has an instance.

    Raises TooComplex for definitions that are nested too deeply.
    """
    mentions = {name: _mentioned(schema) for name, schema in definitions.items()}
    check_depth(_mentioned(root), mentions)
    ending = closure(mentions, lambda name, known: _ends(definitions[name], known))
    unproductive = {f"#/$defs/{name}" for name in definitions if name not in ending}
    if unproductive:
        for part in all_parts(root, definitions):
            if part.get("$ref") in unproductive:
                part.clear()
                part["allOf"] = [False]
    return _ends(root, ending)


def parts(schema: Json) -> Iterator[dict[str, Json]]:
    """The schema and all schemas inside of it that are objects, of a rewritten schema."""
    pending = [schema]
    while pending:
        each = pending.pop()
        if not isinstance(each, dict):
            continue
        yield each
        pending.extend(inside(each))


def inside(schema: dict[str, Json]) -> Iterator[Json]:
    """The schemas that a rewritten one has directly inside."""
    for key, value in schema.items():
        if key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            yield from value
        elif key in ("properties", "patternProperties"):
            yield from value.values()
        elif key in ("additionalProperties", "items"):
            yield value


def all_parts(root: Json, definitions: dict[str, Json]) -> list[dict[str, Json]]:
    """Those of a schema and of its definitions."""
    return [part for schema in (root, *definitions.values()) for part in parts(schema)]


def _mentioned(schema: Json) -> list[str]:
    return [part["$ref"].rpartition("/")[2] for part in parts(schema) if "$ref" in part]


def _ends(schema: Json, ending: set[str]) -> bool:
    """Whether there is a finite instance, given the definitions known to have one."""
    if isinstance(schema, bool):
        return schema
    reference = schema.get("$ref")
    if reference is not None and reference.rpartition("/")[2] not in ending:
        return False
    if not all(_ends(part, ending) for part in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(_ends(option, ending) for option in schema[key]):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type", _ALL_TYPES)
    names = [types] if isinstance(types, str) else types
    return any(_ends_as(name, schema, ending) for name in names)


def _ends_as(name: str, schema: Json, ending: set[str]) -> bool:
    if name == "object":
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        # Keys by pattern count as productive: only the engine interprets patterns.
        has_patterns = bool(schema.get("patternProperties"))
        return all(
            _ends(properties[key], ending)
            if key in properties
            else has_patterns or _ends(rest, ending)
            for key in schema.get("required", ())
        )
    if name == "array":
        first = schema.get("prefixItems", [])
        least = int(schema.get("minItems", 0))
        items = first[:least]
        if least > len(first):
            items = [*first, schema.get("items", True)]
        return all(_ends(item, ending) for item in items)
    return True


# The deepest indentation, in blanks or in tabs; more of it, blanks and tabs mixed, and blank lines
# mean that the model is stuck in a loop. The engine lets it stand before a colon, too.
_MAX_BLANKS = 120
_MAX_TABS = 30
_SPELLINGS: dict[Whitespace, dict[str, Json]] = {
    Whitespace.FLEXIBLE: {
        "whitespace_pattern": (
            rf"(?:[\x20\x09]|\x0D?\x0A(?:\x20{{0,{_MAX_BLANKS}}}|\x09{{1,{_MAX_TABS}}}))"
        )
    },
    Whitespace.COMPACT: {"whitespace_flexible": False},
    Whitespace.SPACED: {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    },
    # Separators are patterns.
    Whitespace.OPTIONAL: {
        "whitespace_flexible": False,
        "item_separator": ", ?",
        "key_separator": ": ?",
    },
}
# All escapes of JSON except \u and \/.
_PLAIN_ESCAPES = 'nrbtf\\"'


def may_respell_keys(root: Json, definitions: dict[str, Json]) -> bool:
    """Whether some object has both declared and other keys.

    There the engine takes a \\u escape in a key for another key: it would let "\\u0061" have what
    "a" may not.
    """
    return any(map(_may_respell, all_parts(root, definitions)))


def _may_respell(part: dict[str, Json]) -> bool:
    if part.get("additionalProperties") is not False:
        return bool({"properties", "patternProperties", "required"} & part.keys())
    # Keys by patterns have escapes only of what JSON has to escape; and more than one each, as
    # \u001f and \u001F are.
    names = (*part.get("properties", ()), *part.get("required", ()))
    return bool(part.get("patternProperties")) and any(map(_has_control, names))


def _has_control(name: str) -> bool:
    return any(char < " " or char == "\x7f" for char in name)


def grammar_of(root: Json, definitions: dict[str, Json], whitespace: Whitespace) -> str:
    return f"{HEADER}start: {json_literal(root, definitions, whitespace)}\n"


def refusal_of(root: Json, definitions: dict[str, Json]) -> ConstraintError | None:
    """Why the engine refuses a rewritten schema; None: it does not."""
    grammar = grammar_of(root, definitions, Whitespace.COMPACT)
    is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return error_of(messages[0]) if is_wrong else None


def json_literal(root: Json, definitions: dict[str, Json], whitespace: Whitespace) -> str:
    """The schema as part of a grammar."""
    options = dict(_SPELLINGS[whitespace])
    if may_respell_keys(root, definitions):
        options["json_allowed_escapes"] = _PLAIN_ESCAPES
    schema = root if isinstance(root, dict) else {"allOf": [root]}
    whole = {**schema, "$defs": definitions, "x-guidance": options}
    return f"%json {json.dumps(whole)}"
