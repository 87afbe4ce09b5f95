"""Calls of tools: what is checked and asked of the shard, and answers in OpenAI's words."""

import json
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind, StopRule, Whitespace
from router.http.tools.grammar import AllowedTool, AllowedTools, tool_grammar
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from router.text.template_traits import HERMES
from tests.checks import FakeChecks
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing
from tests.router.http.openai.asking import CHAT, HI, choices_of, post, refuse, stream, text_of
from tests.router.http.tools.calls import MISTRAL, Call, written

# It shows nothing of the tools, so that prompts stay short, but reads them.
TEMPLATE = (
    "{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
LISTING = TEMPLATE.replace(
    "{{ m.content }}",
    "{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{{ c.function | tojson }}"
    "{% endfor %}]{% else %}{{ m.content }}{% endif %}{{ '' }}",
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
LOOK = {"type": "function", "function": {"name": "look", "parameters": CITY, "strict": True}}
WAIT = {"type": "function", "function": {"name": "wait"}}
TOOLS = [LOOK, WAIT]
ALLOWED_LOOK = AllowedTool("look", CITY, "tools[0].function.parameters")
ALLOWED_WAIT = AllowedTool("wait", NOTHING, "tools[1].function.parameters")
ROME: Call = ("look", {"city": "Rome"})


def house_of(text: str, *, template: str = TEMPLATE, checks: FakeChecks | None = None) -> Any:
    shard = FakeShard(script=saying(text, len("user: hi\n")))
    return housing(shard, templates={"default": template}, checks=checks)


async def asked(fields: dict[str, Any], template: str = TEMPLATE) -> list[Any]:
    """What the check was asked about a chat that ends at once."""
    checks = FakeChecks()
    async with house_of("x", template=template, checks=checks) as house:
        await post(house, CHAT, {"messages": HI, "max_tokens": 9, **fields})
    return checks.asked


def lark(offer: AllowedTools) -> ConstraintSpec:
    return ConstraintSpec(Kind.LARK, tool_grammar(offer, HERMES), Whitespace.SPACED)


NAMED = {"type": "function", "function": {"name": "wait"}}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "wait"}}],
    },
}


@pytest.mark.parametrize(
    ("fields", "offer"),
    [
        ({}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"tool_choice": "auto"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"parallel_tool_calls": False}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, False)),
        ({"tool_choice": "required"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, False),
        ),
        ({"tool_choice": NAMED}, AllowedTools((ALLOWED_WAIT,), False, False)),
        ({"tool_choice": "wait"}, AllowedTools((ALLOWED_WAIT,), False, False)),
        ({"tool_choice": ALLOWED}, AllowedTools((ALLOWED_WAIT,), False, True)),
    ],
)
async def test_tools_and_their_choice_are_one_grammar(fields: Any, offer: AllowedTools) -> None:
    *parts, (whole, stops, max_len, cuts) = await asked({"tools": TOOLS, **fields})

    assert whole == Constraint(lark(offer))
    assert (stops, max_len, cuts) == (StopRule(kept=False), 9, False)
    assert [json.loads(part.spec.text) for part, *_ in parts] == [
        tool.parameters for tool in offer.tools
    ]
    assert all(cuts for *_, cuts in parts)


SAY = {"type": "object", "properties": {"say": {"type": "string"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "say", "schema": SAY}}


async def test_openai_s_form_is_that_of_an_answer_that_does_not_call() -> None:
    *parts, (whole, *_) = await asked({"tools": TOOLS, "response_format": FORM})

    assert [json.loads(part.spec.text) for part, *_ in parts] == [CITY, NOTHING, SAY]
    offer = AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)
    text = parts[-1][0].spec.text
    assert whole.spec.text == tool_grammar(offer, HERMES, text)
    *_, (alone, *_) = await asked(
        {"tools": TOOLS, "response_format": FORM, "tool_choice": "required"}
    )
    assert alone == Constraint(lark(AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)))


@pytest.mark.parametrize(
    "more", [{"whitespace": "compact"}, {"lenient": True}, {"on_budget": "cut"}]
)
async def test_a_form_that_says_more_does_not_go_with_tools(more: Any) -> None:
    async with house_of("x") as house:
        body = {"messages": HI, "tools": TOOLS, "response_format": {**FORM, **more}}
        status, error = await refuse(house, CHAT, body)

    assert (status, error["code"], error["param"]) == (422, "tool_error", "response_format")


