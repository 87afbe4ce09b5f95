"""Texts made to hurt: each is answered soon, by an error of ours or a language that works."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from constraints.errors import ConstraintError
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.grammars.rig import compiler, legal

# Generous, since other work goes on beside the tests; alone, none takes a second.
MAX_S = 10.0


def nested(wrap: Callable[[Any], Any], inner: Any, depth: int) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def chain(length: int) -> dict[str, Any]:
    links = {f"k{index}": {"$ref": f"#/$defs/k{index + 1}"} for index in range(length)}
    return {"$ref": "#/$defs/k0", "$defs": {**links, f"k{length}": {"type": "integer"}}}


def doubled(inner: Any) -> dict[str, Any]:
    links = {f"k{n}": {"allOf": [{"$ref": f"#/$defs/k{n + 1}"}] * 3} for n in range(9)}
    return {**links, "k9": inner}


def rules(length: int) -> str:
    links = "\n".join(f'r{index}: "a" r{index + 1}' for index in range(length))
    return f'start: r0\n{links}\nr{length}: "b"'


TAGGED = [
    {"type": "object", "properties": {"t": {"const": number}}, "required": ["t"]}
    for number in range(100)
]
SCHEMAS: dict[str, Any] = {
    "a long chain of references": chain(20_000),
    "references that multiply": {"not": {"$ref": "#/$defs/k0"}, "$defs": doubled({"type": "null"})},
    "unevaluated through them": {
        "$ref": "#/$defs/k0",
        "unevaluatedProperties": False,
        "$defs": doubled({"properties": {"a": {}}}),
    },
    "conditions in conditions": nested(
        lambda inner: {"if": {"type": "null"}, "then": inner, "else": inner}, {"type": "null"}, 8
    ),
    "options in options": {
        "oneOf": [
            nested(lambda inner: {"anyOf": [inner] * 5}, {"type": "object", "required": [name]}, 5)
            for name in "ab"
        ]
    },
    "alternatives that multiply": {
        "allOf": [{"anyOf": [{"minimum": n}, {"maxLength": n}, {"minItems": n}]} for n in range(12)]
    },
    "many tagged options": {"oneOf": TAGGED},
    "many patterns of keys": {"patternProperties": {f"^a{n}.*b$": {} for n in range(300)}},
    "keywords that nobody knows": {f"kex{n}wd": 1 for n in range(20_000)},
    "many properties": {"properties": {f"p{n}": {"type": "integer"} for n in range(5_000)}},
    "many values": {"enum": [f"value {n}" for n in range(50_000)]},
    "a million items": {"type": "array", "maxItems": 1_000_000},
    "a million characters": {"type": "string", "pattern": "^(a|b)*$", "maxLength": 1_000_000},
    "deep nesting": nested(lambda inner: {"items": inner}, {}, 90),
}
OTHERS = {
    "anchors": (Kind.REGEX, "^" * 50_000 + "a"),
    "repeats of repeats": (Kind.REGEX, nested(lambda inner: f"(?:{inner}){{1,100}}", "a", 8)),
    "states that double": (Kind.REGEX, "(?s:.*)a.{60}"),
    "many alternatives": (Kind.REGEX, "|".join(f"w{n}" for n in range(10_000))),
    "long classes": (Kind.REGEX, r"\w{1,500}" * 20),
    "a chain of rules": (Kind.LARK, rules(20_000)),
    "brackets": (Kind.LARK, f"start: {'(' * 20_000}'a'{')' * 20_000}"),
    "ambiguity": (Kind.LARK, 'start: e\ne: e e | "a"'),
    "recursion on the left": (Kind.LARK, 'start: start start | start "a" | ""'),
    "complements": (
        Kind.LARK,
        "start: A\nA: /(?s:.*)/ & " + " & ".join(f"~/(?s:.*)w{n}(?s:.*)/" for n in range(30)),
    ),
    "nested lists": (Kind.CHOICE, "[" * 100_000),
    "JSON without an end": (Kind.JSON_SCHEMA, '{"items":' * 100_000),
    "ten megabytes": (Kind.JSON_SCHEMA, '{"enum": ["' + "a" * 10_000_000 + '"]}'),
}
CASES = {name: (Kind.JSON_SCHEMA, json.dumps(schema)) for name, schema in SCHEMAS.items()} | OTHERS


@pytest.mark.alone
@pytest.mark.parametrize("name", CASES)
def test_it_is_answered_in_time(name: str) -> None:
    kind, text = CASES[name]
    began = time.monotonic()
    with suppress(ConstraintError):
        assert legal(compiler().compile(ConstraintSpec(kind, text)).matcher())
    assert time.monotonic() - began < MAX_S
