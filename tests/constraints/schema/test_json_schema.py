"""Schemas: every keyword by right and wrong instances.

Whatever masks let through is an instance, and contradictions have none.
"""

import json
import random
import re
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, Malformed, NotEnforced, TooComplex
from constraints.regex.writing import between
from constraints.schema.reading import read
from constraints.schema.references import spelt_out
from constraints.schema.validation import violations
from constraints.spec import Whitespace
from tests.constraints.grammars.rig import (
    SchemaCase,
    accepts,
    accepts_value,
    of_schema,
    schema_cases,
    walk,
)

CASES = list(schema_cases())
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
    whitespace = random.Random(case.name).choice(list(Whitespace))
    text = walk(of_schema(case.schema, whitespace=whitespace), np.random.default_rng(7), 40)
    # The package reads an escaped pair of surrogates as two characters.
    assert text is None or "code points" in case.name or is_valid(case.schema, json.loads(text))


def test_the_corpus_is_right() -> None:
    judged = [case for case in CASES if not any(each in case.name for each in OWN_JUDGEMENT)]
    for case in judged:
        assert all(is_valid(case.schema, value) for value in case.valid), case.name
        assert not any(is_valid(case.schema, value) for value in case.invalid), case.name


def test_a_lenient_schema_still_enforces_the_rest() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "$dynamicRef": "#a"}
    language = of_schema(schema, lenient=True)
    assert accepts(language, "[1,1]")
    assert not accepts(language, '["a"]')
    assert language.not_enforced == ("/$dynamicRef",)


def test_of_a_lenient_schema_at_least_the_type_is_enforced() -> None:
    far = {"type": "string", "allOf": [{"pattern": "a.{600}$"}, {"pattern": "b.{600}$"}]}
    schema = {"type": "object", "properties": {"p1": far}}
    with pytest.raises(TooComplex):
        of_schema(schema)
    language = of_schema(schema, lenient=True)
    assert language.not_enforced == ("",)
    assert accepts(language, '{"p1":7}')
    assert not accepts(language, "[]")


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


def test_of_a_thousand_parts_the_first_are_told() -> None:
    bounds = [{"minimum": number} for number in range(1000)]
    with pytest.raises(Contradiction, match="and 982 others"):
        of_schema({"type": "number", "allOf": [*bounds, {"maximum": 17}]})


def test_a_definition_without_instances_may_be_left_out() -> None:
    empty = {"type": "integer", "minimum": 3, "maximum": 2}
    schema = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": empty}}
    language = of_schema({"type": "object", "additionalProperties": False, **schema})
    assert accepts(language, "{}")
    assert not accepts(language, '{"a":2}')
    with pytest.raises(Contradiction):
        of_schema({"type": "object", "required": ["a"], **schema})


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
            Whitespace.OPTIONAL,
            ['{"a": 1, "b": [1, 2]}', '{"a":1,"b":[1,2]}', '{"a": 1,"b":[1, 2]}'],
            ['{"a":  1}', '{"a" : 1}', '{ "a": 1}'],
        ),
        (
            Whitespace.FLEXIBLE,
            [
                *('{"a":1}', '{ "a" :\n\t1 }', '{\r\n  "a":\t1\n}'),
                *("{\n" + " " * 120 + '"a":1}', "{\n" + "\t" * 30 + '"a":1}'),
            ],
            [
                *('{"a":  1}', '{\n\n"a":1}', '{ \n"a":1}', "{\n" + " " * 121 + '"a":1}'),
                *("{\n" + "\t" * 31 + '"a":1}', '{\n \t"a":1}', '{\n\t "a":1}'),
                *(' {"a":1}', '{"a":1} ', '{"a":\u00a01}'),
            ],
        ),
    ],
)
def test_whitespace_is_as_asked(whitespace: Whitespace, right: list[str], wrong: list[str]) -> None:
    language = of_schema(ONE_KEY, whitespace=whitespace)
    assert [text for text in right if not accepts(language, text)] == []
    assert [text for text in wrong if accepts(language, text)] == []


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("options", "right", "wrong"),
    [
        (
            [{**TEXT, "format": "date"}, {**TEXT, "format": "date-time"}],
            ["2024-02-29", "2024-02-29T10:00:00Z"],
            ["2024-02-30", "today"],
        ),
        ([{**TEXT, "pattern": "^A"}, {**TEXT, "pattern": "^B"}], ["A", "Bc"], ["cA", ""]),
        ([{**TEXT, "pattern": "^A"}, {"enum": ["B", "cA"]}], ["Ax", "cA"], ["c", "Bx"]),
        ([{**TEXT, "maxLength": 3}, {"pattern": "^[a-z]{4,}$", **TEXT}], ["", "abcd"], ["1234"]),
    ],
)
def test_strings_of_a_one_of_may_differ_by_what_they_look_like(
    options: list[Any], right: list[str], wrong: list[str]
) -> None:
    keyed = [{"type": "object", "properties": {"k": each}, "required": ["k"]} for each in options]
    for schema, wrap in (({"oneOf": options}, "{}"), ({"oneOf": keyed}, '{{"k":{}}}')):
        language = of_schema(schema)
        assert all(accepts(language, wrap.format(json.dumps(text))) for text in right)
        assert not any(accepts(language, wrap.format(json.dumps(text))) for text in wrong)