async def test_a_form_is_streamed_as_content_beside_tools() -> None:
    text = '{"say": "<tool_call>"}'
    async with house_of(text) as house:
        body = {"messages": HI, "tools": TOOLS, "response_format": FORM, "max_tokens": 60}
        chunks = await stream(house, CHAT, body)

    assert "".join(one["delta"].get("content") or "" for one in choices_of(chunks)) == text


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_without_a_tool_to_call_answers_are_free(fields: Any) -> None:
    assert await asked(fields) == []


async def test_a_tool_that_cannot_be_kept_is_refused_by_its_place() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})

    def refused(constraint: Constraint) -> ConstraintRefused | None:
        return reason if "Rome" in constraint.spec.text else None

    odd = {"name": "odd", "parameters": {"not": {"const": "Rome"}}}
    tools = [WAIT, {"type": "function", "function": odd}]
    async with house_of("x", checks=FakeChecks(refused)) as house, house.client as client:
        answer = await client.post(CHAT, json={"messages": HI, "tools": tools})

    assert answer.status_code == 422
    assert answer.json()["error"] == {
        "message": "`tools[1].function.parameters`: `not` is not enforced",
        "type": "invalid_request_error",
        "param": "tools[1].function.parameters",
        "code": "not_enforced",
        "constraint": {"reason": "not_enforced", "pointer": "/not"},
    }


async def test_calls_that_do_not_fit_are_refused_with_the_numbers() -> None:
    reason = ConstraintRefused("too short", "does_not_fit", {"needed_len": 12, "max_len": 3})

    def refused(constraint: Constraint) -> ConstraintRefused | None:
        return reason if constraint.spec.kind is Kind.LARK else None

    body = {"messages": HI, "tools": TOOLS, "tool_choice": "required", "max_tokens": 3}
    async with house_of("x", checks=FakeChecks(refused)) as house, house.client as client:
        error = (await client.post(CHAT, json=body)).json()["error"]

    assert (error["param"], error["code"]) == ("tools", "does_not_fit")
    assert error["constraint"] == {"reason": "does_not_fit", "needed_len": 12, "max_len": 3}


def calls_in(message: Any) -> list[Call]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]


async def answer_of(house: House, **fields: Any) -> Any:
    answer = await post(house, CHAT, {"messages": HI, "tools": TOOLS, **fields})
    return answer["choices"][0]


async def test_calls_are_the_message_and_the_reason() -> None:
    async with house_of(written(HERMES, [ROME, ("wait", {})])) as house:
        choice = await answer_of(house)

    message = choice["message"]
    assert message.keys() == {"role", "content", "refusal", "tool_calls"}
    assert (message["role"], message["content"]) == ("assistant", None)
    assert calls_in(message) == [ROME, ("wait", {})]
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(each.startswith("call_") for each in ids)
    assert choice["finish_reason"] == "tool_calls"


async def test_text_before_the_calls_is_content() -> None:
    async with house_of(written(HERMES, [ROME], said="I look.\n")) as house:
        choice = await answer_of(house)

    assert choice["message"]["content"] == "I look.\n"
    assert calls_in(choice["message"]) == [ROME]


