"""The schemas of arguments, and the refusals of tools that a form of calls cannot be held to."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from constraints.compiler import Compiler
from constraints.errors import ConstraintError, Contradiction
from constraints.spec import ConstraintSpec, Kind, Whitespace
from constraints.vocabulary import Vocabulary
from router.engine.validation import RawParams
from router.http.tools import (
    AllowedTool,
    AllowedTools,
    arguments_schema,
    constrain_to_tools,
)
from router.request.errors import ConstraintRefused, InvalidRequest
from tests.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_ids, save_byte_tokenizer
from tests.router.text.answers import FORMATS

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
# Those that ignore what stands beside a reference.
OLD = [DRAFT_7, "http://json-schema.org/draft-06/schema#", "http://json-schema.org/draft-04/schema"]
NEW = [
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]
Q = {
    "type": ["object", "null"],
    "properties": {"x": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
}
X = {**Q, "type": "object"}


@cache
def compiler() -> Compiler:
    with TemporaryDirectory() as folder:
        path = save_byte_tokenizer(Path(folder)) / "tokenizer.json"
        return Compiler(Vocabulary.load(path, VOCAB_SIZE, [EOS_ID]))


def accepted(schema: dict[str, Any], texts: list[str]) -> list[str]:
    """Those of the texts that arguments of the schema may be."""
    spec = ConstraintSpec(
        Kind.JSON_SCHEMA, json.dumps(arguments_schema(schema, "a")), Whitespace.SPACED
    )
    language = compiler().compile(spec)
    found = []
    for text in texts:
        matcher = language.matcher()
        token_ids = byte_ids(text)
        if matcher.num_legal(token_ids) == len(token_ids):
            for token_id in token_ids:
                matcher.advance(token_id)
            found += [text] * matcher.is_complete
    return found


def refused(schema: dict[str, Any]) -> ConstraintError:
    with pytest.raises(ConstraintError) as error:
        accepted(schema, [])
    return error.value


def referring(target: Any, draft: str = DRAFT_7, **more: Any) -> dict[str, Any]:
    return {"$schema": draft, "$ref": "#/definitions/Q", "definitions": {"Q": target}, **more}


@pytest.mark.parametrize("draft", [*OLD, *NEW])
@pytest.mark.parametrize("more", [{}, {"type": "object"}])
def test_what_a_reference_leads_to_is_held_to_objects(draft: str, more: dict[str, Any]) -> None:
    texts = ["null", '{"x": true}', "{}"]

    assert accepted(referring(Q, draft, **more), texts) == ['{"x": true}']


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": DRAFT_7, "$ref": "#q", "definitions": {"Q": {"$id": "#q", **Q}}},
        {"$schema": DRAFT_7, "$ref": "#/arguments", "arguments": Q},
        referring({"$ref": "#/definitions/R"})
        | {"definitions": {"Q": {"$ref": "#/$defs/R"}}}
        | {"$defs": {"R": Q}},
        referring({"anyOf": [{"type": "string"}, Q]}),
        referring(True),
    ],
    ids=["an anchor", "a place called as ours", "over another", "a choice", "anything"],
)
def test_references_lead_where_they_led(schema: dict[str, Any]) -> None:
    assert accepted(schema, ["null", '""', "5", '{"x": true}']) == ['{"x": true}']


def test_a_draft_that_ignores_what_stands_beside_a_reference_goes_on_doing_so() -> None:
    schema = referring(Q, required=["y"], maxProperties=0)

    assert accepted(schema, ['{"x": true}']) == ['{"x": true}']


def test_a_reference_to_the_whole_leads_to_it() -> None:
    inner = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    schema = referring({**Q, "properties": {"x": inner}})

    texts = ["null", '{"x": null}', '{"x": {"x": null}}', '{"x": 5}']
    assert accepted(schema, texts) == texts[1:3]


def test_a_reference_to_an_object_stays_as_it_is() -> None:
    assert arguments_schema(referring(X), "a") == referring(X)


def test_what_is_never_an_object_is_refused_and_says_why() -> None:
    error = refused(referring({"type": "string"}))

    assert isinstance(error, Contradiction)
    assert error.parts == ('{"type": "object"}', '{"$ref": "#/definitions/Q"}')


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (referring(Q) | {"$ref": "#/no"}, "/arguments/allOf/0/$ref"),
        (referring(Q) | {"$ref": 5}, "/$ref"),
        (referring({**Q, "$dynamicRef": "#a"}), "/definitions/Q/$dynamicRef"),
        (
            referring({**Q, "properties": {"x": {"$ref": "#/no"}}}),
            "/definitions/Q/properties/x/$ref",
        ),
    ],
)
def test_what_is_wrong_is_told_with_the_places_of_its_author(
    schema: dict[str, Any], pointer: str
) -> None:
    assert getattr(refused(schema), "pointer", None) == pointer


def test_endless_depth_is_left_to_who_compiles_it() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"items": deep}

    schema = referring(Q, items=deep)
    assert arguments_schema(schema, "a") is not None


@pytest.mark.parametrize("kind", ["string", ["object", "null"], None])
def test_another_type_is_refused_by_its_place(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be `object`") as error:
        arguments_schema({"type": kind}, "tools[0].parameters")
    assert error.value.field == "tools[0].parameters.type"


@pytest.mark.parametrize("target", [{"$ref": 5}, {"$ref": "#/no"}])
def test_what_cannot_be_followed_is_refused_by_the_compiler(target: dict[str, Any]) -> None:
    assert refused(referring(target))


UNBOUND = {"type": "object", "properties": {"a": {"type": "string"}}, "minProperties": 1}


@pytest.mark.parametrize("strict", [True, False])
def test_what_parameters_one_by_one_cannot_be_held_to_is_left_to_the_end_unless_strict(
    *, strict: bool
) -> None:
    tool = AllowedTool("get", UNBOUND, "tools[0].function.parameters", strict=strict)
    allowed = AllowedTools((tool,), allows_text=True, may_repeat=True)
    tagged = FORMATS["parameters in tags"]
    if not strict:
        ((_, part),) = constrain_to_tools(RawParams(), allowed, tagged, {}).grammar_parts
        assert part.lenient
        assert part.constraint(tool.place).not_enforced == ("/minProperties",)
        return
    with pytest.raises(ConstraintRefused, match="/minProperties") as error:
        constrain_to_tools(RawParams(), allowed, tagged, {})
    assert (error.value.reason, error.value.details) == (
        "not_enforced",
        {"pointer": "/minProperties"},
    )
    assert error.value.field == tool.place
    ((_, part),) = constrain_to_tools(RawParams(), allowed, FORMATS["hermes"], {}).grammar_parts
    assert not part.lenient


def test_the_reader_sees_the_special_tokens_of_the_form_which_cannot_be_stops() -> None:
    tool = AllowedTool("get", {"type": "object"}, "tools[0].function.parameters")
    allowed = AllowedTools((tool,), allows_text=True, may_repeat=True)
    marks = {"[TOOL_CALLS]": 7}
    listed = FORMATS["mistral list"]
    raw = constrain_to_tools(RawParams(stop_token_ids=(8,)), allowed, listed, marks)
    assert raw.shown_ids == {7}
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        constrain_to_tools(RawParams(stop_token_ids=(7,)), allowed, listed, marks)
