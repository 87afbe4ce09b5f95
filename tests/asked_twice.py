"""One request asked for whole and as a stream, in the words of TGI or OpenAI, for tests."""

import json
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Asked:
    """Where and what to post for the whole text, and for the stream."""

    path: str
    body: dict[str, Any]
    stream_path: str
    stream_body: dict[str, Any]

    @classmethod
    def natively(cls, body: dict[str, Any]) -> "Asked":
        """Of TGI's routes."""
        return cls("/generate", body, "/generate_stream", body)

    @classmethod
    def openly(cls, path: str, body: dict[str, Any]) -> "Asked":
        """Of one of OpenAI's routes."""
        return cls(path, body, path, body | {"stream": True})


async def whole_text(client: httpx.AsyncClient, asked: Asked) -> str:
    answer = await client.post(asked.path, json=asked.body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    if "choices" not in told:
        return str(told["generated_text"])
    choice = told["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


async def streamed_text(client: httpx.AsyncClient, asked: Asked) -> str:
    """The pieces joined; TGI's last event must say the same once more."""
    pieces: list[str] = []
    async with client.stream("POST", asked.stream_path, json=asked.stream_body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            told = json.loads(line.removeprefix("data: "))
            if "token" in told:
                pieces += [told["token"]["text"]] * (not told["token"]["special"])
                assert told["generated_text"] in (None, "".join(pieces))
                continue
            for choice in told["choices"]:
                piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
                pieces.append(piece or "")
    return "".join(pieces)