async def test_an_answer_that_calls_nothing_is_text() -> None:
    async with house_of("Hello.") as house:
        choice = await answer_of(house)

    assert choice["message"] == {"role": "assistant", "content": "Hello.", "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_the_ids_are_those_that_the_template_takes() -> None:
    async with house_of(written(MISTRAL, [ROME]), template=LISTING) as house:
        choice = await answer_of(house)

    (call,) = choice["message"]["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


async def test_a_call_that_is_cut_says_so() -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        choice = await answer_of(house, max_tokens=50)

    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Rome"}'.startswith(call["function"]["arguments"])
    assert choice["finish_reason"] == "length"


NULLABLE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$ref": "#/definitions/Q",
    "definitions": {"Q": {"type": ["object", "null"]}},
}


async def test_arguments_are_objects_whatever_a_reference_leads_to() -> None:
    null = {"type": "function", "function": {"name": "null", "parameters": NULLABLE}}
    (part, *_), _ = await asked({"tools": [null]})

    schema = json.loads(part.spec.text)
    both = {"type": "object", "allOf": [{"$ref": "#/definitions/Q"}]}
    assert schema == {**NULLABLE, "$ref": "#/arguments", "arguments": both}


TWO = [ROME, ("wait", {})]
# Behind how much of an answer its tokens are used up, and what its end is called.
ENDS = [
    (written(HERMES, TWO), "tool_calls"),
    (written(HERMES, [ROME], said="So."), "tool_calls"),
    (written(HERMES, TWO)[:-1], "length"),
    (written(HERMES, TWO).removesuffix("</tool_call>"), "length"),
    (written(HERMES, TWO).partition("</tool_call>")[0] + "</tool_call>\n", "tool_calls"),
    (written(HERMES, TWO).partition("wait")[0], "length"),
    (written(HERMES, TWO).partition("wait")[0] + "wait", "length"),
    ("So, I", "length"),
]


@pytest.mark.parametrize(("text", "reason"), ENDS)
async def test_an_answer_that_ends_behind_whole_calls_is_not_cut(text: str, reason: str) -> None:
    asked = {"messages": HI, "tools": TOOLS, "max_tokens": len(text)}
    async with house_of(text + " and more") as house:
        whole = await post(house, CHAT, asked)
        chunks = await stream(house, CHAT, asked)

    assert whole["choices"][0]["finish_reason"] == reason
    assert choices_of(chunks)[-1]["finish_reason"] == reason


async def test_whole_calls_that_are_not_all_that_was_asked_for_are_cut() -> None:
    text = written(HERMES, [ROME])
    shard = FakeShard(script=saying(text + " and more", len("user: hi\n")))
    shard.followed.satisfied = False
    async with housing(shard, templates={"default": TEMPLATE}) as house:
        choice = await answer_of(house, max_tokens=len(text))

    assert (choice["finish_reason"], choice["constraint_satisfied"]) == ("length", False)


async def test_calls_are_streamed_as_they_come() -> None:
    text = written(HERMES, [ROME, ("wait", {})], said="So.")
    async with house_of(text) as house:
        chunks = await stream(house, CHAT, {"messages": HI, "tools": TOOLS})

    first, *choices, last = choices_of(chunks)
    assert first["delta"] == {"role": "assistant", "content": None, "refusal": None}
    assert text_of(chunks[1:]) == "So."
    deltas = [c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"]]
    begun = [delta for delta in deltas if "id" in delta]
    assert [(each["index"], each["type"], each["function"]) for each in begun] == [
        (0, "function", {"name": "look", "arguments": ""}),
        (1, "function", {"name": "wait", "arguments": ""}),
    ]
    for index, arguments in ((0, '{"city": "Rome"}'), (1, "{}")):
        pieces = [d["function"]["arguments"] for d in deltas if d["index"] == index]
        assert "".join(pieces) == arguments
        assert len(pieces) > len(arguments)
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


async def test_log_probabilities_come_once_for_each_token_of_a_call() -> None:
    text = written(HERMES, [ROME])
    async with house_of(text) as house:
        fields = {"messages": HI, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
        chunks = await stream(house, CHAT, fields)
        whole = await post(house, CHAT, fields)

    choices = choices_of(chunks)
    entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    ids = [token_id for c in choices for token_id in c.get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]


@pytest.mark.parametrize("prompt", [None, "Say it."])
async def test_a_template_without_tools_gets_them_behind_the_last_words(prompt: str | None) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    wait = {"type": "function", "function": {"name": "w"}}
    body = {"messages": HI, "tools": [wait], "tool_prompt": prompt}
    async with house_of("x", template=plain) as house, house.client as client:
        answer = await client.post("/chat_tokenize", json=body)

    said = prompt or f"To call one of these functions, answer with {HERMES.example}"
    assert answer.json()["templated_text"] == (
        'hi\n---\n[{"type":"function","function":{"name":"w"}}]\n' + said
    )


async def test_a_server_that_takes_no_grammar_takes_no_tools_either() -> None:
    async with housing(FakeShard(), templates={"default": TEMPLATE}, takes_grammars=False) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "tools": TOOLS})

    assert (status, error["param"]) == (400, "tools")
    assert error["message"] == "grammar is not supported"
