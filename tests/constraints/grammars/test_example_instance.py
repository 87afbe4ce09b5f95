"""Guessed instances of schemas: valid, short, and known before the first token."""

import json
import random
import time
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import ConstraintError
from constraints.grammars.example_instance import ExampleInstances
from constraints.grammars.example_merging import merged
from constraints.grammars.example_number import (
    exactly,
    example_number,
    is_in_bounds,
    written_number,
)
from constraints.grammars.schema_validation import violations
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget
from tests.constraints.cases import byte_vocabulary
from tests.constraints.grammars.rig import accepts, of_schema
from tests.constraints.grammars.test_schemas import any_object
from tests.constraints.grammars.test_schemas import any_schema as a_schema

_FORMATS = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid", "email"])
PROBABILITY = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
DATE = {"type": "string", "format": "date"}
TEXT = {"type": "string"}
# What stands around a part, so that a search would not come to the end by itself.
AROUND = {
    "when": {"type": "string", "format": "date-time"},
    "n": {"type": "integer", "minimum": 10},
    "l": {"type": "array", "items": TEXT, "minItems": 2},
}
_AFTER = ',"when":"2000-01-01T00:00:00Z","n":10,"l":["",""]}'


def record(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def number(**bounds: Any) -> dict[str, Any]:
    return {"type": "number", **bounds}


WHOLES: list[tuple[dict[str, Any], str]] = [
    (
        record({"confidence": PROBABILITY, "date": DATE, "label": TEXT}),
        '{"confidence":0.1,"date":"2000-01-01","label":""}',
    ),
    ({"type": "array", "minItems": 3, "items": PROBABILITY}, "[0.1,0.1,0.1]"),
    (
        {"type": "array", "minItems": 50, "items": number(minimum=0.05, maximum=0.95)},
        "[" + ",".join(["0.1"] * 50) + "]",
    ),
    (
        record(
            {
                "a": PROBABILITY,
                "b": number(minimum=-1.5, maximum=2.25, multipleOf=0.25),
                "c": {"type": "integer", "exclusiveMinimum": 10, "multipleOf": 5},
            }
        ),
        '{"a":0.1,"b":0,"c":15}',
    ),
    (
        record(
            {
                "account_id": {"type": "string", "format": "uuid"},
                "amount": number(exclusiveMinimum=0),
                "currency": {"enum": ["EUR", "USD"]},
                "when": DATE,
            }
        ),
        '{"account_id":"00000000-0000-0000-0000-000000000000","amount":1,"currency":"EUR",'
        '"when":"2000-01-01"}',
    ),
]
# The schema of one property, more of the whole schema, and the property's value.
PARTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (number(minimum=0.1, maximum=0.9), {}, "0.1"),
    (number(exclusiveMinimum=0, multipleOf=0.01, maximum=0.05), {}, "0.01"),
    (number(multipleOf=0.25, minimum=0.05, exclusiveMaximum=1), {}, "0.25"),
    (number(multipleOf=0.05, minimum=0.5, maximum=0.5), {}, "0.5"),
    (number(exclusiveMinimum=-1, exclusiveMaximum=0), {}, "-0.1"),
    (number(minimum=98.15, maximum=98.2), {}, "98.2"),
    ({"minimum": 0.5, "maximum": 0.7, "type": ["number", "string"], "minLength": 9}, {}, "0.5"),
    (
        {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer", "minimum": 1},
        {},
        "12",
    ),
    (
        {"allOf": [number(multipleOf=0.25), number(multipleOf=0.1, minimum=0.3, maximum=0.7)]},
        {},
        "0.5",
    ),
    (
        number(minimum=0, exclusiveMinimum=True, maximum=1),
        {"$schema": "http://json-schema.org/draft-04/schema#"},
        "1",
    ),
    (
        number(minimum=0, exclusiveMinimum=True, maximum=1, exclusiveMaximum=True),
        {"$schema": "http://json-schema.org/draft-04/schema#"},
        "0.1",
    ),
    ({"type": "integer", "not": {"enum": [0, 1]}}, {}, "2"),
    ({"type": "integer", "format": "uint8", "minimum": 7}, {}, "7"),
    ({"type": "string", "format": "byte", "minLength": 3}, {}, '"aaaa"'),
    ({"type": "string", "format": "relative-json-pointer"}, {}, '"0"'),
    ({"type": "string", "format": "duration", "pattern": "^PT"}, {}, '"PT0H"'),
    ({"type": "string", "format": "ipv6"}, {}, '"::"'),
    ({"type": "string", "format": "time"}, {}, '"00:00:00Z"'),
    ({"type": "string", "format": "uri", "pattern": "^https://"}, {}, '"https://a"'),
    ({"type": "string", "format": "uri", "minLength": 8, "maxLength": 2083}, {}, '"aaaaaa:a"'),
    ({"type": "string", "format": "email", "minLength": 8}, {}, '"aaa@a.aa"'),
    ({"type": "string", "format": "hostname", "minLength": 10}, {}, '"aaaaaaaaaa"'),
    ({"type": "string", "format": "ipv4", "minLength": 10}, {}, '"0.0.100.10"'),
    (
        {"type": "string", "format": "uuid", "maxLength": 36},
        {},
        '"' + "00000000-" + "0000-" * 3 + "0" * 12 + '"',
    ),
    ({"type": "string", "format": "date", "pattern": "^2024"}, {}, '"2024-01-01"'),
    (
        {"type": "string", "format": "date-time", "pattern": r"\+\d\d:30$"},
        {},
        '"0001-01-01t00:00:00+00:30"',
    ),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 5, "maxLength": 8}, {}, '"aaaaa"'),
    ({"type": "string", "not": {"enum": ["a", "", "b"]}}, {}, '"c"'),
    (
        {
            "type": "string",
            "allOf": [{"pattern": "[A-Z]"}, {"pattern": "[a-z]"}, {"pattern": "[0-9]"}],
            "minLength": 8,
            "maxLength": 8,
        },
        {},
        '"aaaaaa0A"',
    ),
    ({"type": "string", "enum": [1, "one"]}, {}, '"one"'),
    ({"enum": [1, 20, 300], "minimum": 15}, {}, "20"),
    ({"enum": ["a", "abc", "bb"], "pattern": "^a.", "type": "string"}, {}, '"abc"'),
    ({"anyOf": [{"const": 1}, {"const": "x"}], "type": "string"}, {}, '"x"'),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 2]}], "not": {"const": 2}}, {}, "3"),
    ({"type": ["string", "null"], "enum": ["a", None]}, {}, '"a"'),
    ({"const": {"a": [1.0, 1e-7, 2.5]}}, {}, '{"a":[1,0.0000001,2.5]}'),
    ({"$ref": "#foo"}, {"$defs": {"f": {"$anchor": "foo", "const": 12}}}, "12"),
    (
        {"$ref": "item.json"},
        {"$id": "http://e.x/root.json", "$defs": {"f": {"$id": "item.json", "const": 12}}},
        "12",
    ),
    (
        {"type": "array", "items": [{"type": "integer"}, TEXT], "minItems": 2},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        '[0,""]',
    ),
    (
        {"allOf": [record({"a": {"type": "integer"}}), record({"a": {"minimum": 5}, "b": TEXT})]},
        {},
        '{"a":5,"b":""}',
    ),
    (
        {
            "allOf": [
                record({"a": {"type": "integer", "minimum": 5}}),
                record({"a": number(maximum=9)}),
            ]
        },
        {},
        '{"a":5}',
    ),
    (
        {
            **record({"c": {"enum": ["US", "DE"]}}),
            "if": {"properties": {"c": {"const": "US"}}},
            "then": {"required": ["zip"]},
            "else": {"required": ["plz"]},
        },
        {},
        '{"c":"US","zip":0}',
    ),
    (
        {**record({"card": {"type": "integer"}}), "dependentRequired": {"card": ["addr"]}},
        {},
        '{"card":0,"addr":0}',
    ),
    (
        {
            **record({"card": {"type": "integer"}}),
            "dependentSchemas": {"card": record({"addr": TEXT})},
        },
        {},
        '{"card":0,"addr":""}',
    ),
    (
        {
            "type": "object",
            "properties": {"a": TEXT, "b": TEXT},
            "dependencies": {"a": ["b"]},
            "required": ["a"],
        },
        {},
        '{"a":"","b":""}',
    ),
    ({"type": "object", "not": {"required": ["a"]}}, {}, "{}"),
    ({"not": {"type": "number"}}, {}, '""'),
    (
        {
            "type": "object",
            "patternProperties": {"^[ab]": {"const": "a"}, "^c": {"const": "c"}},
            "additionalProperties": False,
            "required": ["cb"],
        },
        {},
        '{"cb":"c"}',
    ),
    (
        {"type": "object", "propertyNames": {"enum": ["ab", "cd"]}, "minProperties": 1},
        {},
        '{"ab":0}',
    ),
    (
        {"allOf": [record({"z": TEXT})], "properties": {"a": TEXT}, "required": ["a"]},
        {},
        '{"z":"","a":""}',
    ),
]
ALL = [
    *WHOLES,
    *[
        (record({"f": part, **AROUND}, **more), f'{{"f":{value}{_AFTER}')
        for part, more, value in PARTS
    ],
]


