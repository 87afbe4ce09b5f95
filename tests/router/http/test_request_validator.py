"""How long a request may take: the server's word, the header's or the body's, the least of them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.rig import an_hour_ahead, asking, settled

PROMPT = "Once upon"
TGI = ("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 100, "details": True}})
CHAT = (
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "a"}], "max_tokens": 100, "temperature": 0},
)
TEXT = ("/v1/completions", {"prompt": PROMPT, "max_tokens": 100, "temperature": 0})
ROUTES = pytest.mark.parametrize(("path", "body"), [TGI, CHAT, TEXT], ids=["tgi", "chat", "text"])


def slow() -> FakeShard:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.02
    return shard


IN_A_MINUTE = {"x-request-timeout": "60"}


@asynccontextmanager
async def hurried() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose minutes pass after some steps."""
    shard = slow()
    async with housing(shard, clock=an_hour_ahead(shard)) as house, house.client as client:
        yield client


def timed(path: str, body: dict[str, Any], max_time: Any) -> dict[str, Any]:
    if path == "/generate":
        return {**body, "parameters": {**body["parameters"], "max_time": max_time}}
    return {**body, "max_time": max_time}


def reason_and_text(path: str, answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    if path == "/generate":
        return body["details"]["finish_reason"], body["generated_text"]
    choice = body["choices"][0]
    return choice["finish_reason"], choice["message"]["content"] if "message" in choice else choice[
        "text"
    ]


@ROUTES
@pytest.mark.parametrize("by_header", [True, False])
async def test_the_header_or_the_body_ends_it_with_the_text_so_far(
    path: str, body: dict[str, Any], by_header: bool
) -> None:
    async with hurried() as client:
        if by_header:
            answer = await client.post(path, json=body, headers=IN_A_MINUTE)
        else:
            answer = await client.post(path, json=timed(path, body, 60))
    reason, text = reason_and_text(path, answer)
    assert reason == "deadline"
    assert 1 <= len(text) < 100


@pytest.mark.parametrize(
    ("server_s", "header_s", "body_s"),
    [(0.1, "50", 50.0), (50.0, "0.1", 50.0), (50.0, "50", 0.1), (None, "0.1", 50.0)],
)
async def test_the_least_of_them_holds(
    server_s: float | None, header_s: str, body_s: float
) -> None:
    path, body = TGI
    async with housing(slow(), max_duration_s=server_s) as house, house.client as client:
        answer = await client.post(
            path, json=timed(path, body, body_s), headers={"x-request-timeout": header_s}
        )
    assert reason_and_text(path, answer)[0] == "deadline"


@ROUTES
async def test_a_deadline_that_is_not_reached_changes_nothing(
    path: str, body: dict[str, Any]
) -> None:
    async with housing(FakeShard(num_blocks=256)) as house, house.client as client:
        plain = await client.post(path, json=body)
        given = await client.post(
            path, json=timed(path, body, 30.0), headers={"x-request-timeout": "30."}
        )
    assert reason_and_text(path, plain) == reason_and_text(path, given)
    assert reason_and_text(path, plain)[0] == "length"


@ROUTES
async def test_time_in_the_queue_counts_and_the_text_is_empty(
    path: str, body: dict[str, Any]
) -> None:
    shard = FakeShard(num_blocks=8)
    shard.faults.delay_s = 0.05
    async with housing(shard) as house, house.client as client:
        # It holds every block, so that nothing beside it can begin.
        runs = house.rig.batcher.submit(asking("x" * 28, 4))
        await runs.take()
        body = {**timed(path, body, 0.01), "max_tokens": 20}
        if path == "/generate":
            body["parameters"]["max_new_tokens"] = 20
        answer = await client.post(path, json=body)
        house.rig.batcher.cancel(runs)
        await settled(house.rig)
    assert reason_and_text(path, answer) == ("deadline", "")


async def test_every_one_of_several_draws_ends_with_what_it_has() -> None:
    path, body = CHAT
    drawn = {**body, "temperature": 1.0, "n": 3, "logprobs": True, "top_logprobs": 2}
    async with hurried() as client:
        answer = await client.post(path, json=drawn, headers=IN_A_MINUTE)
    tgi = {**TGI[1], "parameters": {"best_of": 2, "do_sample": True, "details": True}}
    async with hurried() as client:
        best = await client.post("/generate", json=tgi, headers=IN_A_MINUTE)
    choices = answer.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["deadline"] * 3
    assert all(choice["message"]["content"] for choice in choices)
    details = best.json()["details"]
    assert details["finish_reason"] == "deadline"
    assert details["best_of_sequences"][0]["finish_reason"] == "deadline"


async def test_a_stream_ends_in_the_words_of_its_api() -> None:
    async with hurried() as client:
        native = await client.post("/generate_stream", json=TGI[1], headers=IN_A_MINUTE)
    async with hurried() as client:
        chat = await client.post(CHAT[0], json={**CHAT[1], "stream": True}, headers=IN_A_MINUTE)
    *_, last = [json.loads(line[5:]) for line in native.text.splitlines() if line]
    assert last["details"]["finish_reason"] == "deadline"
    assert last["generated_text"]
    *chunks, done = [line[6:] for line in chat.text.splitlines() if line]
    assert done == "[DONE]"
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "deadline"


NO_TIMES: list[Any] = [
    "0",
    "-1",
    "nan",
    "inf",
    "1e3",
    "1_0",
    "soon",
    "",
    "0.0",
    "1,5",
    "9" * 12,
]


async def test_a_header_that_is_no_time_is_refused_by_name() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for given in NO_TIMES:
            header = {"x-request-timeout": given}
            native = await client.post("/generate", json=TGI[1], headers=header)
            stream = await client.post("/generate_stream", json=TGI[1], headers=header)
            chat = await client.post(CHAT[0], json=CHAT[1], headers=header)
            for answer in (native, stream):
                assert answer.status_code == 422
                assert answer.json()["error_type"] == "validation"
                assert "`x-request-timeout` must be a number of seconds" in answer.json()["error"]
            assert chat.status_code == 400
            assert chat.json()["error"]["param"] == "x-request-timeout"


async def test_a_max_time_that_is_no_time_is_refused_by_name() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for given in (0, -2.5, "3", True, [1]):
            native = await client.post("/generate", json=timed(*TGI, given))
            chat = await client.post(CHAT[0], json=timed(*CHAT, given))
            assert native.status_code == 422
            assert "max_time" in native.json()["error"]
            assert chat.status_code in (400, 422)
            assert "max_time" in chat.json()["error"]["message"]


MESSAGES = [{"role": "user", "content": "a"}]


NEVER_BEGUN: list[tuple[Any, ...]] = [
    ("/generate", {"inputs": "a", "parameters": {"decoder_input_details": True}}),
    ("/generate_stream", {"inputs": "a"}),
    ("/v1/completions", {"prompt": "abc", "echo": True, "logprobs": 2}),
    ("/v1/completions", {"prompt": "abc", "echo": True, "logprobs": 2, "max_tokens": 0}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "stream": True}),
    ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 2, "stream": True}),
    ("/v1/messages", {"model": "tgi", "messages": MESSAGES, "max_tokens": 5}),
    ("/v1/messages", {"model": "tgi", "messages": MESSAGES, "max_tokens": 5, "stream": True}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/responses", {"input": "a", "stream": True}),
    ("/invocations", {"inputs": "a"}),
    ("/vertex", {"instances": [{"inputs": "a"}, {"inputs": "b"}]}),
]


async def test_every_route_answers_what_never_got_a_token() -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.1
    async with housing(shard) as house, house.client as client:
        for path, body in NEVER_BEGUN:
            answer = await client.post(path, json=body, headers={"x-request-timeout": "0.02"})
            ends = house.rig.metrics.sequence_ends.value("deadline")
            assert answer.status_code == 200
            assert '"error_type"' not in answer.text
            assert ends >= 1
