"""Constraints of every kind, for tests of output states and searches."""

import json
from typing import Any

from constraints.spec import ConstraintSpec, Kind

Json = Any


def record(properties: Json, required: list[str] | None = None) -> Json:
    """A schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, Json] = {
    "flat": record({"name": STRING, "age": INTEGER, "ok": {"type": "boolean"}}),
    "nested": record({"a": record({"b": record({"c": STRING})}), "d": record({"e": INTEGER})}),
    "optional": record({"a": STRING, "b": record({"c": INTEGER, "d": STRING})}, []),
    "min-items": record({"l": {"type": "array", "items": record({"x": INTEGER}), "minItems": 3}}),
    "min-length": record({"s": {"type": "string", "minLength": 50}}),
    "length-range": record({"s": {"type": "string", "minLength": 20, "maxLength": 22}}),
    "pattern": record({"s": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}-x+yz$"}}),
    "date-time": record({"s": {"type": "string", "format": "date-time"}}),
    "uuid": record({"s": {"type": "string", "format": "uuid"}}),
    "email": record({"s": {"type": "string", "format": "email"}}),
    "ipv4": record({"s": {"type": "string", "format": "ipv4"}}),
    "minimum": record({"n": {"type": "integer", "minimum": 1000}}),
    "multiple": record({"n": {"type": "integer", "minimum": 1000, "multipleOf": 7}}),
    "negative": record({"n": {"type": "number", "maximum": -5.5}}),
    "enum": record({"c": {"enum": ["red", "green", "blue", {"a": 1}]}}),
    "any-of": record({"v": {"anyOf": [record({"deep": record({"x": STRING})}), {"type": "null"}]}}),
    "recursive": {
        "$defs": {
            "node": record(
                {"v": INTEGER, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}
            )
        },
        "$ref": "#/$defs/node",
    },
    "additional": {"type": "object", "additionalProperties": INTEGER},
    "all-of": {
        "allOf": [
            {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "required": ["a"]},
            {"type": "object", "required": ["b"]},
        ]
    },
    "anything": {},
}
PATTERNS = [
    r"(ab)*c",
    r"[a-z]{3}-[0-9]{4}",
    r"[a-z]+xyz",
    r"(foo|bar[0-9]{4}-end)",
    r"[0-9a-f]{32}",
    r"(0|1)*0000001",
    r"[^a\n]*q[^b\n]*z",
]
GRAMMARS = {
    "arithmetic": """start: expr
expr: term (("+"|"-") term)*
term: factor (("*"|"/") factor)*
factor: NUMBER | "(" expr ")"
NUMBER: /[0-9]+/
""",
    "query": """start: "SELECT " cols " FROM " NAME (" WHERE " cond)? ";"
cols: "*" | NAME ("," NAME)*
cond: NAME "=" (NUMBER | STR)
NAME: /[a-z_]+/
NUMBER: /[0-9]+/
STR: /'[^']*'/
""",
}
EXPRESSIONS = [
    'len(X) < 20 and "fox" in X',
    "len(words(X)) == 3",
    "int(X) > 41",
    "len(tokens(X)) < 5 and len(X) > 6",
    'stops_at(X, ".") and len(words(X)) >= 4',
    "len(sentences(X)) == 2",
]

CASES: dict[str, ConstraintSpec] = {
    **{name: ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(each)) for name, each in SCHEMAS.items()},
    **{pattern: ConstraintSpec(Kind.REGEX, pattern) for pattern in PATTERNS},
    **{name: ConstraintSpec(Kind.LARK, grammar) for name, grammar in GRAMMARS.items()},
    "choice": ConstraintSpec(Kind.CHOICE, '["zebra", "cat", "catalogue", "ca"]'),
    **{each: ConstraintSpec(Kind.WHERE, each) for each in EXPRESSIONS},
}
