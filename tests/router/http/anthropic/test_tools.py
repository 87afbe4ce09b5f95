"""Anthropic's tools: what is asked of the shard, and calls as blocks, whole and streamed."""

import json
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind, Whitespace
from router.http.anthropic import content_of
from router.http.tools.calls import CallFormat
from router.http.tools.grammar import AllowedTool, AllowedTools, tool_grammar
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from router.text.template_traits import HERMES
from tests.checks import FakeChecks
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.anthropic.asking import HI, PATH, PROMPT, post, refuse, stream
from tests.router.http.harness import housing
from tests.router.http.tools.calls import Call, written

# It shows nothing of the tools, so that prompts stay short, but reads them.
TEMPLATE = (
    "{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}: "
    "{% if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function | tojson }}</tool_call>"
    "{% else %}{{ m.content }}"
    "{% endif %}{{ '\n' }}{% endfor %}"
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK = {"name": "look", "description": "see", "input_schema": CITY}
WAIT = {"name": "wait", "input_schema": {"type": "object"}}
ALLOWED_LOOK = AllowedTool("look", CITY, "tools[0].input_schema")
ALLOWED_WAIT = AllowedTool("wait", {"type": "object"}, "tools[1].input_schema")
ROME: Call = ("look", {"city": "Rome"})


def house_of(text: str, checks: FakeChecks | None = None) -> Any:
    shard = FakeShard(script=saying(text, len(PROMPT)))
    return housing(shard, templates={"default": TEMPLATE}, checks=checks)


@pytest.mark.parametrize(
    ("choice", "offer"),
    [
        (None, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"type": "auto"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, False),
        ),
        ({"type": "any"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)),
        ({"type": "tool", "name": "wait"}, AllowedTools((ALLOWED_WAIT,), False, False)),
    ],
)
async def test_tools_and_their_choice_are_one_grammar(choice: Any, offer: AllowedTools) -> None:
    checks = FakeChecks()
    async with house_of("x", checks) as house:
        await post(house, tools=[LOOK, WAIT], tool_choice=choice)

    *parts, (whole, *_) = checks.asked
    spec = ConstraintSpec(Kind.LARK, tool_grammar(offer, HERMES), Whitespace.SPACED)
    assert whole == Constraint(spec)
    assert [json.loads(part.spec.text) for part, *_ in parts] == [
        tool.parameters for tool in offer.tools
    ]


async def test_tools_that_are_not_to_be_called_leave_answers_free() -> None:
    checks = FakeChecks()
    async with house_of("ok", checks) as house:
        answer = await post(house, tools=[LOOK], tool_choice={"type": "none"})

    assert checks.asked == []
    assert answer["content"] == [{"type": "text", "text": "ok"}]


async def test_tools_are_told_to_a_model_whose_template_shows_none_if_they_may_be_called() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        lens = []
        for choice in ({"type": "auto"}, {"type": "none"}):
            body = {"messages": HI, "tools": [LOOK], "tool_choice": choice}
            answer = await client.post(f"{PATH}/count_tokens", json=body)
            lens.append(answer.json()["input_tokens"])

    told = [{"type": "function", "function": {"name": "look", "description": "see"}}]
    assert lens[0] > len(PROMPT) + len(json.dumps(told))
    assert lens[1] == len(PROMPT)


async def test_a_tool_that_cannot_be_kept_is_refused_by_its_place() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})
    async with house_of("x", FakeChecks(lambda _: reason)) as house:
        body = {"max_tokens": 9, "messages": HI, "tools": [LOOK]}
        status, kind, message = await refuse(house, body)

    assert (status, kind) == (400, "invalid_request_error")
    assert message == "`tools[0].input_schema`: `not` is not enforced"


async def test_calls_are_blocks_behind_the_text() -> None:
    async with house_of(written(HERMES, [ROME, ("wait", {})], said="So.")) as house:
        answer = await post(house, tools=[LOOK, WAIT], max_tokens=140)

    said, first, second = answer["content"]
    assert said == {"type": "text", "text": "So."}
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "look", {"city": "Rome"})
    assert (second["name"], second["input"]) == ("wait", {})
    assert first["id"].startswith("toolu_")
    assert first["id"] != second["id"]
    assert (answer["stop_reason"], answer["constraint_satisfied"]) == ("tool_use", True)


