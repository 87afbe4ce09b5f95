"""Every keyword, by schemas with instances that are right and instances that are wrong."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from constraints.errors import Contradiction, Malformed, NotEnforced, TooComplex
from constraints.grammars.schema.reading import read
from constraints.grammars.schema_validation import violations
from constraints.spec import Whitespace
from tests.constraints.grammars.rig import (
    SchemaCase,
    accepts,
    accepts_value,
    of_schema,
    refused_cases,
    schema_cases,
    walk,
)

CASES = list(schema_cases())
REFUSED = list(refused_cases())
# JudgeResult by the package as well, where it has the same idea of the format.
CHECKED_FORMATS = jsonschema.FormatChecker(["date", "ipv4", "ipv6", "uuid", "email"])
# Their invalid instances are so by a format or draft that the package does not know.
OWN_JUDGEMENT = (
    "formats: ",
    "int32",
    "real: JSON Patch",
    "strings: a dot",
    "strings: code points",
    "strings: digits",
    "strings: words",
)


def by_name(case: SchemaCase) -> str:
    return case.name


def is_valid(schema: Any, value: Any) -> bool:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        return bool(kind(schema, format_checker=CHECKED_FORMATS).is_valid(value))
    except RecursionError:
        return False


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_instances_are_accepted_and_other_values_are_not(case: SchemaCase) -> None:
    language = of_schema(case.schema)
    assert [value for value in case.valid if not accepts_value(language, value)] == []
    assert [value for value in case.invalid if accepts_value(language, value)] == []


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_the_corpus_is_right(case: SchemaCase) -> None:
    if any(each in case.name for each in OWN_JUDGEMENT):
        return
    assert all(is_valid(case.schema, value) for value in case.valid)
    assert not any(is_valid(case.schema, value) for value in case.invalid)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_texts_drawn_from_masks_are_instances(case: SchemaCase) -> None:
    draw = np.random.default_rng(7)
    if "code points" in case.name:
        return  # the package reads \\ud83d\\ude00 as two characters
    for whitespace in Whitespace:
        text = walk(of_schema(case.schema, whitespace=whitespace), draw, 60)
        assert text is None or is_valid(case.schema, json.loads(text)), text


@pytest.mark.parametrize(("name", "schema", "pointer"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_is_not_enforced_is_refused_with_its_pointer(
    name: str, schema: Any, pointer: str
) -> None:
    with pytest.raises(NotEnforced) as refusal:
        of_schema(schema)
    assert refusal.value.pointer == pointer
    assert str(refusal.value).startswith(pointer or "the schema")


# Beside a `$ref` in a circle its siblings are left out, not itself.
LENIENT = [each for each in REFUSED if "control" not in each[0] and "circle" not in each[0]]


@pytest.mark.parametrize(("name", "schema", "pointer"), LENIENT, ids=[name for name, *_ in LENIENT])
def test_a_lenient_schema_leaves_it_out_and_says_so(name: str, schema: Any, pointer: str) -> None:
    language = of_schema(schema, lenient=True)
    assert any(each.startswith(pointer) for each in language.not_enforced)


def test_a_lenient_schema_still_enforces_the_rest() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    language = of_schema(schema, lenient=True)
    assert accepts(language, "[1,1]")
    assert not accepts(language, '["a"]')
    assert language.not_enforced == ("/uniqueItems",)


def test_a_strict_schema_leaves_nothing_out() -> None:
    assert of_schema({"type": "integer"}, lenient=True).not_enforced == ()


def test_the_finished_text_of_a_lenient_schema_is_judged() -> None:
    schema = json.dumps({"properties": {"a/b": {"uniqueItems": True}}})
    assert violations(schema, '{"a/b": [1, 2]}') == ()
    (violation,) = violations(schema, '{"a/b": [1, 1]}')
    assert violation.pointer == "/a~1b"
    assert violation.schema_pointer == "/properties/a~1b/uniqueItems"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('{"$ref": "http://localhost:1/x"}', "1"),
        ('{"$ref": "#/nowhere"}', "1"),
        ('{"$ref": "#"}', "1"),
        ('{"pattern": "("}', '"a"'),
        ("{}", "{"),
    ],
)
def test_what_cannot_be_judged_is_a_violation(schema: str, text: str) -> None:
    assert len(violations(schema, text)) == 1


NARROW: dict[str, Any] = {"type": "integer", "minimum": 3, "maximum": 2}
OPEN: dict[str, Any] = {"type": "object", "title": "t", "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "place", "parts"),
    [
        ({"type": "string", "const": 1}, "the schema", [{"type": "string"}, {"const": 1}]),
        (
            OPEN | {"properties": {"a": NARROW | {"title": "n"}}},
            "/properties/a",
            [{"type": "integer"}, {"minimum": 3}, {"maximum": 2}],
        ),
        (
            {"allOf": [{"type": "string"}, {"minLength": 1}, {"type": "null"}]},
            "the schema",
            [{"type": "string"}, {"type": "null"}],
        ),
        (
            {"type": "string", "format": "date", "maxLength": 3, "minLength": 2},
            "the schema",
            [{"type": "string"}, {"format": "date"}, {"maxLength": 3}],
        ),
        (
            {"type": "string", "minLength": 1, "not": {"type": "string"}},
            "the schema",
            [{"type": "string"}, {"not": {"type": "string"}}],
        ),
        (
            OPEN | {"properties": {"b": {}}, "additionalProperties": False},
            "the schema",
            [
                {"type": "object"},
                {"required": ["a"]},
                {"properties": {"b": {}}, "additionalProperties": False},
            ],
        ),
        (
            {
                "items": {"$ref": "#/$defs/n"},
                "type": "array",
                "minItems": 1,
                "$defs": {"n": NARROW},
            },
            "/$defs/n",
            [{"type": "integer"}, {"minimum": 3}, {"maximum": 2}],
        ),
        ({"$ref": "#", "title": "t"}, "the schema", [{"$ref": "#"}]),
        ({"enum": []}, "the schema", [{"enum": []}]),
        (False, "the schema", [False]),
    ],
)
def test_a_contradiction_is_told_with_its_place_and_no_part_too_many(
    schema: Any, place: str, parts: list[Any]
) -> None:
    with pytest.raises(Contradiction) as contradiction:
        of_schema(schema)
    assert str(contradiction.value).startswith(f"{place}: nothing satisfies")
    assert [json.loads(part) for part in contradiction.value.parts] == parts


def test_of_a_thousand_parts_the_two_are_told_that_exclude_each_other() -> None:
    bounds = [{"minimum": number} for number in range(1000)]
    with pytest.raises(Contradiction) as contradiction:
        of_schema({"type": "number", "allOf": [*bounds, {"maximum": 17}]})
    parts = [json.loads(part) for part in contradiction.value.parts]
    assert parts == [{"type": "number"}, {"minimum": 18}, {"maximum": 17}]


def test_a_definition_without_instances_may_be_left_out() -> None:
    empty = {"type": "integer", "minimum": 3, "maximum": 2}
    schema = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": empty}}
    language = of_schema({"type": "object", "additionalProperties": False, **schema})
    assert accepts(language, "{}")
    assert not accepts(language, '{"a":2}')
    with pytest.raises(Contradiction):
        of_schema({"type": "object", "required": ["a"], **schema})


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"$ref": "#"},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
    ],
)
def test_what_has_no_finite_instance_is_a_contradiction(schema: Any) -> None:
    with pytest.raises(Contradiction):
        of_schema(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"minimum": "a"}, "/minimum"),
        ({"properties": {"a": 1}}, "/properties"),
        ({"items": {"type": "strnig"}}, "/items/type"),
        ({"required": "a"}, "/required"),
        ({"anyOf": []}, "/anyOf"),
        ({"pattern": "("}, "/pattern"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"minLength": -1}, "/minLength"),
        (3, "a schema is an object"),
        ({"$id": "http://a/", "$ref": "http://["}, r"/\$ref: 'http://\[' is no address"),
    ],
)
def test_a_wrong_value_of_a_keyword_is_malformed(schema: Any, place: str) -> None:
    with pytest.raises(Malformed, match=place):
        of_schema(schema)


def test_annotations_and_keywords_of_others_say_nothing() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "description": "d",
        "examples": [1],
        "default": 2,
        "deprecated": True,
        "x-order": 1,
        "x-guidance": {"whitespace_pattern": ".*", "lenient": True},
        "markdownDescription": "m",
        "type": "integer",
    }
    language = of_schema(schema)
    assert accepts(language, "1")
    assert not accepts(language, "x")


def test_nobody_can_set_the_engines_options() -> None:
    language = of_schema(
        {"x-guidance": {"item_separator": "x", "coerce_one_of": True}, "type": "array"}
    )
    assert accepts(language, "[1,2]")
    assert not accepts(language, "[1x2]")


ONE_KEY = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("whitespace", "right", "wrong"),
    [
        (Whitespace.COMPACT, ['{"a":1,"b":[1,2]}'], ['{"a": 1}', '{ "a":1}']),
        (Whitespace.SPACED, ['{"a": 1, "b": [1, 2]}', '{"a": 1}'], ['{"a":1}', '{"a": 1,"b": 2}']),
        (
            Whitespace.FLEXIBLE,
            ['{"a":1}', '{ "a" :\n\t1 }', '{\r\n  "a":\t1\n}', "{\n" + " " * 400 + '"a":1}'],
            [
                *('{"a":  1}', '{\n\n"a":1}', '{ \n"a":1}', "{\n" + " " * 401 + '"a":1}'),
                *(' {"a":1}', '{"a":1} ', '{"a":\u00a01}'),
            ],
        ),
    ],
)
def test_whitespace_is_as_asked(whitespace: Whitespace, right: list[str], wrong: list[str]) -> None:
    language = of_schema(ONE_KEY, whitespace=whitespace)
    assert [text for text in right if not accepts(language, text)] == []
    assert [text for text in wrong if accepts(language, text)] == []


def test_an_escape_gives_no_key_a_second_value() -> None:
    language = of_schema(ONE_KEY)
    assert accepts(language, '{"a":1,"c":"x"}')
    assert not accepts(language, '{"a":1,"\\u0061":"x"}')
    assert not accepts(language, '{"a":1,"a":"x"}')


def test_control_characters_may_be_escaped_where_no_key_can_be_respelled() -> None:
    assert accepts(of_schema({"type": "string"}), '"\\u0001"')
    assert not accepts(of_schema(ONE_KEY), '{"a":1,"b":"\\u0001"}')


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1, "a": 2}', "twice"),
        ('"\\ud800"', "half"),
    ],
)
def test_a_text_that_is_no_schema_is_malformed(text: str, what: str) -> None:
    with pytest.raises(Malformed, match=what):
        read(text)


def test_a_schema_that_is_nested_too_deeply_is_too_complex() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(120):
        schema = {"items": schema}
    with pytest.raises(TooComplex, match="deep"):
        of_schema(schema)