def guess(schema: Any) -> str | None:
    return ExampleInstances(schema, (",", ":")).guess()


def is_instance(schema: Any, text: str) -> bool:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    formats = kind(schema, format_checker=_FORMATS).iter_errors(json.loads(text))
    has_formats = all(error.validator != "format" for error in formats)
    return has_formats and violations(json.dumps(schema), text) == ()


@pytest.mark.parametrize(("schema", "text"), ALL, ids=str)
def test_an_ordinary_schema_has_a_short_guess_and_a_state_knows_it(schema: Any, text: str) -> None:
    assert guess(schema) == text
    assert is_instance(schema, text)
    language = of_schema(schema)
    assert accepts(language, text)
    assert OutputConstraintState(
        language, byte_vocabulary(), Budget(len(text.encode()))
    ).needed_len <= len(text)
    assert (
        OutputConstraintState(language, byte_vocabulary(), Budget(1 << 16)).needed_len
        <= len(text) + 2
    )


def test_what_is_guessed_of_a_random_schema_is_an_instance() -> None:
    draw = random.Random(0)
    for _ in range(150):
        made = a_schema(draw, 3)
        beside = {"$defs": {"other": any_object(draw, 1)}}
        whole = {**(made if isinstance(made, dict) else {}), **beside}
        text = guess(whole)
        try:
            language = of_schema(whole)
        except ConstraintError:
            continue
        assert text is not None, whole
        assert is_instance(whole, text), (whole, text)
        assert accepts(language, text), (whole, text)


