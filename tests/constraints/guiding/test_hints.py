"""Hints at completions, read off a constraint's source: the first at once, others on demand."""

import json
import time
from typing import Any

import jsonschema
import pytest

from constraints.grammars.json_schema import prepare
from constraints.grammars.limits import LIMITS
from constraints.grammars.source_hints import MAX_HINTS, MAX_INSTANCES, MAX_INSTANCES_LEN, hints_of
from constraints.guiding.completion import CompletionHints
from constraints.spec import ConstraintSpec, Kind, Whitespace
from tests.constraints.cases import SCHEMAS, record


def of_schema(schema: Any, whitespace: Whitespace = Whitespace.FLEXIBLE) -> tuple[bytes, ...]:
    return hints_of(ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema), whitespace)).all()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_first_hint_of_a_schema_is_an_instance(name: str) -> None:
    jsonschema.validate(json.loads(of_schema(SCHEMAS[name])[0]), SCHEMAS[name])


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        (record({"a": {"type": "string"}}), b'{"a":""}'),
        ({"enum": ["long", "x", 12345]}, b'"x"'),
        ({"type": "string", "allOf": [{"pattern": "b$"}, {"pattern": "^a"}]}, b'"ab"'),
        (
            {"type": "object", "propertyNames": {"pattern": "^x"}, "minProperties": 1},
            b'{"x":0}',
        ),
    ],
    ids=str,
)
def test_instances_are_small(schema: Any, instance: bytes) -> None:
    assert of_schema(schema)[0] == instance


def test_whitespace_is_written_as_it_is_asked_for() -> None:
    schema = record({"a": {"const": 1}, "b": {"const": 2}})
    assert of_schema(schema, Whitespace.SPACED)[0] == b'{"a": 1, "b": 2}'


def test_parts_are_hints_as_well() -> None:
    schema = record(
        {"at": {"type": "string", "format": "date"}, "x": {"pattern": "(?=y)", "type": "string"}}
    )
    assert of_schema(schema) == (b'"2000-01-01"',)


def test_what_the_least_instance_does_not_meet_has_a_hint_too() -> None:
    item, branch = record({"i": {"type": "string"}}), record({"longer": {"type": "string"}})
    schema = record(
        {
            "list": {"type": "array", "items": item},
            "either": {"anyOf": [{"type": "null"}, branch]},
            "day": {"type": "string", "format": "date"},
        },
        ["list", "either"],
    )
    assert of_schema(schema) == (
        b'{"list":[],"either":null}',
        *(b'""', b'{"i":""}', b'"2000-01-01"', b'{"longer":""}'),
        b'{"list":[],"either":null,"day":"2000-01-01"}',
    )


def test_schemas_inside_of_a_grammar_have_hints_and_no_literals() -> None:
    schema = json.dumps(record({"a": {"type": "string"}, "b": {"const": 1}}))
    spec = ConstraintSpec(Kind.LARK, f'start: "call " %json {schema}', Whitespace.SPACED)
    assert hints_of(spec).all() == (b"call ", b'""', b'{"a": "", "b": 1}')


def test_hints_of_many_parts_are_bounded() -> None:
    parts = {f"p{index}": {"const": "x" * 2_000 + str(index)} for index in range(300)}
    hints = of_schema({"type": "object", "properties": parts})
    assert hints[0] == b"{}"
    assert sum(map(len, hints[1:])) <= MAX_INSTANCES_LEN
    parts = {f"p{index}": {"const": str(index)} for index in range(300)}
    assert len(of_schema({"type": "object", "properties": parts})) <= MAX_INSTANCES + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": 5},
        {"enum": 5},
        {"minimum": "x"},
        {"required": 7},
        [1],
        {"$ref": 3},
        False,
    ],
    ids=str,
)
def test_a_schema_without_sense_has_few_hints_and_no_error(schema: Any) -> None:
    assert len(of_schema(schema)) <= 1


