"""Answers that think, say and call, in every API: whole and streamed they tell the same."""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pytest

from router.http.answers import ReadingRules
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL, byte_ids
from tests.fakes import FakeShard
from tests.router.http.answering import (
    CHAT,
    MESSAGES,
    PATHS,
    RESPONSES,
    SCHEMA,
    TOOLS,
    body_of,
    events_in,
    told,
    told_by_events,
)
from tests.router.http.harness import House, housing
from tests.scripted_model import CHANNELS, JSON_CALLS, TAGGED_CALLS

ROME = {"city": "Rome"}
JSON_CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>'
TAGGED_CALL = "<tool_call>\n<function=look>\n<parameter=city>\nRome\n</parameter>\n</function>\n"
TAGGED_CALL += "</tool_call>"
CHANNEL_CALL = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
CHANNEL_CALL += '{"city": "Rome"}'
# Of each template an answer that thinks and says, and one that thinks and calls.
ANSWERS: dict[str, tuple[str, str, str]] = {
    "opened by the model": (
        JSON_CALLS,
        "<think>\nHm.\n</think>\n\nHello!",
        f"<think>\nHm.\n</think>\n\n{JSON_CALL}",
    ),
    "opened by the prompt": (
        TAGGED_CALLS,
        "Hm.\n</think>\n\nHello!",
        f"Hm.\n</think>\n\n{TAGGED_CALL}",
    ),
    "in channels": (
        CHANNELS,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello!",
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{CHANNEL_CALL}",
    ),
}