def test_parts_of_the_document_have_guesses_of_their_own() -> None:
    example = ExampleInstances(
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": DATE}},
        (",", ":"),
    )
    assert example.guess() == "{}"
    part = example.document["allOf"][0]["properties"]["a"]
    assert example.of(part) == '"2000-01-01"'
    assert example.of(example.document) == "{}"


HOSTILE = {
    "choices": {"allOf": [{"anyOf": [{"minimum": i}, record({f"x{i}": TEXT})]} for i in range(60)]},
    "patterns of names": {
        "type": "object",
        "patternProperties": {f"^a(a|b)*a(a|b){{{i}}}$": {} for i in range(100, 164)},
        "required": ["a" * i for i in range(1_000)],
    },
    "formats with patterns": record(
        {
            f"p{i}": {"type": "string", "format": "uri", "pattern": f"(a|b)*a(a|b){{{i}}}$"}
            for i in range(200)
        }
    ),
    "patterns": {"allOf": [{"pattern": f"(a|b)*a(a|b){{{i}}}c"} for i in range(14)]},
    "long patterns": record(
        {f"p{i}": {"type": "string", "pattern": "(ab|cd)" * 100 + str(i)} for i in range(500)}
    ),
    "lists of values": {"allOf": [{"enum": [f"v{i}" for i in range(2_000)]} for _ in range(20)]},
    "steps": record(
        {f"p{i}": {"allOf": [number(multipleOf=1 + j / 1e4) for j in range(40)]} for i in range(30)}
    ),
    "long strings": record({f"p{i}": {"minLength": 40_000 + i} for i in range(1_000)}),
    "references": {
        "$defs": {
            "a": {"anyOf": [record({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}})] * 9},
            "b": {"anyOf": [record({"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#"}})] * 9},
        },
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_is_made_to_take_long_takes_little_time(name: str) -> None:
    began_s = time.thread_time()
    guess(HOSTILE[name])
    assert time.thread_time() - began_s < 1.5


def test_a_string_that_cannot_be_is_no_guess_though_it_is_shorter() -> None:
    dash = {"pattern": "-"}
    schema = {
        "anyOf": [
            {"type": "string", "allOf": [{"pattern": "^$"}, dash]},
            {"type": "string", "minLength": 5, "allOf": [{"pattern": "[0-9]{3}"}, dash]},
        ]
    }
    guess = ExampleInstances(schema, (",", ":")).guess()
    assert guess is not None
    jsonschema.validate(json.loads(guess), schema)


