"""The bytes of OpenAI's chunks, and that any text is the same whole and in pieces."""

import json
import random
from typing import Any

import grpc
import pytest

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, record, unchunked
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    PROMPT,
    choices_of,
    post,
    saying_after_hi,
    stream,
    text_of,
)
from tests.router.rig import PATIENT

LONG = "ab🙂" * 8


def events_of(answer: bytes) -> list[str]:
    """The data of all events; each is one line, and nothing else is there."""
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/event-stream\r\n" in answer.partition(b"\r\n\r\n")[0].lower()
    *events, rest = unchunked(answer).decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


async def ask(shard: FakeShard, path: str, body: Any) -> list[str]:
    async with housing(shard) as house, listening(house.app) as port:
        return events_of(await record(port, "POST", path, json.dumps(body).encode()))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_several_choices_come_each_in_order_then_the_usage_and_the_end(path: str) -> None:
    asked: Any = {"messages": HI} if path == CHAT else {"prompt": PROMPT}
    body = {**asked, "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    *events, done = await ask(saying_after_hi(LONG), path, body)

    assert done == "[DONE]"
    *chunks, last = [json.loads(event) for event in events]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3 * (len(LONG.encode()) + 1)
    assert {chunk["id"] for chunk in chunks} == {last["id"]}
    for index in range(3):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert text_of(own) == LONG
        reasons = [choice["finish_reason"] for choice in choices_of(own)]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_failure_within_a_stream_is_an_error_then_the_end(path: str) -> None:
    asked: Any = {"messages": HI} if path == CHAT else {"prompt": PROMPT}
    shard = FakeShard(script=saying("hello", len(PROMPT)))
    shard.faults.fail_for_good("Decode", grpc.StatusCode.INTERNAL, "no memory")
    *chunks, failure, done = await ask(shard, path, {**asked, "stream": True})

    assert done == "[DONE]"
    assert text_of([json.loads(chunk) for chunk in chunks]) == "h"
    error = json.loads(failure)["error"]
    assert (error["type"], error["code"]) == ("server_error", "generation")
    assert "no memory" in error["message"]


LETTERS = ["a", "b", " ", "\n", "é", "日", "🙂", "👩‍🚀", "e\u0301", "\u200b", '"', "\\"]


def draw_text(draw: random.Random, longest: int) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(1, longest)))


def told_of(choices: list[Any]) -> list[Any]:
    return [
        entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]
    ]


async def test_chats_are_the_same_streamed_whole_and_token_by_token() -> None:
    draw = random.Random(7)
    shard = FakeShard()
    async with housing(shard, timeouts=PATIENT) as house:
        for _ in range(60):
            text = draw_text(draw, 12)
            shard.script = saying(text, len(PROMPT))
            stops = [draw_text(draw, 2) for _ in range(draw.randint(0, 3))]
            body = {
                "messages": HI,
                "stop": stops,
                "include_stop_str_in_output": draw.random() < 0.3,
                "max_tokens": draw.randint(1, 60),
                "logprobs": True,
                "top_logprobs": 1,
            }
            answer = await post(house, CHAT, body)
            chunks = await stream(house, CHAT, body)

            content = answer["choices"][0]["message"]["content"]
            assert text_of(chunks) == content, body
            told = told_of(answer["choices"])
            assert told_of(choices_of(chunks)) == told, body
            shown = [entry for entry in told if entry["bytes"] is not None]
            assert content.startswith("".join(entry["token"] for entry in shown)), body
            if "\ufffd" not in content:
                assert "".join(entry["token"] for entry in shown) == content, body
                data = bytes(byte for entry in shown for byte in entry["bytes"])
                # What was within a character when a stop cut it off leaves its beginning.
                assert data.decode(errors="ignore") == content, body


async def test_completions_are_the_same_streamed_whole_and_token_by_token() -> None:
    draw = random.Random(8)
    shard = FakeShard()
    async with housing(shard, timeouts=PATIENT) as house:
        for _ in range(60):
            prompt = draw_text(draw, 6)
            text = draw_text(draw, 12)
            shard.script = saying(text, len(prompt.encode()))
            body = {
                "prompt": prompt,
                "stop": [draw_text(draw, 2) for _ in range(draw.randint(0, 3))],
                "max_tokens": draw.randint(1, 60),
                "echo": draw.random() < 0.5,
                "logprobs": 1,
            }
            answer = await post(house, COMPLETIONS, body)
            chunks = await stream(house, COMPLETIONS, body)

            choice = answer["choices"][0]
            assert text_of(chunks) == choice["text"], body
            for key, values in choice["logprobs"].items():
                pieces = [one["logprobs"][key] for one in choices_of(chunks) if one["logprobs"]]
                assert [value for piece in pieces for value in piece] == values, body
            places = zip(
                choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True
            )
            for token, offset in places:
                if token != "</s>":
                    assert choice["text"].startswith(token, offset), (body, token, offset)
