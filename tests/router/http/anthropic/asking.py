"""Asking /v1/messages of a house of fakes, whole and streamed."""

import json
from typing import Any

from tests.byte_tokenizer import NUM_SPECIAL
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import (
    House,
)

PATH = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\n"
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def saying_after_hi(text: str) -> FakeShard:
    return FakeShard(script=saying(text, len(PROMPT)))


async def post(house: House, messages: Any = HI, **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(PATH, json={"max_tokens": 30, "messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refuse(house: House, body: Any, path: str = PATH) -> tuple[int, str, str]:
    """Status, type and message of the error, whose shape must be Anthropic's."""
    async with house.client as client:
        answer = await client.post(path, json=body)
    told = answer.json()
    assert told.keys() == {"type", "error", "request_id"}
    assert told["error"].keys() == {"type", "message"}
    assert told["type"] == "error"
    assert told["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    return answer.status_code, told["error"]["type"], told["error"]["message"]


async def stream(house: House, messages: Any = HI, **fields: Any) -> list[Any]:
    """The events; each must have its type's name on a line of its own."""
    body = {"max_tokens": 30, "messages": messages, "stream": True, **fields}
    async with house.client as client:
        answer = await client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    return events_of(answer.text)


def events_of(text: str) -> list[Any]:
    *frames, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def text_of(events: list[Any]) -> str:
    return "".join(
        event["delta"]["text"] for event in events if event["type"] == "content_block_delta"
    )


def prompt_of(house: House) -> str:
    """What the shard was asked to go on from."""
    request = first_request(house)
    return bytes(token_id - NUM_SPECIAL for token_id in request.token_ids).decode()


def first_request(house: House) -> Any:
    return next(call for method, call in house.shard.calls if method == "Prefill").batch.requests[0]
