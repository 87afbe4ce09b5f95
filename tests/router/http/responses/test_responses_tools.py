"""Tools of /v1/responses: what is asked of the shard, and calls as items, whole and streamed."""

import json
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind, Whitespace
from router.http.tools.grammar import AllowedTool, AllowedTools, add_tools, tool_grammar
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from router.text.template_traits import HERMES
from tests.checks import FakeChecks
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing
from tests.router.http.responses.asking_responses import (
    PATH,
    PROMPT,
    post,
    prompt_of,
    refuse,
    stream,
)
from tests.router.http.tools.calls import Call, written

# It shows nothing of the tools, so that prompts stay short, but reads them.
TEMPLATE = (
    "{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}"
    "{% endfor %}{{ '\n' }}{% endfor %}"
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK = {"type": "function", "name": "look", "description": "see", "parameters": CITY}
WAIT = {"type": "function", "name": "wait", "parameters": {"type": "object"}, "strict": False}
ALLOWED_LOOK = AllowedTool("look", CITY, "tools[0].parameters")
ALLOWED_WAIT = AllowedTool("wait", {"type": "object"}, "tools[1].parameters")
HI = [{"role": "user", "content": "hi"}]
ROME: Call = ("look", {"city": "Rome"})
BOTH = [ROME, ("wait", {})]
ONLY_WAIT = {"type": "allowed_tools", "mode": "required", "tools": [{**WAIT, "strict": None}]}


def house_of(text: str, checks: FakeChecks | None = None) -> Any:
    shard = FakeShard(script=saying(text, len(PROMPT)))
    return housing(shard, templates={"default": TEMPLATE}, checks=checks)


def arguments_of(events: list[Any]) -> list[str]:
    """The streamed arguments of each call, in the order of their items."""
    joined: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            joined[event["item_id"]] = joined.get(event["item_id"], "") + event["delta"]
    return list(joined.values())


@pytest.mark.parametrize(
    ("choice", "offer"),
    [
        ({}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"tool_choice": "auto"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"parallel_tool_calls": False}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, False)),
        ({"tool_choice": "required"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)),
        (
            {"tool_choice": {"type": "function", "name": "wait"}},
            AllowedTools((ALLOWED_WAIT,), False, False),
        ),
        ({"tool_choice": ONLY_WAIT}, AllowedTools((ALLOWED_WAIT,), False, True)),
    ],
    ids=lambda given: str(given)[:40],
)
async def test_tools_and_their_choice_are_one_grammar(choice: Any, offer: AllowedTools) -> None:
    checks = FakeChecks()
    async with house_of("x", checks) as house:
        await post(house, tools=[LOOK, WAIT], **choice)

    *parts, (whole, *_) = checks.asked
    spec = ConstraintSpec(Kind.LARK, tool_grammar(offer, HERMES), Whitespace.SPACED)
    assert whole == Constraint(spec)
    assert [json.loads(part.spec.text) for part, *_ in parts] == [
        tool.parameters for tool in offer.tools
    ]


async def test_tools_that_are_not_to_be_called_leave_answers_free() -> None:
    checks = FakeChecks()
    async with house_of("ok", checks) as house:
        answer = await post(house, tools=[LOOK], tool_choice="none")

    assert checks.asked == []
    assert [item["type"] for item in answer["output"]] == ["message"]


async def test_a_tool_that_cannot_be_kept_is_refused_by_its_place() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})
    async with house_of("x", FakeChecks(lambda _: reason)) as house, house.client as client:
        answer = await client.post(PATH, json={"input": "hi", "tools": [LOOK]})

    error = answer.json()["error"]
    assert answer.status_code == 422
    assert (error["param"], error["code"]) == ("tools[0].parameters", "not_enforced")


async def test_calls_are_items_behind_the_message() -> None:
    async with house_of(written(HERMES, BOTH, said="So.")) as house:
        answer = await post(house, tools=[LOOK, WAIT], max_output_tokens=140)

    message, first, second = answer["output"]
    assert (message["type"], message["status"]) == ("message", "completed")
    assert message["content"][0]["text"] == "So."
    ids = {item.pop(key) for item in (first, second) for key in ("id", "call_id")}
    assert first == {
        "type": "function_call",
        "status": "completed",
        "name": "look",
        "arguments": '{"city": "Rome"}',
    }
    assert second == {**first, "name": "wait", "arguments": "{}"}
    assert sorted(one.partition("_")[0] for one in ids) == ["call", "call", "fc", "fc"]
    assert (answer["status"], answer["constraint_satisfied"]) == ("completed", True)


