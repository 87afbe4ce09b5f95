"""GENERATE in version 2: text in, text out, and DONE."""

from typing import Any

import pytest

from tests.byte_tokenizer import BOS_ID, EOS_ID, byte_ids
from tests.checks import FakeChecks
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking
from tests.router.rig import expected_text, says

GREETING = {
    "version",
    "server",
    "models",
    "eos_token_ids",
    "vocab_size",
    "max_input_len",
    "max_total_len",
    "max_message_len",
    "max_streams",
    "features",
}


async def test_the_greeting_says_what_the_server_takes() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        hello = await talk.hello()

    assert hello.keys() >= GREETING
    assert (hello["version"], hello["models"]) == (2, ["fake/model"])
    assert (hello["eos_token_ids"], hello["vocab_size"]) == ([EOS_ID], 258)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (2, 2), (9, 2)])
async def test_a_client_gets_the_version_that_both_know(asked: int, given: int) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        messages = await talk.ask("HELLO", 5, version=asked)

    assert messages == [("MSG", {"stream_id": 5, "hello": messages[0][1]["hello"]})]
    assert messages[0][1]["hello"]["version"] == given


async def test_text_goes_in_and_comes_out() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once upon", max_tokens=5)

    text = expected_text("Once upon", 5)
    assert "".join(fields["text"] for _, fields in messages[:-1]) == text
    assert [fields["is_end"] for _, fields in messages[:-1]] == [False] * 5
    assert all("top_logprobs" not in fields for _, fields in messages)
    assert messages[-1] == (
        "DONE",
        {
            "stream_id": 1,
            "finish_reason": "length",
            "text": text,
            "tail": "",
            "usage": {"prompt_tokens": 9, "cached_tokens": 0, "output_tokens": 5},
        },
    )


async def test_the_end_token_is_marked_and_adds_no_text() -> None:
    async with served(says("Hi", "Once")) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once")

    assert [(fields["text"], fields["is_end"]) for _, fields in messages[:-1]] == [
        ("H", False),
        ("i", False),
        ("", True),
    ]
    assert (messages[-1][1]["finish_reason"], messages[-1][1]["text"]) == ("eos", "Hi")


async def test_without_a_number_all_the_room_is_taken() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="x" * 120)

    assert messages[-1][1]["usage"]["output_tokens"] == 40


async def test_turns_go_through_the_chat_template_and_the_last_of_ours_is_gone_on_with() -> None:
    shard = FakeShard()
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure"}]
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.ask("GENERATE", messages=turns[:1], max_tokens=1)
        await talk.ask("GENERATE", messages=turns, max_tokens=1)

    prompts = [
        list(call.batch.requests[0].token_ids)
        for method, call in shard.calls
        if method == "Prefill"
    ]
    assert prompts == [byte_ids("user: hi\n"), byte_ids("user: hi\nassistant: Sure")]


@pytest.mark.parametrize(
    ("fields", "text", "stop"),
    [
        ({"stop": ["wor"]}, "Hello, wor", "wor"),
        ({"stop": ["wor"], "include_stop": False}, "Hello, ", "wor"),
        ({"stop": ["nothing"]}, "Hello, world", None),
        ({"stop_token_ids": byte_ids(",")}, "Hello,", None),
        ({"min_tokens": 3, "max_tokens": 4}, "Hell", None),
    ],
)
async def test_stops_end_the_text_where_they_are(
    fields: dict[str, Any], text: str, stop: str | None
) -> None:
    async with served(says("Hello, world", "Once")) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once", **fields)

    done = messages[-1][1]
    assert (done["text"], done.get("stop_string")) == (text, stop)
    assert "".join(fields["text"] for _, fields in messages[:-1]) + done["tail"] == text


async def test_a_constraint_is_held_to_and_its_end_says_so() -> None:
    shard = says("yes", "Once")
    checks = FakeChecks()
    constraint = {"type": "choice", "value": ["yes", "no"]}
    async with served(shard, checks=checks) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once", constraint=constraint, max_tokens=9)

    assert checks.asked[0][0].spec.text == '["yes","no"]'
    assert messages[-1][1]["constraint_satisfied"] is True
    assert messages[-1][1]["text"] == "yes"


async def test_a_drawn_seed_is_reported() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        sampled = await talk.ask("GENERATE", text="Once", max_tokens=1, temperature=1.0)
        seeded = await talk.ask("GENERATE", text="Once", max_tokens=1, temperature=1.0, seed=5)
        greedy = await talk.ask("GENERATE", text="Once", max_tokens=1)

    assert [messages[-1][1].get("seed") for messages in (sampled, seeded, greedy)] == [7, 5, None]


@pytest.mark.parametrize("num_made", [1, 4, 8])
async def test_an_output_goes_on_behind_the_tokens_that_it_has(num_made: int) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        whole = [fields for _, fields in await talk.ask("GENERATE", text="Once upon", max_tokens=9)]
        output = [fields["token"] for fields in whole[:num_made]]
        messages = await talk.ask("GENERATE", text="Once upon", max_tokens=9, output=output)

    rest = [fields for _, fields in messages]
    assert [fields["token"] for fields in rest[:-1]] == [
        fields["token"] for fields in whole[num_made:-1]
    ]
    assert (
        "".join(fields["text"] for fields in whole[:num_made]) + rest[-1]["text"]
        == (whole[-1]["text"])
    )
    assert rest[-1]["finish_reason"] == "length"


async def test_an_empty_text_is_the_beginning_of_a_sequence() -> None:
    shard = FakeShard()
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.ask("GENERATE", text="", max_tokens=1)

    prefill = next(request for method, request in shard.calls if method == "Prefill")
    assert list(prefill.batch.requests[0].token_ids) == [BOS_ID]


async def test_time_ends_a_stream_with_what_there_is() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.05
    async with served(shard) as (_, port), talking(port) as talk:
        first = await talk.ask("GENERATE", prompt=byte_ids("Once"), timeout_s=0.4, max_tokens=99)
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once", timeout_s=0.4, max_tokens=99)

    assert first[-1][1]["finish_reason"] == "length"
    assert messages[-1][1]["finish_reason"] == "deadline"
    assert 1 < len(messages) < 15
