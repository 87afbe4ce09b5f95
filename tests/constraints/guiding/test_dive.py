"""Greedy completions of schemas' texts: valid, short, and found in the time of some masks."""

import json
import time
from typing import Any

import jsonschema
import pytest

from constraints.grammars.schema_validation import violations
from constraints.guiding.completion import completes, text_of
from constraints.guiding.dive import dive
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget
from tests.constraints.cases import byte_vocabulary
from tests.constraints.grammars.rig import of_schema

_ANY_LEN = 1 << 16
_FORMATS = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid", "email"])
PROBABILITY = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
DATE = {"type": "string", "format": "date"}
TEXT = {"type": "string"}
# What stands around a part, so that its end is not the text's.
AROUND = {
    "when": {"type": "string", "format": "date-time"},
    "n": {"type": "integer", "minimum": 10},
    "l": {"type": "array", "items": TEXT, "minItems": 2},
}


def record(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def number(**bounds: Any) -> dict[str, Any]:
    return {"type": "number", **bounds}


# The schema of a property, and more of the whole schema.
PARTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PROBABILITY, {}),
    (number(minimum=0.1, maximum=0.9), {}),
    (number(exclusiveMinimum=0, multipleOf=0.01, maximum=0.05), {}),
    (number(multipleOf=0.25, minimum=0.05, exclusiveMaximum=1), {}),
    (number(exclusiveMinimum=-1, exclusiveMaximum=0), {}),
    (number(minimum=98.15, maximum=98.2), {}),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer", "minimum": 1}, {}),
    ({"type": "integer", "exclusiveMinimum": 10, "multipleOf": 5}, {}),
    (
        number(minimum=0, exclusiveMinimum=True, maximum=1, exclusiveMaximum=True),
        {"$schema": "http://json-schema.org/draft-04/schema#"},
    ),
    ({"type": "integer", "not": {"enum": [0, 1]}}, {}),
    ({"type": "string", "format": "uri", "minLength": 8, "maxLength": 2083}, {}),
    ({"type": "string", "format": "email", "minLength": 8}, {}),
    ({"type": "string", "format": "hostname", "minLength": 10}, {}),
    ({"type": "string", "format": "date", "pattern": "^2024"}, {}),
    ({"type": "string", "format": "uuid", "maxLength": 36}, {}),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 5, "maxLength": 8}, {}),
    ({"type": "string", "minLength": 300}, {}),
    ({"type": "string", "allOf": [{"pattern": "^[a-z]"}, {"pattern": "[0-9]$"}]}, {}),
    ({"type": "string", "not": {"enum": ["a", "", "b"]}}, {}),
    ({"enum": ["a", "abc", "bb"], "pattern": "^a.", "type": "string"}, {}),
    ({"enum": ["red", "blue"]}, {}),
    ({"const": {"a": [1.0, 1e-7, 2.5]}}, {}),
    ({"type": "array", "minItems": 50, "items": number(minimum=0.05, maximum=0.95)}, {}),
    ({"allOf": [record({"a": {"type": "integer"}}), record({"a": {"minimum": 5}, "b": TEXT})]}, {}),
    (
        {
            **record({"c": {"enum": ["US", "DE"]}}),
            "if": {"properties": {"c": {"const": "US"}}},
            "then": {"required": ["zip"]},
            "else": {"required": ["plz"]},
        },
        {},
    ),
    ({**record({"card": {"type": "integer"}}), "dependentRequired": {"card": ["addr"]}}, {}),
    ({"type": "object", "propertyNames": {"enum": ["ab", "cd"]}, "minProperties": 1}, {}),
    # The first branch leads down without end.
    (
        {"$ref": "#/$defs/filter"},
        {
            "$defs": {
                "filter": {
                    "anyOf": [
                        record({"and": {"type": "array", "items": {"$ref": "#/$defs/filter"}}}),
                        record({"field": TEXT, "is": {"type": "integer"}}),
                    ]
                }
            }
        },
    ),
    (
        {"$ref": "#/$defs/node"},
        {
            "$defs": {
                "node": {
                    "anyOf": [
                        record(
                            {
                                "all": {
                                    "type": "array",
                                    "items": {"$ref": "#/$defs/node"},
                                    "minItems": 1,
                                }
                            }
                        ),
                        record({"field": TEXT}),
                    ]
                }
            }
        },
    ),
]