async def test_a_call_alone_is_the_whole_output() -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        answer = await post(house, tools=[LOOK], tool_choice="required", max_output_tokens=100)

    assert [item["type"] for item in answer["output"]] == ["function_call"]


async def test_text_alone_is_a_message() -> None:
    async with house_of("So, <tool") as house:
        answer = await post(house, tools=[LOOK])

    (message,) = answer["output"]
    assert message["content"][0]["text"] == "So, <tool"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_is_cut_is_incomplete(streams: bool) -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        asked = {"tools": [LOOK], "max_output_tokens": 50}
        if streams:
            answer = (await stream(house, **asked))[-1]["response"]
        else:
            answer = await post(house, **asked)

    (call,) = answer["output"]
    assert (call["name"], call["status"]) == ("look", "incomplete")
    assert '{"city": "Rome"}'.startswith(call["arguments"])
    assert answer["status"] == "incomplete"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        (written(HERMES, BOTH), "completed"),
        (written(HERMES, BOTH).partition("wait")[0], "incomplete"),
    ],
)
async def test_a_response_that_ends_behind_whole_calls_is_complete(
    text: str, status: str, streams: bool
) -> None:
    async with house_of(text + " and more") as house:
        asked = {"tools": [LOOK, WAIT], "max_output_tokens": len(text)}
        if streams:
            *_, last = await stream(house, **asked)
            assert last["type"] == f"response.{status}"
            answer = last["response"]
        else:
            answer = await post(house, **asked)

    is_cut = status == "incomplete"
    assert answer["status"] == status
    assert answer["incomplete_details"] == ({"reason": "max_output_tokens"} if is_cut else None)
    assert (answer["completed_at"] is None) == is_cut
    assert {item["status"] for item in answer["output"]} == {"completed"}


async def test_tools_and_their_choice_are_told_back() -> None:
    async with house_of("x") as house:
        answer = await post(house, tools=[LOOK, WAIT], tool_choice=ONLY_WAIT)
        bare = await post(house, tools=[LOOK])

    assert answer["tools"] == [{**LOOK, "strict": True}, {**WAIT, "description": None}]
    wanted = [{"type": "function", "name": "wait"}]
    assert answer["tool_choice"] == {**ONLY_WAIT, "tools": wanted}
    assert bare["tool_choice"] == "auto"


async def test_calls_are_streamed_as_they_come() -> None:
    async with house_of(written(HERMES, BOTH, said="So.")) as house:
        events = await stream(house, tools=[LOOK, WAIT], max_output_tokens=140)

    last = events[-1]
    assert last["type"] == "response.completed"
    message, first, second = last["response"]["output"]
    deltas = ("response.output_text.delta", "response.function_call_arguments.delta")
    assert [event["type"] for event in events[2:-1] if event["type"] not in deltas] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *(
            "response.output_item.added",
            "response.function_call_arguments.done",
            "response.output_item.done",
        )
        * 2,
    ]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    begun = [{**call, "status": "in_progress", "arguments": ""} for call in (first, second)]
    assert [event["item"] for event in added[1:]] == begun
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [(event["output_index"], event["item"]) for event in done] == [
        (0, message),
        (1, first),
        (2, second),
    ]
    assert arguments_of(events) == [first["arguments"], second["arguments"]]
    assert len([event for event in events if event["type"] == deltas[1]]) > 10
    told = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [(e["item_id"], e["output_index"], e["name"], e["arguments"]) for e in told] == [
        (first["id"], 1, "look", first["arguments"]),
        (second["id"], 2, "wait", "{}"),
    ]


async def test_log_probabilities_are_of_the_text_and_not_of_the_calls() -> None:
    asked = {"tools": [LOOK], "top_logprobs": 1, "max_output_tokens": 140}
    async with house_of(written(HERMES, [ROME], said="So, <b>")) as house:
        answer = await post(house, **asked)
        events = await stream(house, **asked)

    told = answer["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in told) == "So, <b>"
    streamed = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in streamed for entry in event["logprobs"]] == told
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told


async def loop(house: House, first: dict[str, Any], **given: Any) -> str:
    """The prompt with which an answer goes on, once its calls have their outputs."""
    house.shard.calls.clear()
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        for call, output in zip(calls, ("sun", [{"type": "input_text", "text": "ok"}]), strict=True)
    ]
    before = given.pop("before", [])
    await post(house, [*before, *outputs], tools=[LOOK, WAIT], max_output_tokens=1, **given)
    return prompt_of(house)


