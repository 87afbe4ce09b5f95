"""Hints at completions, read off a constraint's source: the first at once, others on demand."""

import json
import time
from typing import Any

import pytest

from constraints.grammars.hints import MAX_HINTS, MAX_LEAVES, hints_of
from constraints.guiding.completion import CompletionHints
from constraints.spec import ConstraintSpec, Kind, Whitespace
from tests.constraints.cases import record


def of_schema(schema: Any, whitespace: Whitespace = Whitespace.FLEXIBLE) -> tuple[bytes, ...]:
    return hints_of(ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema), whitespace)).all()


@pytest.mark.parametrize(
    ("schema", "hints"),
    [
        (record({"a": {"type": "string"}}), (b'"a":',)),
        ({"enum": ["long", "x", 12345, "fourth"]}, (b'"x"', b"12345", b'"long"')),
        ({"const": {"b": [1, "é"]}}, ('{"b":[1,"é"]}'.encode(),)),
        ({"type": "string", "pattern": "^[ab]{3}$"}, (b'"aaa"',)),
        ({"allOf": [{"pattern": "a$"}, {"pattern": "[0-9]{2}"}]}, (b'"a"', b'"00"', b'"00a"')),
        ({"type": "string", "pattern": "(?=y)"}, (b'"y"',)),
        ({"type": "string", "pattern": r"(y)\1"}, ()),
        ({"type": "string", "minLength": 6}, (b'"someth"',)),
        ({"type": "string", "format": "date"}, (b'"2000-01-01"',)),
        (
            {"type": "string", "format": "email", "minLength": 8},
            (b'"a@b.cd"', b'"somethin"'),
        ),
        ({"minimum": 5, "exclusiveMaximum": 9}, (b"5", b"8")),
        (
            {"uniqueItems": True, "minItems": 2, "items": {"type": "integer", "minimum": 7}},
            (b"7", b"8"),
        ),
        ({"default": {"const": 1}, "examples": [{"const": 2}]}, ()),
        ({"anyOf": [{"items": {"const": 3}}, {"$defs": {"d": {"const": 4}}}]}, (b"3", b"4")),
    ],
    ids=str,
)
def test_a_schema_hints_at_its_leaves(schema: Any, hints: tuple[bytes, ...]) -> None:
    assert of_schema(schema) == hints


def test_schemas_inside_of_a_grammar_have_hints_and_no_literals() -> None:
    schema = json.dumps(record({"a": {"type": "string"}, "b": {"const": 1}}))
    spec = ConstraintSpec(Kind.LARK, f'start: "call " %json {schema}', Whitespace.SPACED)
    whole = b'call {"a":"","b":1}'
    assert hints_of(spec).all() == (whole, b"call ", b"1", b'"a":', b'"b":')


def test_hints_of_many_parts_are_bounded() -> None:
    parts = {f"p{index}": {"const": str(index)} for index in range(600)}
    assert len(of_schema({"type": "object", "properties": parts})) <= MAX_LEAVES
    assert of_schema({"const": "x" * 10_000}) == ()


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


@pytest.mark.parametrize(
    ("kind", "text", "hint"),
    [
        (Kind.REGEX, "[a-z]+xyz", b"axyz"),
        (Kind.REGEX, r"ab+c\.d", b"abc.d"),
        (Kind.REGEX, "[a-z]{20,90}", b"somethingsomethingso"),
        (Kind.REGEX, "(foo|bar[0-9]{4}-end)", b"foo"),
        (Kind.REGEX, "(?s:.*)(?:[fF][oO][xX]|[kK\u212a]a[^b][a-z]+)(?P<end>i+)", b"foxi"),
        (Kind.GBNF, 'root ::= "(" x root? ")"\nx ::= root "x" | y y\ny ::= [a-c]{2}', b"(aaaa)"),
    ],
)
def test_a_pattern_or_a_grammar_hints_at_a_whole_text(kind: Kind, text: str, hint: bytes) -> None:
    assert hints_of(ConstraintSpec(kind, text)).all() == (hint,)


def test_a_grammar_hints_at_its_terminals() -> None:
    text = 'start: "BEGIN " NAME " END"\nNAME: /[a-z]+_id/\n'
    hints = hints_of(ConstraintSpec(Kind.LARK, text)).all()
    assert hints == (b"BEGIN a_id END", b"BEGIN ", b" END", b"a_id")


LINES = 'LINE: /[^\\n]+/ "\\n"\n'


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: "Q: " LINE ("A" | "B: " LINE)~2..3\n' + LINES, b"Q: a\nAA"),
        ('start: say act?\n?say: "Say: " LINE | say ["!"]\nact[lazy]: LINE\n' + LINES, b"Say: a\n"),
        (
            'start: WORD{2} sum -> all\nsum: "0".."9" | sum "+" "yes"i\nWORD: "ab" & /.*/\n',
            b"abab0",
        ),
        ('start: ("(" start ")")+ | "x" "y"+ // all\n', b"xy"),
        ('start: "x" again\nagain: "y" start | start\n', b"x"),
        ('start: LINE INT %json {"enum": [1]}\n%import common.INT\n' + LINES, b"a\n01"),
    ],
)
def test_a_grammar_hints_at_a_whole_text(grammar: str, text: bytes) -> None:
    assert hints_of(ConstraintSpec(Kind.LARK, grammar)).first[0] == text


def test_a_choice_hints_at_its_shortest_strings() -> None:
    choices = json.dumps(["x" * length for length in range(40, 0, -1)])
    hints = hints_of(ConstraintSpec(Kind.CHOICE, choices)).all()
    assert hints[0] == b"x"
    assert len(hints) == MAX_HINTS


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
    assert time.thread_time() - began_s < 10  # half a second on an idle core


@pytest.mark.parametrize(
    "schema", ['{"multipleOf":1e400}', '{"enum":[1e999]}', '{"minimum":NaN}', "[" * 450 + "]" * 450]
)
def test_a_schema_in_a_grammar_that_is_none_has_no_hints(schema: str) -> None:
    assert hints_of(ConstraintSpec(Kind.LARK, f"start: %json {schema}")).all() == ()


def test_hints_behind_the_first_are_made_once_and_when_they_are_asked_for() -> None:
    calls: list[None] = []

    def more() -> tuple[bytes, ...]:
        calls.append(None)
        return (b"part", b"whole", b"other")

    hints = CompletionHints((b"whole",), more)
    before = hints.first, len(calls)

    found = hints.all(), hints.all()

    assert before == ((b"whole",), 0)
    assert found == 2 * ((b"whole", b"part", b"other"),)
    assert len(calls) == 1