def test_schemas_that_grow_when_they_are_written_out_cost_little() -> None:
    fans = {
        f"d{i}": record({"a": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"$ref": f"#/$defs/d{i + 1}"}})
        for i in range(30)
    }
    nested: Any = {"type": "null"}
    for _ in range(8):
        nested = {"type": "array", "items": nested, "minItems": 1000}
    choices = {"allOf": [{"anyOf": [{"minimum": j} for j in range(30)]} for _ in range(10)]}
    began = time.thread_time()
    for schema in ({"$defs": {**fans, "d30": {}}, "$ref": "#/$defs/d0"}, nested, choices):
        assert all(len(hint) < 60_000 for hint in of_schema(schema))
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("[a-z]+xyz", (b"axyz", b"xyz")),
        (r"ab+c\.d", (b"abc.d", b"c.d", b"a", b"b")),
        ("(foo|bar[0-9]{4}-end)", (b"foo", b"-end", b"bar")),
        (r"\d+[^x]*", (b"0",)),
        (r"\b[a-z]*xyz", (b"xyz",)),
    ],
)
def test_a_pattern_hints_at_a_whole_text_and_at_its_plain_characters(
    text: str, hints: tuple[bytes, ...]
) -> None:
    assert hints_of(ConstraintSpec(Kind.REGEX, text)).all() == hints


def test_a_grammar_hints_at_its_literals() -> None:
    text = 'start: "BEGIN " NAME " END"\nNAME: /[a-z]+_id/\n'
    assert hints_of(ConstraintSpec(Kind.LARK, text)).all() == (b"BEGIN ", b" END", b"a_id", b"_id")


def test_a_choice_hints_at_its_shortest_strings() -> None:
    choices = json.dumps(["x" * length for length in range(40, 0, -1)])
    hints = hints_of(ConstraintSpec(Kind.CHOICE, choices)).all()
    assert hints[0] == b"x"
    assert len(hints) == MAX_HINTS


def test_a_word_in_either_case_is_a_hint_without_what_groups_it() -> None:
    pattern = "(?s:.*)(?:[fF][oO][xX]|[kK\u212a]a[^b][a-z]+)(?P<end>i+)(?s:.*)"
    hints = hints_of(ConstraintSpec(Kind.REGEX, pattern)).all()
    assert set(hints) == {b"foxi", b"fox", b"ka", b"i"}


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec(
            Kind.REGEX, "|".join(chr(0x4E00 + i) + chr(0x5E00 + i) for i in range(6_000))
        ),
        ConstraintSpec(Kind.REGEX, "(?i)" + "|".join(f"при{i}вет" for i in range(2_500))),
        ConstraintSpec(Kind.REGEX, r"\W" * 20_000),
        ConstraintSpec(Kind.REGEX, "a" * 900_000),
        ConstraintSpec(Kind.LARK, 'start: "a"\n// ' + "/[ab]{50000}/ " * 3_000),
        ConstraintSpec(
            Kind.JSON_SCHEMA,
            json.dumps(
                {
                    "properties": {
                        f"p{i}": {"type": "string", "pattern": "ab|" * 300 + "c", "minLength": i}
                        for i in range(40)
                    },
                    "required": [f"p{i}" for i in range(40)],
                }
            ),
        ),
    ],
    ids=lambda spec: spec.text[:20],
)
def test_hints_take_little_time(spec: ConstraintSpec) -> None:
    began_s = time.thread_time()
    hints_of(spec).all()
    assert time.thread_time() - began_s < 2


@pytest.mark.parametrize(
    "schema", ['{"multipleOf":1e400}', '{"enum":[1e999]}', '{"minimum":NaN}', "[" * 450 + "]" * 450]
)
def test_a_schema_in_a_grammar_that_is_none_has_no_hints(schema: str) -> None:
    assert hints_of(ConstraintSpec(Kind.LARK, f"start: %json {schema}")).all() == ()


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_a_schema_that_is_rewritten_already_has_hints_as_good(name: str) -> None:
    text = json.dumps(SCHEMAS[name])
    spec = ConstraintSpec(Kind.JSON_SCHEMA, text)
    schema = prepare(spec, LIMITS[Kind.JSON_SCHEMA])

    (example,), (expected,) = hints_of(spec, rewritten=schema.rewritten).first, hints_of(spec).first

    jsonschema.validate(json.loads(example), SCHEMAS[name])
    assert len(example) == len(expected)


def test_hints_behind_the_first_are_made_once_and_when_they_are_asked_for() -> None:
    calls: list[None] = []

    def more() -> tuple[bytes, ...]:
        calls.append(None)
        return (b"part", b"whole", b"other")

    hints = CompletionHints((b"whole",), more)
    before = hints.first, hints.are_made, len(calls)

    found = hints.all(), hints.all()

    assert before == ((b"whole",), False, 0)
    assert found == 2 * ((b"whole", b"part", b"other"),)
    assert (hints.are_made, len(calls)) == (True, 1)


def test_where_nothing_is_left_to_be_made_all_hints_are_the_first() -> None:
    hints = CompletionHints((b"a", b"b"))
    assert hints.are_made
    assert hints.all() == hints.first == (b"a", b"b")
