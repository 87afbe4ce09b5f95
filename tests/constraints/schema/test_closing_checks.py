"""What masks cannot keep is judged where a value ends; which schema judges what."""

import json
import random
from typing import Any

import pytest

from constraints.errors import NotEnforced
from constraints.grammars.watching import WatchedLanguage
from constraints.output_constraint import OutputConstraintState
from constraints.schema.json_schema import prepare
from constraints.schema.validation import violations
from constraints.schema.watched import read
from constraints.spec import Budget, ConstraintSpec, Kind
from tests.constraints.cases import demo_vocabulary, drawn, language_of, text_of
from tests.constraints.grammars.rig import of_schema

FRACTION: dict[str, Any] = {"type": "number", "not": {"type": "integer"}}
DATE: dict[str, Any] = {"format": "date"}
SHARE: dict[str, Any] = {"type": "object", "properties": {"n": FRACTION}, "required": ["n"]}


def closing(schema: Any, **how: Any) -> WatchedLanguage:
    language = of_schema(schema, strict=False, **how)
    assert isinstance(language, WatchedLanguage)
    return language


def judges_of(schema: Any) -> list[Any]:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))
    watch = prepare(spec, judges=True).watch
    return [json.loads(each) for place in read(watch).places for each in place.judged]


@pytest.mark.parametrize(
    ("schema", "judges"),
    [
        (FRACTION, [FRACTION]),
        (SHARE, [FRACTION]),
        ({"type": "array", "items": SHARE}, [FRACTION]),
        ({"$ref": "#/$defs/s", "$defs": {"s": SHARE}}, [FRACTION]),
        ({"anyOf": [FRACTION, {"minimum": 1}]}, [{"anyOf": [FRACTION, {"minimum": 1}]}]),
        ({"type": "array", "items": {"oneOf": [SHARE]}}, [FRACTION, {"oneOf": [SHARE]}]),
        ({"patternProperties": {"^x": FRACTION}}, [{"patternProperties": {"^x": FRACTION}}]),
        # What stands below `not` is no schema of the value: the one that has the `not` judges.
        ({"not": {"properties": {"n": DATE}}}, [{"not": {"properties": {"n": DATE}}}]),
    ],
)
def test_the_innermost_schema_that_surely_applies_judges(schema: Any, judges: list[Any]) -> None:
    assert sorted(map(str, judges_of(schema))) == sorted(map(str, judges))


@pytest.mark.parametrize("how", [{"strict": True}, {"strict": False, "is_part": True}], ids=str)
def test_where_masks_are_asked_for_and_within_a_grammar_nothing_is_judged(how: Any) -> None:
    with pytest.raises(NotEnforced):
        of_schema(FRACTION, **how)
    assert of_schema(FRACTION, lenient=True, **how).not_enforced == ("/not",)


@pytest.mark.parametrize("budget", [3, 30])
def test_an_output_is_led_to_a_value_that_the_judge_takes(budget: int) -> None:
    vocabulary = demo_vocabulary()
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(FRACTION))
    for seed in range(8):
        state = OutputConstraintState(language_of(spec, vocabulary), vocabulary, Budget(budget))
        tokens = drawn(state, vocabulary, budget, random.Random(seed))
        assert len(tokens) <= budget
        assert violations(spec.text, text_of(tokens, vocabulary)) == ()


def test_under_a_judge_objects_of_many_keys_may_begin_and_end() -> None:
    vocabulary = demo_vocabulary()
    properties: dict[str, Any] = {f"field {number}": {"type": "integer"} for number in range(12)}
    row = {"type": "object", "properties": properties, "required": list(properties)}
    schema = {"type": "array", "items": {**row, "not": {"const": dict.fromkeys(properties, 1)}}}
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))
    tokens = vocabulary.spell(json.dumps([dict.fromkeys(properties, 7)] * 3).encode())
    budget = Budget(2 * len(tokens))
    state = OutputConstraintState(
        language_of(spec, vocabulary), vocabulary, budget, takes_forced=False
    )
    for token_id in tokens:
        assert state.check(token_id)
        state.advance(token_id)
    assert state.is_satisfied


@pytest.mark.parametrize("begun", [b"6e", b"-12E", b"{", b"[7,\r"])
def test_what_could_still_become_right_may_begin(begun: bytes) -> None:
    vocabulary = demo_vocabulary()
    schema = {"not": {"anyOf": [{"type": "integer"}, {"const": {}}, {"const": [7, 0]}]}}
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))
    state = OutputConstraintState(
        language_of(spec, vocabulary), vocabulary, Budget(30), takes_forced=False
    )
    for token_id in vocabulary.spell(begun):
        assert state.check(token_id)
        state.advance(token_id)
