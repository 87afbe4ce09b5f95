"""What a look tells of a schema is true: it compiles, and a text of so many bytes satisfies it."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule, Whitespace
from constraints.trivial_schemas import obvious_len
from tests.constraints.grammars.rig import compiled
from tests.constraints.walks import byte_vocabulary

NAMES = st.text('ab"\\{}: é\n', max_size=4) | st.sampled_from(["__proto__", "$ref", "a/b~", ""])
NOTES = st.sampled_from([{}, {"title": "t", "default": 5}, {"description": "d"}])
NUMBERS = st.integers(-1, 6) | st.sampled_from([1001, 2.0, True, "1"])


def bounds(least: str, most: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={least: NUMBERS, most: NUMBERS})


LEAVES = st.one_of(
    st.builds(
        lambda kind, notes: {"type": kind, **notes},
        st.sampled_from(["string", "integer", "number", "boolean", "null", "other"]),
        NOTES,
    ),
    bounds("minLength", "maxLength").map(lambda said: {"type": "string", **said}),
    st.lists(NAMES, max_size=3).map(lambda values: {"enum": values}),
    st.lists(NAMES | st.integers(), max_size=3).map(lambda v: {"type": "string", "enum": v}),
    NAMES.map(lambda value: {"const": value}),
    st.sampled_from([{}, True, {"type": ["string", "null"]}, {"pattern": "a"}, {"minimum": 3}]),
)


def arrays(items: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    said = st.tuples(items, bounds("minItems", "maxItems"))
    return said.map(lambda pair: {"type": "array", "items": pair[0], **pair[1]})


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, values, max_size=4))
    named = st.sampled_from(sorted(properties)) if properties else st.just("absent")
    required = draw(st.lists(named, max_size=3, unique=draw(st.booleans())))
    more = draw(st.sampled_from([{}, {"additionalProperties": False}]))
    return {"type": "object", "properties": properties, "required": required, **more}


SCHEMAS = st.recursive(LEAVES, lambda inner: arrays(inner) | objects(inner), max_leaves=8)


@given(SCHEMAS, st.sampled_from(Whitespace))
def test_what_is_obvious_compiles_and_fits(schema: Any, whitespace: Whitespace) -> None:
    text = json.dumps(schema)

    enough_len = obvious_len(ConstraintSpec(Kind.JSON_SCHEMA, text, whitespace))

    assume(enough_len is not None)
    assert enough_len is not None
    language = compiled(Kind.JSON_SCHEMA, text, whitespace=whitespace)
    output_state = OutputConstraintState(
        language, byte_vocabulary(), Budget(enough_len), StopRule()
    )
    assert output_state.needed_len <= enough_len


RECORD = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "description": "years"},
        "tags": {"type": "array", "items": {"enum": ["x", "long"]}, "minItems": 1},
        "more": {"type": "string"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def test_a_plain_record_is_obvious() -> None:
    assert obvious_len(ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(RECORD))) == 2 + 14 + 14 + 20


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "string", "minLength": 3, "maxLength": 2}, id="contradiction"),
        pytest.param({"type": "string", "pattern": "a+"}, id="pattern"),
        pytest.param({"type": "string", "enum": [1]}, id="a-value-of-another-type"),
        pytest.param({"enum": []}, id="no-value"),
        pytest.param({"type": "object", "required": ["a"]}, id="required-and-not-declared"),
        pytest.param({"type": "integer", "minimum": 5}, id="range"),
        pytest.param({"$ref": "#/definitions/a"}, id="reference"),
        pytest.param({"type": "array", "items": {"not": {}}, "minItems": 1}, id="inner"),
        pytest.param({"properties": {"a": {"type": "string"}}}, id="no-type"),
    ],
)
def test_what_needs_a_closer_look_is_not_obvious(schema: Any) -> None:
    assert obvious_len(ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))) is None


def test_a_key_that_is_there_twice_is_looked_at() -> None:
    text = '{"type": "string", "type": "integer"}'
    assert obvious_len(ConstraintSpec(Kind.JSON_SCHEMA, text)) is None


def test_other_kinds_and_lenient_schemas_are_looked_at() -> None:
    assert obvious_len(ConstraintSpec(Kind.REGEX, "a")) is None
    assert obvious_len(ConstraintSpec(Kind.JSON_SCHEMA, "{}", lenient=True)) is None
