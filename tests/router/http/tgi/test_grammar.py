"""`grammar`: TGI's union of types and ours, its faults, and the word that it is not served yet."""

from typing import Any

import pytest

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


@pytest.mark.parametrize(
    "grammar",
    [
        {"type": "json", "value": SCHEMA},
        {"type": "json", "value": '{"enum": [1]}'},
        {"type": "json_object", "value": {"anyOf": [SCHEMA]}},
        {"type": "json_schema", "value": {"schema": SCHEMA, "name": "a", "strict": True}},
        {"type": "regex", "value": "[0-9]+"},
        {"type": "choice", "value": ["yes", "no"]},
        {"type": "lark", "value": "start: WORD"},
        {"type": "where", "value": "len(A) < 3"},
    ],
)
async def test_a_grammar_in_order_is_not_served_yet_and_never_ignored(grammar: Any) -> None:
    async with housing(FakeShard()) as house:
        assert "`grammar` is not served yet" in await refusal(house, grammar)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("a+", "`parameters.grammar` must be an object like"),
        ({}, "`parameters.grammar` must have a `type`, one of `json`, `json_object`"),
        ({"type": "xml", "value": "a"}, "`parameters.grammar` must have a `type`"),
        ({"type": ["json"], "value": {}}, "`parameters.grammar` must have a `type`"),
        ({"type": "json"}, "`parameters.grammar` must have a `value`"),
        ({"type": "regex", "value": None}, "`parameters.grammar` must have a `value`"),
        ({"type": "json_schema", "value": SCHEMA}, "must have a `value` with a `schema`"),
        ({"type": "regex", "value": ["a"]}, "of type `regex` must have a string for its `value`"),
        ({"type": "regex", "value": ""}, "`grammar` is not valid: the value of `regex`"),
        ({"type": "json", "value": "{'a'}"}, "`grammar` is not valid: the value is a string"),
        ({"type": "json", "value": [SCHEMA]}, "must have an object or a string for its `value`"),
        ({"type": "json", "value": "[]"}, "must be a JSON schema"),
        ({"type": "choice", "value": [1]}, "`grammar` is not valid: the value of `choice`"),
    ],
)
async def test_a_grammar_out_of_order_is_told_what_is_wrong(grammar: Any, words: str) -> None:
    async with housing(FakeShard()) as house:
        assert words in await refusal(house, grammar)


async def test_a_server_may_take_no_grammar_at_all() -> None:
    async with housing(FakeShard(), takes_grammars=False) as house:
        told = await refusal(house, {"type": "json", "value": "{"})

    assert told == "Input validation error: grammar is not supported"


async def test_in_a_stream_the_refusal_is_an_event() -> None:
    body = {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a"}}}
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post("/generate_stream", json=body)

    assert answer.status_code == 200
    assert answer.text.startswith('data: {"error":"Input validation error: `grammar` is not served')
