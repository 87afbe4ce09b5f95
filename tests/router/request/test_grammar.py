"""Grammars as they come, and the constraints that they are."""

from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind
from router.request.errors import InvalidRequest
from router.request.parameters import GRAMMAR_TYPES, RawGrammar
from router.request.request import Constraint


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        ("json", {"properties": {"a": {}}}, '{"properties":{"a":{}}}'),
        ("json", {"enum": [1, "é"]}, '{"enum":[1,"é"]}'),
        ("json_object", ' {"type": "array"} ', '{"type": "array"}'),
        ("json", '{"type": "integer", "type": "string"}', '{"type": "integer", "type": "string"}'),
        ("json", True, "true"),
        ("json", "false", "false"),
        ("json_schema", {}, "{}"),
        ("regex", "a+", "a+"),
        ("choice", ["b", "a", "b"], '["b","a"]'),
        ("choice", ["a", ""], '["a",""]'),
        ("lark", "start: WORD", "start: WORD"),
        ("where", "len(A) < 3", "len(A) < 3"),
    ],
)
def test_a_grammar_is_a_constraint(word: str, value: Any, text: str) -> None:
    kind = GRAMMAR_TYPES[word]

    assert RawGrammar(kind, value).constraint("grammar") == Constraint(ConstraintSpec(kind, text))


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Kind.JSON_SCHEMA, "{", "not JSON: unexpected end"),
        (Kind.JSON_SCHEMA, "[]", "must be a JSON schema"),
        (Kind.JSON_SCHEMA, "3", "must be a JSON schema"),
        (Kind.JSON_SCHEMA, [], "must be a JSON schema"),
        (Kind.JSON_SCHEMA, None, "must be a JSON schema"),
        (Kind.REGEX, "", "`regex` must be a string, not empty"),
        (Kind.REGEX, {}, "`regex` must be a string, not empty"),
        (Kind.LARK, 3, "`lark` must be a string, not empty"),
        (Kind.CHOICE, [], "`choice` must be a list of strings"),
        (Kind.CHOICE, "a", "`choice` must be a list of strings"),
        (Kind.CHOICE, [], "at least one"),
        (Kind.CHOICE, ["a", 1], "`choice` must be a list of strings"),
    ],
)
def test_what_is_no_grammar_is_refused_by_the_parameter_s_name(
    kind: Kind, value: Any, words: str
) -> None:
    with pytest.raises(InvalidRequest, match="`response_format` is not valid") as refusal:
        RawGrammar(kind, value).constraint("response_format")

    assert words in str(refusal.value)
    assert refusal.value.field == "response_format"