async def test_an_answer_goes_on_from_what_its_calls_came_to() -> None:
    template = (
        "{% if tools %}{% endif %}{% for m in messages %}{{ m.role[0] }}:{{ m.content or '' }}"
        "{% for call in m.tool_calls or [] %}"
        "[{{ call.function.name }}{{ call.function.arguments | tojson }}]{% endfor %};{% endfor %}"
    )
    shard = FakeShard(script=saying(written(HERMES, BOTH, said="S"), len("u:hi;")))
    async with housing(shard, templates={"default": template}) as house:
        first = await post(house, HI, tools=[LOOK, WAIT], max_output_tokens=140)
        repeated = await loop(house, first, before=[*HI, *first["output"]])
        remembered = await loop(house, first, previous_response_id=first["id"])

    assert repeated == remembered
    assert remembered == 'u:hi;a:S[look{"city": "Rome"}][wait{}];t:sun;t:ok;'


SAY = {"type": "object", "properties": {"say": {"type": "string"}}}
FORM = {"format": {"type": "json_schema", "name": "say", "schema": SAY}}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [('{"say": "<tool_call>"}', ["message"]), (written(HERMES, [ROME]), ["function_call"])],
    ids=["says", "calls"],
)
async def test_an_answer_that_does_not_call_may_have_a_form(text: str, kinds: list[str]) -> None:
    checks = FakeChecks()
    async with house_of(text, checks) as house:
        answer = await post(house, tools=[LOOK], text=FORM, max_output_tokens=100)

    assert [item["type"] for item in answer["output"]] == kinds
    if kinds == ["message"]:
        assert answer["output"][0]["content"][0]["text"] == text
    *parts, (whole, *_) = checks.asked
    assert [json.loads(part.spec.text) for part, *_ in parts] == [CITY, SAY]
    grammar = tool_grammar(
        AllowedTools((ALLOWED_LOOK,), True, True), HERMES, parts[-1][0].spec.text
    )
    assert whole.spec.text == grammar


async def test_a_form_that_cannot_be_kept_is_named_beside_tools() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})

    def refuse_form(constraint: Constraint) -> ConstraintRefused | None:
        return reason if "say" in constraint.spec.text else None

    async with house_of("x", FakeChecks(refuse_form)) as house, house.client as client:
        answer = await client.post(PATH, json={"input": "hi", "tools": [LOOK], "text": FORM})

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "text.format")


async def test_a_form_and_calls_that_are_json_are_refused() -> None:
    bare = (
        "{% for m in messages %}{% for call in m.tool_calls or [] %}"
        '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'
        "{% else %}{{ m.content }}{% endfor %}{% endfor %}"
    )
    async with housing(FakeShard(), templates={"default": bare}) as house:
        status, error = await refuse(house, {"input": "hi", "tools": [WAIT], "text": FORM})
        told = {"tools": [WAIT], "text": FORM, "tool_choice": "none", "max_output_tokens": 1}
        await post(house, **told)

    assert (status, error["param"], error["code"]) == (422, "text.format", "tool_error")


async def count(template: str, **fields: Any) -> int:
    """The length of a prompt, which may be too long to be answered."""
    house = housing(FakeShard(), templates={"default": template})
    async with house as opened, opened.client as client:
        answer = await client.post(f"{PATH}/input_tokens", json={"input": "hi", **fields})
    return int(answer.json()["input_tokens"])


async def test_tools_are_told_to_a_model_whose_template_shows_none() -> None:
    template = "{{ messages[-1].content }}"
    tools = [{"type": "function", "name": "n"}]
    told = [{"type": "function", "function": {"name": "n"}}]
    callable_len = await count(template, tools=tools)

    assert callable_len == len("".join(tell["content"] for tell in add_tools(HI, told, HERMES)))
    assert await count(template, tools=tools, tool_choice="none") == len("hi")


async def test_tools_are_counted_as_they_are_shown() -> None:
    function = {"name": "wait", "parameters": {"type": "object"}}
    shown = json.dumps([{"type": "function", "function": function}])
    template = "{{ tools | tojson if tools else 'none' }}"

    assert await count(template, tools=[{"type": "function", **function}]) == len(shown)
    assert await count(template) == len("none")