@pytest.mark.parametrize("index", ["01", "00", "+1", "-", "1e0", "١", "2"])
def test_a_pointer_counts_items_as_the_standard_does(index: str) -> None:
    options = {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}
    right = {"$ref": "#/$defs/a/anyOf/1", "$defs": options}
    assert accepts(of_schema(right), "7")
    with pytest.raises(NotEnforced, match="leads to no schema") as refusal:
        of_schema({**right, "$ref": f"#/$defs/a/anyOf/{index}"})
    assert refusal.value.pointer == "/$ref"


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


SIZES = ("8", "16", "32", "64", "128", "")
INTEGERS = [f"{kind}{size}" for kind in ("int", "uint") for size in SIZES]


@pytest.mark.parametrize("name", INTEGERS)
def test_formats_of_integers_are_ranges(name: str) -> None:
    bits, is_signed = int(name.lstrip("uint") or 64), name.startswith("i")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    # Integers end where doubles are exact.
    low, high = max(low, -(2**53)), min(high, 2**53)
    for kind in ("integer", "number"):
        language = of_schema({"type": kind, "format": name})
        assert all(accepts_value(language, value) for value in (low, 0, 1, high))
        assert not any(accepts_value(language, value) for value in (low - 1, high + 1, 0.5))


@pytest.mark.parametrize("name", INTEGERS)
def test_formats_of_integers_may_be_of_digits_in_a_string(name: str) -> None:
    bits, is_signed = int(name.lstrip("uint") or 64), name.startswith("i")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    right = [str(low), "0", "1", str(high), *(["-1"] if is_signed else [])]
    wrong = [str(low - 1), str(high + 1), "", "01", "-0", "+1", "1.0", "1e1", "a", " 1"]
    language = of_schema({"type": "string", "format": name})
    assert [text for text in right if not accepts_value(language, text)] == []
    assert [text for text in wrong if accepts_value(language, text)] == []
    assert not accepts_value(language, 1)
    either = of_schema({"type": ["integer", "string"], "format": name})
    assert accepts_value(either, 1)
    assert accepts_value(either, "1")
    assert not accepts_value(either, high + 1 if bits < 64 else 0.5)
    any_type = of_schema({"format": name})
    others: list[Any] = [None, True, [], {}, 1, "1"]
    assert all(accepts_value(any_type, value) for value in others)
    assert not any(accepts_value(any_type, value) for value in (0.5, "a"))


EXPONENTS = ["1e-6", "1e-06", "1E+06", "1e0", "2.50e00"]


@pytest.mark.parametrize("schema", [{"type": "number"}, {}, {"type": "number", "format": "float"}])
def test_numbers_without_bounds_may_have_any_exponent(schema: Any) -> None:
    language = of_schema(schema)
    assert [text for text in EXPONENTS if not accepts(language, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "minimum": -5},
        {"type": "number", "multipleOf": 0.5},
        {"type": "integer"},
        {"enum": [1e-6, 1e6, 1, 2.5]},
    ],
)
def test_other_numbers_have_no_exponent(schema: Any) -> None:
    language = of_schema(schema)
    assert accepts(language, "1")
    assert [text for text in EXPONENTS if accepts(language, text)] == []


def test_a_listed_number_stands_in_decimals() -> None:
    assert accepts(of_schema({"const": 1e-6}), "0.000001")
    assert accepts(of_schema({"const": 1e6}), "1000000")


