"""`grammar`: TGI's union of types and ours, what becomes of each, its faults and refusals."""

import json
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind, StopRule, Whitespace
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from tests.checks import FakeChecks
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def refusal(house: House, grammar: Any, path: str = "/generate") -> str:
    body = {"inputs": "hello", "parameters": {"grammar": grammar}}
    async with house.client as client:
        answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert not any(method == "Prefill" for method, _ in house.shard.calls)
    return str(answer.json()["error"])


def spec(kind: Kind, text: str) -> ConstraintSpec:
    return ConstraintSpec(kind, text)


JSON = '{"type":"object","properties":{"a":{"type":"integer"}}}'


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ({"type": "json", "value": SCHEMA}, spec(Kind.JSON_SCHEMA, JSON)),
        ({"type": "json", "value": '{"enum": [1]}'}, spec(Kind.JSON_SCHEMA, '{"enum": [1]}')),
        ({"type": "json_object", "value": SCHEMA}, spec(Kind.JSON_SCHEMA, JSON)),
        (
            {"type": "json_schema", "value": {"schema": SCHEMA, "name": "a", "strict": True}},
            spec(Kind.JSON_SCHEMA, JSON),
        ),
        ({"type": "regex", "value": "[0-9]+"}, spec(Kind.REGEX, "[0-9]+")),
        ({"type": "choice", "value": ["yes", "no"]}, spec(Kind.CHOICE, '["yes","no"]')),
        ({"type": "lark", "value": "start: WORD"}, spec(Kind.LARK, "start: WORD")),
        ({"type": "gbnf", "value": "root ::= [a]"}, spec(Kind.GBNF, "root ::= [a]")),
        ({"type": "where", "value": "len(X) < 3"}, spec(Kind.WHERE, "len(X) < 3")),
        (
            {"type": "json", "value": SCHEMA, "whitespace": "compact", "lenient": True},
            ConstraintSpec(Kind.JSON_SCHEMA, JSON, Whitespace.COMPACT, lenient=True),
        ),
    ],
)
async def test_a_grammar_is_checked_and_then_asked_of_the_shard(
    grammar: Any, expected: ConstraintSpec
) -> None:
    checks = FakeChecks()
    parameters = {"grammar": grammar, "max_new_tokens": 9, "stop": ["."]}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        answer = await client.post("/generate", json={"inputs": "hello", "parameters": parameters})
        requests = [
            call.batch.requests[0] for method, call in house.shard.calls if method == "Prefill"
        ]

    assert answer.status_code == 200
    assert checks.asked == [(Constraint(expected), StopRule((".",)), 9, False)]
    assert requests[0].constraint.text == expected.text


async def test_a_grammar_may_be_cut() -> None:
    checks = FakeChecks()
    grammar = {"type": "regex", "value": "a+", "on_budget": "cut"}
    body = {"inputs": "hello", "parameters": {"grammar": grammar, "max_new_tokens": 4}}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        await client.post("/generate", json=body)

    assert checks.asked == [(Constraint(spec(Kind.REGEX, "a+"), cuts=True), StopRule(), 4, True)]


