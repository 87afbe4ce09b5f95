"""The grammar text of a rewritten schema, with options for the spelling of JSON."""

import json

from constraints.grammars.engine import HEADER
from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.unproductive_definitions import parts
from constraints.spec import Whitespace

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
    return any(
        _may_respell(part) for schema in (root, *definitions.values()) for part in parts(schema)
    )


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


def json_literal(root: Json, definitions: dict[str, Json], whitespace: Whitespace) -> str:
    """The schema as part of a grammar."""
    options = dict(_SPELLINGS[whitespace])
    if may_respell_keys(root, definitions):
        options["json_allowed_escapes"] = _PLAIN_ESCAPES
    schema = root if isinstance(root, dict) else {"allOf": [root]}
    whole = {**schema, "$defs": definitions, "x-guidance": options}
    return f"%json {json.dumps(whole)}"