@pytest.mark.parametrize(
    ("whole", "first", "before"),
    [
        (0, "0.00000000000001", "0.000000000000009"),
        (100, "100.000000000001", "100.0000000000009"),
    ],
)
def test_a_narrow_range_begins_15_digits_behind_the_number_it_leaves_out(
    whole: int, first: str, before: str
) -> None:
    above = {"type": "number", "exclusiveMinimum": whole, "maximum": whole + 0.5}
    below = {"type": "number", "exclusiveMaximum": -whole, "minimum": -whole - 0.5}
    for language, sign in ((of_schema(above), ""), (of_schema(below), "-")):
        assert accepts(language, f"{sign}{first}")
        assert not accepts(language, f"{sign}{before}")


@pytest.mark.parametrize(
    "beside",
    [
        {"properties": {"b": {"type": "number", "maximum": 0.5}}},
        {"properties": {"b": {"items": {"maximum": 0.5}}}},
        {"allOf": [{"properties": {"b": {"$ref": "#/$defs/half"}}}]},
    ],
)
def test_a_bound_of_another_value_moves_no_end(beside: dict[str, Any]) -> None:
    above = {"type": "object", "properties": {"a": {"type": "number", "exclusiveMinimum": 0}}}
    half = {"$defs": {"half": {"type": "number", "maximum": 0.5}}}
    language = of_schema({"allOf": [above, beside], **half})
    assert accepts(language, '{"a":0.00000000000000000001}')
    assert not accepts(language, '{"a":0}')


@pytest.mark.parametrize(
    "parts",
    [
        [{"a": {"$ref": "#/$defs/above"}}, {"a": {"maximum": 0.5}}],
        [{"a": {"anyOf": [{"$ref": "#/$defs/above"}]}}, {"a": {"maximum": 0.5}}],
        [{"a": {"items": {"$ref": "#/$defs/above"}}}, {"a": {"prefixItems": [{"maximum": 0.5}]}}],
    ],
)
def test_bounds_that_meet_in_one_value_are_both_kept(parts: list[Any]) -> None:
    above = {"$defs": {"above": {"type": "number", "exclusiveMinimum": 0}}}
    language = of_schema({"allOf": [{"properties": each} for each in parts], **above})
    is_list = "items" in parts[0]["a"]
    assert accepts_value(language, {"a": [0.25] if is_list else 0.25})
    assert not accepts_value(language, {"a": [0] if is_list else 0})


def test_a_bound_of_any_other_key_counts_for_all() -> None:
    language = of_schema(
        {
            "allOf": [
                {"properties": {"a": {"type": "number", "exclusiveMinimum": 0}}},
                {"additionalProperties": {"maximum": 0.5}},
            ]
        }
    )
    assert accepts_value(language, {"a": 0.25})
    assert not accepts_value(language, {"a": 0})


sizes = st.one_of(st.integers(0, 1200), st.integers(0, 10**18))


@given(sizes, sizes, sizes)
def test_a_range_has_its_numbers(one: int, other: int, number: int) -> None:
    low, high = min(one, other), max(one, other)
    assert (re.fullmatch(between(low, high), str(number)) is not None) is (low <= number <= high)