A, B = {"minimum": 1}, {"maximum": 5}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({}, A, A),
        ({"type": "number"}, {"type": "integer"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": ["null", "array"]}, {"type": "null"}),
        ({"type": "string"}, {"type": "object"}, None),
        ({"minimum": 1}, {"minimum": 3, "maximum": 9}, {"minimum": 3, "maximum": 9}),
        ({"multipleOf": 4}, {"multipleOf": 6}, {"multipleOf": [4, 6]}),
        (
            {"pattern": "a"},
            {"pattern": "b", "format": "uri"},
            {"pattern": ["a", "b"], "format": "uri"},
        ),
        ({"enum": [1, "a", True]}, {"enum": [True, 1.0]}, {"enum": [1, True]}),
        ({"const": 2}, {"enum": [1, 2]}, {"enum": [2]}),
        ({"const": 2}, {"const": 3}, None),
        ({"const": 0}, {"const": False}, None),
        ({"const": 2}, {"type": "integer"}, {"enum": [2], "type": "integer"}),
        (
            {"type": "object", "properties": {"a": False}},
            {"required": ["a"]},
            None,
        ),
        (
            {"properties": {"a": A, "b": A}},
            {"properties": {"c": B, "a": B}},
            {
                "properties": {"a": {"allOf": [A, B]}, "b": A, "c": B},
                "additionalProperties": True,
            },
        ),
        (
            {"properties": {"a": A}, "additionalProperties": False},
            {"properties": {"b": B}},
            {"properties": {"a": A, "b": False}, "additionalProperties": False},
        ),
        (
            {"patternProperties": {"^x": A}},
            {"patternProperties": {"^x": B}, "additionalProperties": B},
            {
                "properties": {},
                "patternProperties": {"^x": {"allOf": [A, B]}},
                "additionalProperties": B,
            },
        ),
        (
            {"prefixItems": [A], "items": False},
            {"items": B},
            {"prefixItems": [{"allOf": [A, B]}], "items": False},
        ),
    ],
    ids=str,
)
def test_both_hold(one: Any, other: Any, both: Any) -> None:
    assert merged(one, other) == both


BOUNDS = st.sampled_from([-20, -3, -1.5, -1, -0.25, 0, 0.05, 0.1, 0.5, 1, 2.25, 7, 1000])
STEPS = st.sampled_from([0.01, 0.25, 0.3, 1, 1.5, 4, 6])
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), BOUNDS),
        "multipleOf": st.lists(STEPS, min_size=1, max_size=2),
    },
)


@given(SCHEMAS, st.booleans())
def test_what_is_found_is_in_the_bounds_and_a_whole_number_if_there_is_one(
    schema: Any, is_whole: bool
) -> None:
    text = example_number(schema, is_whole=is_whole)
    near = [Fraction(each, 100) for each in range(-310, 311)]
    fitting = [each for each in near if is_in_bounds(float(each), schema)]
    whole = [each for each in fitting if each.denominator == 1]
    if text is None:
        assert (whole if is_whole else fitting) == []
        return
    assert is_in_bounds(float(text), schema)
    assert not is_whole or "." not in text
    assert all(abs(each) >= abs(Fraction(text)) for each in whole)
    assert "." not in text or whole == []


@given(BOUNDS, BOUNDS)
def test_without_a_step_no_number_has_fewer_digits(low: float, high: float) -> None:
    schema = {"exclusiveMinimum": low, "exclusiveMaximum": high}
    text = example_number(schema, is_whole=False)
    if low >= high:
        assert text is None
        return
    assert text is not None
    places = len(text.partition(".")[2])
    near = [Fraction(each, 10 ** max(places - 1, 0)) for each in range(-3000, 3000)]
    assert not places or not any(is_in_bounds(float(each), schema) for each in near)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "0"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, "0.1"),
        ({"exclusiveMinimum": -1, "exclusiveMaximum": 0}, "-0.1"),
        ({"minimum": 1e-7, "maximum": 3e-7}, "0.0000001"),
        ({"minimum": -12.5, "maximum": -12.25}, "-12.3"),
        ({"minimum": 10**30}, "1" + "0" * 30),
        ({"minimum": 1, "maximum": 0}, None),
        ({"multipleOf": 7, "exclusiveMinimum": 7, "exclusiveMaximum": 14}, None),
    ],
    ids=str,
)
def test_the_number_is_short(schema: Any, text: str | None) -> None:
    assert example_number(schema, is_whole=False) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1e5, "100000"),
        (1e-7, "0.0000001"),
        (-0.0, "-0"),
        (-2.5, "-2.5"),
        (1e22, "1" + "0" * 22),
    ],
)
def test_a_number_is_written_without_an_exponent(value: float, text: str) -> None:
    assert written_number(value) == text


def test_a_number_is_what_is_written_and_not_its_double() -> None:
    assert exactly(0.1) == Fraction(1, 10)
    assert is_in_bounds(19.99, {"multipleOf": 0.01})