async def test_the_reason_of_a_refused_grammar_is_a_field_too() -> None:
    refusal_ = ConstraintRefused(
        "the keyword `not` is not enforced", "not_enforced", {"pointer": "/properties/a"}
    )
    checks = FakeChecks(lambda _: refusal_)
    body = {"inputs": "a", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        answer = await client.post("/generate", json=body)

    assert answer.status_code == 422
    assert answer.json() == {
        "error": "Constraint error: `grammar`: the keyword `not` is not enforced",
        "error_type": "constraint_error",
        "constraint": {"reason": "not_enforced", "pointer": "/properties/a"},
    }


async def test_a_grammar_that_cannot_be_read_is_tgi_s_error() -> None:
    checks = FakeChecks(lambda _: ConstraintRefused("at 3: a ) is missing", "malformed"))
    body = {"type": "regex", "value": "(a"}
    async with housing(FakeShard(), checks=checks) as house:
        error = await refusal(house, body)

    assert error == "Input validation error: `grammar`: at 3: a ) is missing"


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("a+", "`parameters.grammar` must be an object like"),
        ({}, "`parameters.grammar` must have a `type`, one of `json`, `json_object`"),
        ({"type": "xml", "value": "a"}, "`json`, `json_object`, `json_schema`, `regex`, `choice`"),
        ({"type": "xml", "value": "a"}, 'Given: "xml"'),
        ({"type": "regex", "value": 5}, "must have a string for its `value`. Given: 5"),
        ({"type": "json", "value": {}, "lenient": 1}, "Given: 1"),
        ({"type": ["json"], "value": {}}, "`parameters.grammar` must have a `type`"),
        ({"type": "json"}, "`parameters.grammar` must have a `value`"),
        ({"type": "regex", "value": None}, "`parameters.grammar` must have a `value`"),
        ({"type": "json_schema", "value": SCHEMA}, "must have a `value` with a `schema`"),
        ({"type": "regex", "value": ["a"]}, "of type `regex` must have a string for its `value`"),
        ({"type": "regex", "value": ""}, "`grammar` is not valid: the value of `regex`"),
        ({"type": "json", "value": "{'a'}"}, "`grammar` is not valid: the value is a string"),
        (
            {"type": "json", "value": [SCHEMA]},
            "must have an object, true, false or a string for its",
        ),
        ({"type": "json", "value": "[]"}, "must be a JSON schema"),
        ({"type": "choice", "value": [1]}, "`grammar` is not valid: the value of `choice`"),
        ({"type": "json", "value": {}, "whitespace": "much"}, "must have one of `flexible`"),
        ({"type": "json", "value": {}, "lenient": 1}, "must have true or false for `lenient`"),
        ({"type": "json", "value": {}, "on_budget": 3}, "must have one of `finish`, `cut`"),
        ({"type": "regex", "value": "a", "lenient": True}, "`lenient` is said of JSON"),
    ],
)
async def test_a_malformed_grammar_is_refused_with_its_fault(grammar: Any, words: str) -> None:
    async with housing(FakeShard()) as house:
        assert words in await refusal(house, grammar)


async def test_a_server_may_take_no_grammar_at_all() -> None:
    async with housing(FakeShard(), takes_grammars=False) as house:
        error = await refusal(house, {"type": "json", "value": "{"})

    assert error == "Input validation error: grammar is not supported"


async def test_in_a_stream_the_refusal_is_an_event() -> None:
    checks = FakeChecks(lambda _: ConstraintRefused("no text", "contradiction"))
    body = {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a"}}}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        answer = await client.post("/generate_stream", json=body)

    assert answer.status_code == 200
    assert answer.text.startswith('data: {"error":"Constraint error: `grammar`: no text"')


@pytest.mark.parametrize("satisfied", [True, False])
async def test_details_say_whether_the_text_satisfies_the_grammar(satisfied: bool) -> None:
    shard = FakeShard(script=saying("abcdef", len("hello")))
    shard.followed.num_forced = lambda _: 2
    shard.followed.satisfied = satisfied
    grammar = {"type": "regex", "value": "[a-z]*"}
    body = {"inputs": "hello", "parameters": {"grammar": grammar, "details": True}}
    async with housing(shard) as house, house.client as client:
        whole = (await client.post("/generate", json=body)).json()
        streamed = await client.post("/generate_stream", json=body)

    assert whole["generated_text"] == "abcdef"
    assert whole["details"]["constraint_satisfied"] is satisfied
    events = [json.loads(line[5:]) for line in streamed.text.split("\n\n") if line]
    # Tokens that come together are sent one by one.
    assert [event["token"]["text"] for event in events] == [*"abcdef"]
    assert [event["index"] for event in events] == list(range(1, 7))
    assert events[-1]["details"]["constraint_satisfied"] is satisfied
