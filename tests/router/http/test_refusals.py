"""Good requests at bad moments: each refusal has its status, its word and its time to come back."""

import asyncio
import json
from time import monotonic
from typing import Any

import httpx
import pytest

from router.engine.batcher import BatcherLimits
from router.http.errors import Dialect, problem_of
from router.request.errors import Overloaded, ServerStopped
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing
from tests.router.rig import asking

PROMPT = "Once upon"
GENERATE = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
TEXT = {"prompt": PROMPT, "max_tokens": 2}


def fill(house: House, num_requests: int) -> None:
    """Takes slots and keeps them."""
    for index in range(num_requests):
        house.rig.batcher.submit(asking(f"{index}", 500))


def check_times(answer: httpx.Response) -> float:
    """The exact time, which both headers hold."""
    exact_ms = int(answer.headers["retry-after-ms"])
    assert 1000 <= exact_ms <= 60_000
    assert int(answer.headers["retry-after"]) == -(-exact_ms // 1000)
    return exact_ms / 1000


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/generate", GENERATE, "error_type"),
        ("/v1/chat/completions", CHAT, "code"),
        ("/v1/chat/completions", {**CHAT, "stream": True}, "code"),
        ("/v1/completions", TEXT, "code"),
    ],
)
async def test_a_full_house_is_a_429_and_each_client_gets_a_later_time(
    path: str, body: dict[str, Any], word: str
) -> None:
    async with housing(FakeShard(num_blocks=2048)) as house, house.client as client:
        fill(house, 8)
        asked_s = []
        answers = []
        for _ in range(3):
            asked_s.append(monotonic())
            answers.append(await client.post(path, json=body))
        asked_s.append(monotonic())
        rejected = house.rig.metrics.rejected.value("overloaded")
        header_s = house.rig.metrics.retry_after.value()
    for answer in answers:
        assert answer.status_code == 429
        error = answer.json()
        assert (error if word == "error_type" else error["error"])[word] == "overloaded"
    times_s = [check_times(answer) for answer in answers]
    # Each is counted from its own moment, which lies between two of those that were taken.
    for index in range(2):
        assert asked_s[index] + times_s[index] < asked_s[index + 2] + times_s[index + 1]
    assert rejected == 3
    assert header_s == pytest.approx(times_s[2], abs=0.001)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "a", "parameters": {"best_of": 2, "do_sample": True}}),
        ("/v1/chat/completions", {**CHAT, "n": 2}),
        ("/v1/chat/completions", {**CHAT, "n": 2, "stream": True}),
        ("/v1/completions", {**TEXT, "prompt": ["a", "b"]}),
    ],
)
async def test_a_request_of_two_sequences_does_not_take_one_slot_and_fail(
    path: str, body: dict[str, Any]
) -> None:
    shard = FakeShard(num_blocks=2048)
    async with housing(shard) as house, house.client as client:
        fill(house, 7)
        answer = await client.post(path, json=body)
        assert answer.status_code == 429
        assert house.rig.batcher.num_streams == 7
        assert house.rig.metrics.rejected.value("overloaded") == 1
        assert house.rig.metrics.sequence_ends.value("cancelled") == 0


async def test_in_a_native_stream_the_refusal_is_an_event_with_the_time() -> None:
    async with housing(FakeShard(num_blocks=2048)) as house, house.client as client:
        fill(house, 8)
        answer = await client.post("/generate_stream", json=GENERATE)
    assert answer.status_code == 200
    event = json.loads(answer.text.removeprefix("data:"))
    assert (event["error"], event["error_type"]) == ("Model is overloaded", "overloaded")
    assert event["retry_after"] == -(-event["retry_after_ms"] // 1000) >= 1


@pytest.mark.parametrize(("path", "body"), [("/generate", GENERATE), ("/v1/completions", TEXT)])
async def test_a_draining_house_is_a_503_of_its_own_word(path: str, body: dict[str, Any]) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        await house.rig.batcher.drain(1.0)
        answer = await client.post(path, json=body)
    assert answer.status_code == 503
    assert "draining" in answer.text
    check_times(answer)


@pytest.mark.parametrize(("path", "body"), [("/generate", GENERATE), ("/v1/completions", TEXT)])
async def test_broken_shards_are_a_503_of_their_own_word(path: str, body: dict[str, Any]) -> None:
    shard = FakeShard()
    limits = BatcherLimits(max_concurrent_requests=8, restart_s=0.1, retry_s=0.1, tick_s=0.02)
    async with housing(shard, batcher_limits=limits) as house, house.client as client:
        await shard.stop()
        deadline_s = monotonic() + 5.0
        while not house.rig.metrics.rejected.value("unhealthy"):
            assert monotonic() < deadline_s
            answer = await client.post(path, json=body)
            await asyncio.sleep(0.02)
    assert answer.status_code == 503
    assert "unhealthy" in answer.text
    assert check_times(answer) == 1.0


def test_both_headers_hold_the_same_time_and_the_rounding_is_upward() -> None:
    problem = problem_of(Overloaded("full", 2.0004), Dialect.OPENAI)
    assert problem.headers == {"retry-after": "3", "retry-after-ms": "2001"}


def test_what_the_stop_of_a_server_cut_may_be_asked_of_the_next_one() -> None:
    problem = problem_of(ServerStopped("stopped"), Dialect.TGI)
    assert problem.status == 503
    assert problem.headers["retry-after"] == "1"
