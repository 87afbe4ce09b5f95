"""JSON schemas as grammars."""

import json

from constraints.grammars.engine import HEADER
from constraints.spec import Whitespace


def to_grammar(text: str, whitespace: Whitespace, lenient: bool) -> tuple[str, tuple[str, ...]]:
    """The grammar of the schema's instances, and the pointers of what it does not hold."""
    options = {
        Whitespace.FLEXIBLE: {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"},
        Whitespace.COMPACT: {"whitespace_flexible": False},
        Whitespace.SPACED: {
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
        },
    }[whitespace]
    schema = json.loads(text)
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    schema["x-guidance"] = options | {"lenient": lenient, "json_allowed_escapes": 'nrbtf\\"'}
    return f"{HEADER}start: %json {json.dumps(schema)}\n", ()
