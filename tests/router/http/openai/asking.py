"""Asking OpenAI's routes of a house of fakes, whole and streamed."""

import json
from typing import Any

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
PROMPT = "user: hi\n"


def saying_after_hi(text: str) -> FakeShard:
    """`text` after the rendered chat HI."""
    return FakeShard(script=saying(text, len(PROMPT)))


async def post(house: House, path: str, body: Any) -> Any:
    """A whole answer."""
    async with house.client as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(house: House, path: str, body: Any) -> list[Any]:
    """The chunks; the last one must be [DONE]."""
    async with house.client as client:
        answer = await client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    *chunks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


async def refuse(house: House, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """The status and the error."""
    async with house.client as client:
        answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error


def first_request(house: House) -> Any:
    """What the shard was asked for first."""
    return next(call for method, call in house.shard.calls if method == "Prefill").batch.requests[0]


def choices_of(chunks: list[Any]) -> list[Any]:
    """The choices of all chunks in their order."""
    return [choice for chunk in chunks for choice in chunk["choices"]]


def text_of(chunks: list[Any]) -> str:
    """The streamed text of either route."""
    return "".join(
        choice["text"] if "text" in choice else choice["delta"].get("content", "")
        for choice in choices_of(chunks)
    )
