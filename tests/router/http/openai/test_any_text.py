"""For any text and any stops: streamed, whole and told token by token, an answer is the same."""

import random
from typing import Any

import pytest

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    PROMPT,
    choices_of,
    post,
    stream,
    text_of,
)
from tests.router.rig import PATIENT

LETTERS = ["a", "b", " ", "\n", "é", "日", "🙂", "👩‍🚀", "e\u0301", "\u200b", '"', "\\"]


def draw_text(draw: random.Random, longest: int) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(1, longest)))


def told_of(choices: list[Any]) -> list[Any]:
    return [
        entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]
    ]


@pytest.mark.slow
async def test_chats_are_the_same_streamed_whole_and_token_by_token() -> None:
    draw = random.Random(7)
    shard = FakeShard()
    async with housing(shard, timeouts=PATIENT) as house:
        for _ in range(300):
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


@pytest.mark.slow
async def test_completions_are_the_same_streamed_whole_and_token_by_token() -> None:
    draw = random.Random(8)
    shard = FakeShard()
    async with housing(shard, timeouts=PATIENT) as house:
        for _ in range(300):
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
