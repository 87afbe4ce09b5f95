"""TGI's timing headers: on whole answers all, on streams the first two, on errors none."""

from typing import Any

import pytest

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing

NATIVE = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
PROMPT = {"prompt": ["hello", "world"], "max_tokens": 3}
TIMES = ["total", "validation", "queue", "inference"]
FIRST = {"x-compute-type", "x-compute-characters"}


def timing(answer: Any) -> set[str]:
    ours = ("x-compute", "x-total", "x-validation", "x-queue", "x-inference", "x-time-per")
    return {name for name in answer.headers if name.startswith((*ours, "x-prompt", "x-generated"))}


@pytest.mark.parametrize(
    ("path", "body", "num_characters", "num_prompt_tokens", "num_generated_tokens"),
    [
        ("/", NATIVE, 5, 5, 3),
        ("/generate", NATIVE, 5, 5, 3),
        ("/invocations", NATIVE, 5, 5, 3),
        ("/v1/chat/completions", CHAT, 12, 12, 3),
        ("/v1/completions", PROMPT, 10, 10, 6),
        ("/invocations", PROMPT, 10, 10, 6),
        ("/vertex", {"instances": [NATIVE, NATIVE]}, 10, 10, 6),
    ],
)
async def test_whole_answers_have_their_times(
    path: str, body: Any, num_characters: int, num_prompt_tokens: int, num_generated_tokens: int
) -> None:
    async with housing(FakeShard(script=saying("a" * 99, 0))) as house, house.client as client:
        headers = (await client.post(path, json=body)).headers

    assert headers["x-compute-type"] == "test"
    assert headers["x-compute-characters"] == str(num_characters)
    assert headers["x-prompt-tokens"] == str(num_prompt_tokens)
    assert headers["x-generated-tokens"] == str(num_generated_tokens)
    assert 0 < float(headers["x-compute-time"]) < 10
    for name in TIMES:
        assert 0 <= int(headers[f"x-{name}-time"]) < 10_000
    assert 0 <= int(headers["x-time-per-token"]) <= int(headers["x-total-time"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", {**NATIVE, "stream": True}),
        ("/generate_stream", NATIVE),
        ("/invocations", {**NATIVE, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/completions", {**PROMPT, "stream": True}),
    ],
)
async def test_streams_have_what_is_known_before_them(path: str, body: Any) -> None:
    async with housing(FakeShard(script=saying("a" * 99, 0))) as house, house.client as client:
        answer = await client.post(path, json=body)

    assert timing(answer) == FIRST
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"


async def test_a_truncated_prompt_counts_as_it_was_read() -> None:
    body = {"inputs": "hello", "parameters": {"truncate": 2, "max_new_tokens": 1}}
    async with housing(FakeShard()) as house, house.client as client:
        headers = (await client.post("/generate", json=body)).headers

    assert (headers["x-compute-characters"], headers["x-prompt-tokens"]) == ("5", "2")


async def test_of_best_of_the_winner_s_tokens_count() -> None:
    body = {"inputs": "hello", "parameters": {"best_of": 2, "top_k": 2, "max_new_tokens": 3}}
    async with housing(FakeShard(script=saying("a" * 99, 0))) as house, house.client as client:
        headers = (await client.post("/generate", json=body)).headers

    assert headers["x-generated-tokens"] == "3"


@pytest.mark.parametrize("path", ["/", "/generate", "/v1/chat/completions", "/v1/completions"])
async def test_errors_have_no_times(path: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post(path, json={"inputs": "", "prompt": "", "messages": []})

    assert timing(answer) == set()
