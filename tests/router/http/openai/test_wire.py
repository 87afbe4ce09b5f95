"""OpenAI's streams over real sockets, byte for byte where clients look."""

import json
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
    saying_after_hi,
    text_of,
)

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
