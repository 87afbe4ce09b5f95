"""Prompts: exactly one of ids, text and messages, of the vocabulary and within the context."""

from typing import Any

import pytest

from tests.byte_tokenizer import byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking

TURNS = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("prompt", [{"prompt": byte_ids("user: hi\n")}, {"messages": TURNS}])
async def test_a_continuation_is_scored_behind_ids_and_messages(prompt: dict[str, Any]) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("SCORE", scored=["x"], **prompt)

    assert messages[0][1]["scores"][0]["tokens"] == byte_ids("x")
    assert messages[0][1]["usage"]["prompt_tokens"] == len("user: hi\n") + 1


@pytest.mark.parametrize(
    ("prompt", "field", "words"),
    [
        ({}, "prompt", "is required: token ids, or `text`, or `messages`"),
        ({"prompt": [3], "messages": TURNS}, "messages", "exclude each other"),
        ({"prompt": [999]}, "prompt", "between 0 and 257. Given: 999"),
        ({"text": "x" * 161}, "text", "at most 160 tokens. Given: 161"),
    ],
)
async def test_a_wrong_prompt_is_refused_by_its_field(
    prompt: dict[str, Any], field: str, words: str
) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        error = await talk.error("SCORE", scored=["x"], **prompt)

    assert (error["error_type"], error["field"]) == ("validation", field)
    assert words in error["error"]