class Scripted:
    """A script of a FakeShard: each new prompt gets the next text, then the end."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [*texts]
        self._answers: list[tuple[list[int], list[int]]] = []

    def __call__(self, token_ids: Sequence[int]) -> int:
        given = list(token_ids)
        for prompt, ids in self._answers:
            rest = given[len(prompt) :]
            if given[: len(prompt)] == prompt and rest == ids[: len(rest)]:
                return ids[len(rest)]
        ids = [*byte_ids(self._texts.pop(0)), EOS_ID]
        self._answers.append((given, ids))
        return ids[0]


def saying(*texts: str) -> FakeShard:
    return FakeShard(script=Scripted(texts), num_blocks=1024)


def house_of(template: str, *texts: str, **more: Any) -> Any:
    return housing(saying(*texts), templates={"default": template}, max_total_len=2048, **more)


async def post(house: House, path: str, **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(path, json=body_of(path, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(house: House, path: str, **fields: Any) -> list[Any]:
    """The data of the events."""
    async with house.client as client:
        answer = await client.post(path, json=body_of(path, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    return events_in(answer.text)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_thought_is_told_apart_from_text_and_calls(kind: str, path: str) -> None:
    template, saying_text, calling_text = ANSWERS[kind]
    tools = {"tools": [TOOLS[path]]}
    async with house_of(template, saying_text, calling_text) as house:
        for fields, expected in (
            ({}, ("Hm.", "Hello!", [])),
            (tools, ("Hm.", "", [("look", ROME)])),
        ):
            assert told(path, await post(house, path, **fields)) == expected
            assert told_by_events(path, await stream(house, path, **fields)) == expected


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("Hi", "<think>\nHm.\n</think>\n\nHello!", ("Hm.", len("<think>\nHm.\n</think>"))),
        ("Hi<think>\n", "Hm.\n</think>Hello!", ("Hm.", len("Hm.\n</think>"))),
        ("Hi<think>", "Hm, cut", ("Hm, cut", len("Hm, cut") + 1)),
        ("Hi", "Hello! <think>no</think>", (None, None)),
        ("<think>\nHi</think>", "\nHello!", (None, None)),
        ("Hi", "<think>\n</think>Hello!", (None, None)),
    ],
)
async def test_details_of_a_raw_prompt_tell_the_thought_and_the_text_stays_whole(
    prompt: str, text: str, expected: tuple[str | None, int | None]
) -> None:
    parameters = {"details": True, "max_new_tokens": 100}
    body = {"inputs": prompt, "parameters": parameters}
    async with house_of(JSON_CALLS, text, text) as house, house.client as client:
        whole = (await client.post("/generate", json=body)).json()
        streamed = await client.post("/generate_stream", json=body)
    last = events_in(streamed.text)[-1]

    assert whole["generated_text"] == last["generated_text"] == text
    assert "".join(token["text"] for token in whole["details"]["tokens"][:-1]) == text
    for details in (whole["details"], last["details"]):
        assert (details.get("reasoning"), details.get("reasoning_tokens")) == expected


async def test_details_tell_no_thought_where_thoughts_are_left_in_the_text() -> None:
    body = {"inputs": "Hi", "parameters": {"details": True, "max_new_tokens": 100}}
    rules = ReadingRules(separates_thoughts=False)
    async with house_of(JSON_CALLS, SAID, reading_rules=rules) as house, house.client as client:
        details = (await client.post("/generate", json=body)).json()["details"]
    assert "reasoning" not in details


def prompt_of(house: House) -> str:
    """What the shard was asked for last."""
    calls = [call for method, call in house.shard.calls if method == "Prefill"]
    request = calls[-1].batch.requests[0]
    ids = request.token_ids[: request.prompt_len]
    return bytes(token_id - NUM_SPECIAL for token_id in ids).decode()


def constraint_of(house: House) -> Any:
    calls = [call for method, call in house.shard.calls if method == "Prefill"]
    return calls[-1].batch.requests[0].constraint


SAID = "<think>\nHm.\n</think>\n\nHello!"
# Bytes, which here are tokens, up to the end of the mark that closes the thought.
NUM_THOUGHT = len("<think>\nHm.\n</think>")


async def test_the_tokens_of_a_thought_are_counted() -> None:
    async with house_of(JSON_CALLS, SAID, SAID, SAID, SAID) as house:
        usages = [
            (await post(house, CHAT))["usage"],
            (await stream(house, CHAT, stream_options={"include_usage": True}))[-1]["usage"],
        ]
        for usage in usages:
            assert usage["completion_tokens_details"]["reasoning_tokens"] == NUM_THOUGHT
        responses = [
            await post(house, RESPONSES),
            (await stream(house, RESPONSES))[-1]["response"],
        ]
        for response in responses:
            details = response["usage"]["output_tokens_details"]
            assert details["reasoning_tokens"] == NUM_THOUGHT


async def test_a_thought_that_is_not_to_be_seen_is_left_out_and_counts() -> None:
    async with house_of(JSON_CALLS, SAID, SAID, SAID, SAID) as house:
        answer = await post(house, CHAT, include_reasoning=False)
        message = answer["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "Hello!", "refusal": None}
        details = answer["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == NUM_THOUGHT
        events = await stream(house, CHAT, include_reasoning=False)
        assert told_by_events(CHAT, events) == ("", "Hello!", [])

        hidden = {"thinking": {"type": "adaptive", "display": "omitted"}}
        thought, text = (await post(house, MESSAGES, **hidden))["content"]
        assert (thought["thinking"], text["text"]) == ("", "Hello!")
        events = await stream(house, MESSAGES, **hidden)
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert deltas[0] == {"type": "signature_delta", "signature": thought["signature"]}
        assert {delta["type"] for delta in deltas[1:]} == {"text_delta"}


async def test_a_signature_is_the_same_for_the_same_thought() -> None:
    async with house_of(JSON_CALLS, SAID, SAID) as house:
        blocks = [(await post(house, MESSAGES))["content"][0] for _ in range(2)]
    assert blocks[0] == blocks[1]
    assert blocks[0]["type"] == "thinking"
    assert len(blocks[0]["signature"]) > 40


async def test_a_thought_is_an_item_with_its_events_before_the_message() -> None:
    async with house_of(JSON_CALLS, SAID, SAID) as house:
        events = await stream(house, RESPONSES)
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert [*dict.fromkeys(kinds)] == [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "output_item.done",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "completed",
        ]
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        item, message = events[-1]["response"]["output"]
        assert item["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert (item["summary"], item["status"]) == ([], "completed")
        done = [event["item"] for event in events if event["type"].endswith("output_item.done")]
        assert done == [item, message]
        places = {event["item_id"]: event["output_index"] for event in events if "item_id" in event}
        assert places == {item["id"]: 0, message["id"]: 1}

        included = await post(house, RESPONSES, include=["reasoning.encrypted_content"])
        assert b64decode(included["output"][0]["encrypted_content"]) == b"Hm."


# What an assistant thought and said, as clients of each API send it back.
THOUGHTS: list[tuple[str, Any, str]] = [
    (CHAT, [{"role": "assistant", "content": "ha", "reasoning": "Hm."}], "messages[1].reasoning"),
    (
        CHAT,
        [{"role": "assistant", "content": "ha", "reasoning_content": "Hm."}],
        "messages[1].reasoning_content",
    ),
    (
        CHAT,
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm."},
                    {"type": "text", "text": "ha"},
                ],
            }
        ],
        "messages[1].content",
    ),
    (
        MESSAGES,
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "another's"},
                    {"type": "text", "text": "ha"},
                ],
            }
        ],
        "messages[1].content[0]",
    ),
    (
        RESPONSES,
        [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"role": "assistant", "content": "ha"},
        ],
        "input[1]",
    ),
    (
        RESPONSES,
        [
            {"type": "reasoning", "summary": [], "encrypted_content": "SG0u"},
            {"role": "assistant", "content": "ha"},
        ],
        "input[1]",
    ),
]
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


async def test_a_thought_that_comes_back_reaches_the_template() -> None:
    shown = "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nha<|im_end|>\n"
    async with house_of(JSON_CALLS, *["ok"] * len(THOUGHTS)) as house, house.client as client:
        for path, turns, _ in THOUGHTS:
            field = "input" if path == RESPONSES else "messages"
            body = body_of(path)
            body[field] = [*body[field], *turns, *body[field]]
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert "x-ignored-fields" not in answer.headers
            assert shown in prompt_of(house)


async def test_a_thought_that_the_template_does_not_show_is_left_out_and_named() -> None:
    async with house_of(PLAIN, *["ok"] * len(THOUGHTS)) as house, house.client as client:
        for path, turns, named in THOUGHTS:
            field = "input" if path == RESPONSES else "messages"
            body = body_of(path)
            body[field] = [*body[field], *turns, *body[field]]
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, named)
            assert prompt_of(house) == "user: hi\nassistant: ha\nuser: hi\n"


OFF: list[tuple[str, Any]] = [
    (CHAT, {"reasoning_effort": "none"}),
    (CHAT, {"thinking": {"type": "disabled"}}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
    (MESSAGES, {"thinking": {"type": "disabled"}}),
    (RESPONSES, {"reasoning": {"effort": "none"}}),
]


async def test_a_thought_is_switched_off_by_the_template_s_own_switch() -> None:
    async with house_of(JSON_CALLS, *["Hello!"] * len(OFF)) as house:
        for path, fields in OFF:
            answer = await post(house, path, **fields)
            assert told(path, answer) == ("", "Hello!", [])
            assert prompt_of(house).endswith("assistant\n<think>\n\n</think>\n\n")


WISHES: list[tuple[str, Any, str]] = [
    (CHAT, {"thinking": {"type": "enabled"}}, "thinking"),
    (CHAT, {"thinking_token_budget": 5}, "thinking_token_budget"),
    (MESSAGES, {"thinking": {"type": "enabled"}}, "thinking"),
]


async def test_wishes_of_a_model_that_does_not_think_are_named() -> None:
    async with house_of(PLAIN, *["ok"] * len(WISHES)) as house, house.client as client:
        for path, fields, named in WISHES:
            answer = await client.post(path, json=body_of(path, **fields))
            assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, named)


async def test_a_budget_and_a_constraint_begin_where_the_thought_does() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    said = '<think>\nHm.\n</think>\n\n{"city": "Rome"}'
    async with house_of(JSON_CALLS, SAID, said) as house:
        await post(house, CHAT, thinking_token_budget=7)
        thought = constraint_of(house).thought
        assert (thought.opener, thought.closer) == ("<think>", "</think>")
        assert (thought.is_begun, thought.max_len) == (False, 7)
        answer = await post(house, CHAT, said="Rome?", response_format=form)
        assert constraint_of(house).thought.closer == "</think>"
        assert told(CHAT, answer) == ("Hm.", '{"city": "Rome"}', [])


async def test_a_thought_may_come_before_calls_though_each_answer_begins_as_it_ends() -> None:
    tools = {"tools": [TOOLS[CHAT]]}
    async with house_of(CHANNELS, ANSWERS["in channels"][2]) as house:
        await post(house, CHAT, **tools)
        assert constraint_of(house).thought.closer == "<|end|><|start|>assistant"
    async with house_of(JSON_CALLS, JSON_CALL) as house:
        await post(house, CHAT, reasoning_effort="none", **tools)
        assert not constraint_of(house).HasField("thought")


async def test_a_budget_breaks_no_rule() -> None:
    async with house_of(JSON_CALLS, SAID) as house, house.client as client:
        for fields, param in (
            ({"thinking_token_budget": -2}, "thinking_token_budget"),
            ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens"),
            ({"thinking": {"type": "often"}}, "thinking.type"),
        ):
            answer = await client.post(CHAT, json=body_of(CHAT, **fields))
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_stop_strings_are_looked_for_behind_the_thought() -> None:
    async with house_of(JSON_CALLS, "<think>\nHm, no.\n</think>\n\nYes, no.") as house:
        answer = await post(house, CHAT, stop=[","])
    assert told(CHAT, answer) == ("Hm, no.", "Yes", [])
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_thoughts_may_stay_in_the_content() -> None:
    rules = ReadingRules(separates_thoughts=False)
    async with house_of(JSON_CALLS, SAID, SAID, reading_rules=rules) as house:
        assert told(CHAT, await post(house, CHAT)) == ("", SAID, [])
        assert told_by_events(CHAT, await stream(house, CHAT)) == ("", SAID, [])


# Some numbers are written wrong, which no reader could undo.
_ARGUMENTS = "call.function.arguments | tojson"
UNREADABLE = JSON_CALLS.replace(_ARGUMENTS, f"({_ARGUMENTS} | replace('-', ''))")


async def test_calls_that_cannot_be_read_back_are_refused_unless_a_generic_form_will_do() -> None:
    async with house_of(UNREADABLE, "ok") as house, house.client as client:
        for path in PATHS:
            answer = await client.post(path, json=body_of(path, tools=[TOOLS[path]]))
            assert answer.status_code in (400, 422)
            assert "could not be read back (arguments of all types: " in answer.text
        none = body_of(CHAT, tools=[TOOLS[CHAT]], tool_choice="none")
        assert (await client.post(CHAT, json=none)).status_code == 200
        info = (await client.get("/info")).json()
    assert (info["calls"]["form"], info["calls"]["proven"]) == (None, False)

    rules = ReadingRules(takes_unproven_tools=True)
    async with house_of(UNREADABLE, JSON_CALL, reading_rules=rules) as house:
        answer = await post(house, CHAT, tools=[TOOLS[CHAT]])
        assert told(CHAT, answer) == ("", "", [("look", ROME)])
        assert "To call one of these functions, answer with <tool_call>" in prompt_of(house)


async def test_the_server_says_what_it_has_read_of_the_template() -> None:
    async with house_of(TAGGED_CALLS) as house, house.client as client:
        info = (await client.get("/info")).json()
    assert info["calls"] == {
        "form": "template",
        "several": True,
        "proven": True,
        "reason": None,
        "example": "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
        "</function>\n</tool_call>",
    }
    assert info["thoughts"] == {
        "open": "<think>\n",
        "close": "\n</think>\n\n",
        "field": "reasoning_content",
        "proven": True,
        "reason": None,
    }