@given(st.integers(0, 300), st.integers(0, 300))
def test_around_its_bounds_nothing_is_missed(one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    pattern = re.compile(between(low, high))
    found = [number for number in range(1100) if pattern.fullmatch(str(number))]
    assert found == list(range(low, high + 1))


BY_PATTERN: dict[str, Any] = {
    "type": "object",
    "patternProperties": {r"^\s+$": {"type": ["integer", "string"]}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "declared",
    [
        {"properties": {"\t": {"const": 1}}},
        {"properties": {"\t": {"const": 1}}, "required": ["\t"]},
        {"required": ["\t"]},
    ],
)
@pytest.mark.parametrize("wrong", ['{"\\u0009":"x"}', '{"\\t":1,"\\u0009":"x"}'])
def test_an_escape_makes_no_declared_key_one_of_a_pattern(
    declared: dict[str, Any], wrong: str
) -> None:
    for schema in (BY_PATTERN | declared, {"allOf": [{"type": "object"}, BY_PATTERN | declared]}):
        language = of_schema(schema)
        assert accepts(language, '{"\\t":1}')
        assert not accepts(language, wrong)


def test_a_key_that_is_refused_is_refused_with_an_escape_as_well() -> None:
    language = of_schema(BY_PATTERN | {"properties": {"\t": False}})
    assert accepts(language, '{"\\n":1}')
    assert not accepts(language, '{"\\u0009":1}')


@pytest.mark.parametrize("name", ["a", "é", "/", '"', "\\", "\x85"])
def test_keys_of_patterns_have_escapes_of_control_characters_alone(name: str) -> None:
    declared = {"patternProperties": {"": {}}, "properties": {name: {"const": 1}}}
    language = of_schema(BY_PATTERN | declared)
    assert accepts(language, '{"\\u0009":2}')
    assert not accepts(language, f'{{"\\u{ord(name):04x}":2}}')
    assert not accepts(language, f'{{"\\{name}":2}}')


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "nullable": True, "maxLength": 1}, ["a", None], ["ab", 1]),
        ({"type": "string", "nullable": False}, ["a"], [None]),
        ({"type": ["integer", "null"], "nullable": True}, [1, None], ["a"]),
        ({"type": "string", "enum": ["a"], "nullable": True}, ["a"], [None, "b"]),
        ({"type": "string", "enum": ["a", None], "nullable": True}, ["a", None], ["b"]),
        (
            {
                "allOf": [{"$ref": "#/$defs/n"}],
                "nullable": True,
                "$defs": {"n": {"type": "number"}},
            },
            *([1.5, None], ["a"]),
        ),
    ],
)
def test_nullable_adds_null(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    language = of_schema(schema)
    judge = jsonschema.Draft202012Validator(spelt_out(schema))

    for value in (*right, *wrong):
        assert accepts_value(language, value) is judge.is_valid(value) is (value in right), value


@pytest.mark.parametrize(
    ("bounds", "num_arrays"),
    [({}, 16), ({"minItems": 1}, 15), ({"maxItems": 1}, 4), ({"minItems": 4}, 0)],
)
@pytest.mark.parametrize("is_part", [False, True])
def test_a_set_of_listed_values_has_each_once(
    bounds: dict[str, int], num_arrays: int, is_part: bool
) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"]}, **bounds}
    arrays = [list(each) for size in range(5) for each in product(["a", "b", "c"], repeat=size)]
    if num_arrays == 0:
        with pytest.raises(Contradiction):
            of_schema(schema, is_part=is_part)
        return
    language = of_schema(schema, is_part=is_part)

    accepted = [each for each in arrays if accepts_value(language, each)]
    assert accepted == [
        each for each in arrays if jsonschema.Draft202012Validator(schema).is_valid(each)
    ]
    assert len(accepted) == num_arrays


@pytest.mark.parametrize(
    "keyword",
    ["readonly", "decription", "Id", "$deprecated", "comment2", "definition", "defualt", "_title"],
)
def test_a_typo_of_an_annotation_is_named_and_does_no_harm(keyword: str) -> None:
    language = of_schema({"type": "integer", keyword: "x"})
    assert language.not_enforced == (f"/{keyword}",)
    assert accepts(language, "1")
    assert accepts(of_schema({"not": {"type": "null", keyword: "x"}}), "1")


@pytest.mark.parametrize("keyword", ["contentEncoding", "contentMediaType"])
def test_what_a_string_is_encoded_in_is_named_as_not_enforced(keyword: str) -> None:
    language = of_schema({"type": "string", keyword: "base64"})
    assert language.not_enforced == (f"/{keyword}",)


def test_gemini_writes_types_in_capitals_and_an_order_of_keys() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "a": {"type": "STRING", "format": "enum", "enum": ["x", "y"], "nullable": True},
            "b": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1"},
        },
        "required": ["a", "b"],
        "propertyOrdering": ["b", "a"],
    }
    language = of_schema(schema)
    assert accepts(language, '{"b":[1],"a":"x"}')
    assert not accepts(language, '{"a":"x","b":[1]}')
    assert not accepts(language, '{"b":[],"a":"x"}')
    assert not accepts(language, '{"b":["1"],"a":"x"}')
    assert violations(json.dumps(schema), '{"b": [1], "a": "y"}') == ()
    assert len(violations(json.dumps(schema), '{"b": ["1"], "a": "y"}')) == 1


def test_unknown_formats_and_keywords_are_named_and_enforce_nothing() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "slug", "pattern": "^[a-z]$"},
            "b": {"type": "string", "format": "postcode", "_own": 1, "x-ui": 2, "X-y": 3},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    language = of_schema(schema)

    assert language.not_enforced == (
        "/properties/b/format",
        "/properties/b/_own",
        "/properties/b/x-ui",
        "/properties/b/X-y",
    )
