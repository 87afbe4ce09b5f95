"""Asking /v1/responses of a house of fakes, whole and streamed."""

import json
from typing import Any

from tests.byte_tokenizer import NUM_SPECIAL
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House

PATH = "/v1/responses"
PROMPT = "user: hi\n"


def saying_after_hi(text: str) -> FakeShard:
    return FakeShard(script=saying(text, len(PROMPT)))


async def post(house: House, given: Any = "hi", **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(PATH, json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(house: House, given: Any = "hi", **fields: Any) -> list[Any]:
    """The events; they must be numbered, and each must have its type's name on its own line."""
    async with house.client as client:
        answer = await client.post(PATH, json={"input": given, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    *frames, rest = answer.text.split("\n\n")
    assert rest == ""
    events = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1].pop("sequence_number") == number
    return events


async def refuse(house: House, body: Any, path: str = PATH) -> tuple[int, dict[str, Any]]:
    async with house.client as client:
        answer = await client.post(path, json=body)
    assert answer.json().keys() == {"error"}
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    return answer.status_code, answer.json()["error"]


def first_request(house: House) -> Any:
    return next(call for method, call in house.shard.calls if method == "Prefill").batch.requests[0]


def prompt_of(house: House) -> str:
    """What the shard was asked to go on from."""
    return bytes(token_id - NUM_SPECIAL for token_id in first_request(house).token_ids).decode()


def text_of(answer: Any) -> str:
    (item,) = answer["output"]
    (part,) = item["content"]
    return str(part["text"])