async def test_a_call_that_is_cut_is_no_block() -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        answer = await post(house, tools=[LOOK], max_tokens=50)

    assert answer["content"] == [{"type": "text", "text": ""}]
    assert answer["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("text", "kind"), [('{"say": "<tool_call>"}', "text"), (written(HERMES, [ROME]), "tool_use")]
)
async def test_an_answer_that_does_not_call_may_have_a_form(text: str, kind: str) -> None:
    checks = FakeChecks()
    schema = {"type": "object", "properties": {"say": {"type": "string"}}}
    form = {"format": {"type": "json_schema", "schema": schema}}
    async with house_of(text, checks) as house:
        answer = await post(house, tools=[LOOK], output_config=form, max_tokens=100)

    assert [block["type"] for block in answer["content"]] == [kind]
    assert kind == "tool_use" or answer["content"][0]["text"] == text
    *parts, (whole, *_) = checks.asked
    assert [json.loads(part.spec.text) for part, *_ in parts] == [CITY, schema]
    offer = AllowedTools((ALLOWED_LOOK,), True, True)
    assert whole.spec.text == tool_grammar(offer, HERMES, parts[-1][0].spec.text)


BOTH = written(HERMES, [ROME, ("wait", {})])


@pytest.mark.parametrize(
    ("text", "reason"), [(BOTH, "tool_use"), (BOTH.partition("wait")[0], "max_tokens")]
)
async def test_an_answer_that_ends_behind_whole_calls_is_not_cut(text: str, reason: str) -> None:
    async with house_of(text + " and more") as house:
        asked = {"tools": [LOOK, WAIT], "max_tokens": len(text)}
        answer = await post(house, **asked)
        events = await stream(house, **asked)

    assert answer["stop_reason"] == reason
    assert events[-2]["delta"]["stop_reason"] == reason


async def test_arguments_are_objects_whatever_a_reference_leads_to() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/Q",
        "definitions": {"Q": {"type": ["object", "null"]}},
    }
    checks = FakeChecks()
    async with house_of("x", checks) as house:
        await post(house, tools=[{"name": "null", "input_schema": schema}])

    (part, *_), _ = checks.asked
    both = {"type": "object", "allOf": [{"$ref": "#/definitions/Q"}]}
    assert json.loads(part.spec.text) == {**schema, "$ref": "#/arguments", "arguments": both}


async def test_calls_are_streamed_as_they_come() -> None:
    async with house_of(written(HERMES, [ROME], said="So.")) as house:
        events = await stream(house, tools=[LOOK, WAIT], max_tokens=100)

    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in starts] == [
        (0, "text"),
        (1, "tool_use"),
    ]
    block = starts[1]["content_block"]
    assert (block["name"], block["input"]) == ("look", {})
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "So."
    pieces = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
    assert "".join(pieces) == '{"city": "Rome"}'
    assert len(pieces) > 10
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == [0, 1]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_an_answer_without_anything_has_an_empty_text() -> None:
    async with house_of("") as house:
        events = await stream(house, tools=[LOOK])

    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_calls_and_results_of_before_reach_the_template() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Rome"}}
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                {"type": "text", "text": "so?"},
            ],
        },
    ]
    async with house_of("x") as house, house.client as client:
        answer = await client.post(
            f"{PATH}/count_tokens", json={"messages": messages, "tools": [LOOK]}
        )
        prompt = (
            'user: hi\nassistant: <tool_call>{"name": "look", "arguments": {"city": "Rome"}}'
            "</tool_call>\n"
            "tool: sunny\nuser: so?\n"
        )

    assert answer.json() == {"input_tokens": len(prompt)}


def test_a_call_whose_number_no_float_is_is_left_out() -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {"far": 1e999}}\n</tool_call>'
    assert content_of(text, CallFormat(HERMES, True)) == ([{"type": "text", "text": ""}], 0)