def is_instance(schema: Any, text: str) -> bool:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    formats = kind(schema, format_checker=_FORMATS).iter_errors(json.loads(text))
    has_formats = all(error.validator != "format" for error in formats)
    return has_formats and violations(json.dumps(schema), text) == ()


def dived(schema: Any, before: bytes = b"") -> bytes | None:
    language = of_schema(schema)
    matcher = language.matcher()
    for byte in before:
        matcher.advance(byte)
    found = dive(matcher, byte_vocabulary(), _ANY_LEN, language.hints.all(), before)
    return None if found is None else text_of(found, byte_vocabulary())


@pytest.mark.parametrize(("part", "more"), PARTS, ids=str)
def test_an_ordinary_schema_needs_no_search(part: dict[str, Any], more: dict[str, Any]) -> None:
    schema = {**record({"f": part, **AROUND}), **more}

    found = dived(schema)

    assert found is not None
    assert is_instance(schema, found.decode()), found


def test_a_text_is_completed_from_any_of_its_places() -> None:
    schema = record(
        {
            "name": {"type": "string", "pattern": "^[a-z]{3,8}$"},
            "day": DATE,
            "kind": {"enum": ["first", "second"]},
            "share": PROBABILITY,
            "list": {"type": "array", "items": record({"i": {"type": "integer"}}), "minItems": 1},
        }
    )
    text = b'{"name":"abcd","day":"2024-02-01","kind":"second","share":0.25,"list":[{"i":7}]}'

    for cut in range(len(text)):
        found = dived(schema, text[:cut])

        assert found is not None, text[:cut]
        assert is_instance(schema, (text[:cut] + found).decode()), (text[:cut], found)


def test_quotes_in_a_text_begin_and_end_no_string() -> None:
    schema = record({"a": TEXT, "b": {"enum": ["x", "y"]}})

    assert dived(schema, rb'{"a":"\"{[') == b'","b":"x"}'


def test_no_more_tokens_are_taken_than_there_are() -> None:
    language = of_schema(record({"a": {"const": "four"}}))
    text = b'{"a":"four"}'
    hints = language.hints.all()
    matcher = language.matcher()

    for max_len in (len(text) - 1, len(text)):
        found = dive(matcher, byte_vocabulary(), max_len, hints)
        assert (found is None) == (max_len < len(text))
        assert found is None or completes(matcher, byte_vocabulary(), found)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string"}, {"pattern": "^PT"}, {"format": "duration"}]},
        {"type": "string", "pattern": r"^(?:[a-z]*[0-9]){3}[a-f]{2}$", "minLength": 12},
    ],
    ids=str,
)
def test_what_no_dive_ends_is_found_by_a_search(schema: Any) -> None:
    state = OutputConstraintState(of_schema(schema), byte_vocabulary(), Budget(_ANY_LEN))

    assert 0 < state.needed_len < 40


HOSTILE: dict[str, Any] = {
    "choices": {"allOf": [{"anyOf": [{"minimum": i}, record({f"x{i}": TEXT})]} for i in range(9)]},
    "nested": record({"a": {"anyOf": [{"$ref": "#"}, {"type": "integer", "multipleOf": 7}]}}),
    "long strings": record({f"p{i}": {"type": "string", "minLength": 4_000 + i} for i in range(9)}),
    "many items": {"type": "array", "minItems": 5_000, "items": PROBABILITY},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_is_made_to_take_long_takes_little_time(name: str) -> None:
    language = of_schema(HOSTILE[name])
    hints = language.hints.all()
    began_s = time.thread_time()

    dive(language.matcher(), byte_vocabulary(), _ANY_LEN, hints)

    assert time.thread_time() - began_s < 1
