"""Batches from their lines to their answers, on a router over a fake shard and over fake routes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from router.http.batches.runner import BatchRunner
from router.http.batches.store import BatchStore
from router.http.bodies import end
from router.http.request_record import RequestRecord
from router.http.server.auth import NO_KEYS, KeyRing
from router.request.request import ApiKey
from tests.router.http.batches.harness import (
    COMPLETIONS,
    batching,
    begin,
    content,
    ended,
    lines,
    request_line,
    store_in,
)

KEY = ApiKey("team", b"d" * 32, 2.0, None, 60, 1000)
# How a fake route answers the n-th request for a prompt: a status, or None: never.
Answers = Callable[[str, int], int | None]


class Routes:
    """Routes with the answers that a test gives them; the records of what they were asked."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.asked: dict[str, list[RequestRecord]] = {}
        self.num_running = 0
        self.most_running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prompt = json.loads((await receive())["body"])["prompt"]
        record = RequestRecord.within(scope)
        assert record is not None
        asked = self.asked.setdefault(prompt, [])
        asked.append(record)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            status = self._answers(prompt, len(asked))
            await asyncio.sleep(0.002 if status is not None else 3600)
        finally:
            self.num_running -= 1
        assert status is not None
        assert record.draws is not None
        answer = JSONResponse({"seed": record.draws.getrandbits(64)}, status)
        await answer(scope, receive, send)


@asynccontextmanager
async def computing(
    store: BatchStore, routes: Routes, keys: KeyRing = NO_KEYS
) -> AsyncIterator[BatchRunner]:
    runner = BatchRunner(store, keys, num_slots=8)
    runner.connect(routes, RequestRecord)
    running = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        await end(running)


def added(
    store: BatchStore, num_lines: int, *, owner: bytes = b"", window_s: int = 3600, **line: Any
) -> str:
    file_id = store.add_file(owner, "in.jsonl")
    store.append(owner, file_id, 0, lines([request_line(n, **line) for n in range(num_lines)]))
    store.complete(file_id)
    return str(store.add_batch(owner, file_id, window_s, endpoint=COMPLETIONS)["id"])


async def at_end(store: BatchStore, batch_id: str, owner: bytes = b"") -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            batch = await store.ask(store.find, owner, batch_id)
            assert batch is not None
            if batch["status"] not in ("validating", "in_progress", "cancelling"):
                return batch
            await asyncio.sleep(0.01)


async def num_answered(store: BatchStore, batch_id: str) -> int:
    batch = await store.ask(store.find, b"", batch_id)
    assert batch is not None
    return int(batch["request_counts"]["completed"])


def answers(store: BatchStore, file_id: str) -> list[dict[str, Any]]:
    found = b"".join(piece for _, piece in store.pieces(file_id, -1))
    return [json.loads(line) for line in found.splitlines()]


async def test_each_line_gets_what_its_route_answers(tmp_path: Path) -> None:
    wrong = request_line(20, max_tokens=-1)
    async with batching(store_in(tmp_path)) as client:
        batch_id = await begin(client, lines([*map(request_line, range(20)), wrong]))
        batch = await ended(client, batch_id)
        found = await content(client, batch["output_file_id"])
        errors = await content(client, batch["error_file_id"])
        direct = await client.post(COMPLETIONS, json=request_line(7)["body"])

    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 21, "completed": 20, "failed": 1}
    assert [each["custom_id"] for each in found] == [f"line-{n}" for n in range(20)]
    assert {each["response"]["status_code"] for each in found} == {200}
    assert found[7]["response"]["body"]["choices"] == direct.json()["choices"]
    (error,) = errors
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
async def test_the_other_endpoints_are_asked_alike(
    url: str, body: dict[str, Any], tmp_path: Path
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    async with batching(store_in(tmp_path)) as client:
        batch = await ended(client, await begin(client, lines([line]), url))
        (found,) = await content(client, batch["output_file_id"])
        if url == "/v1/responses":
            answer_id = found["response"]["body"]["id"]
            assert (await client.get(f"/v1/responses/{answer_id}")).status_code == 404
    assert found["response"]["body"]["model"]


async def test_a_file_with_a_wrong_line_fails_and_nothing_is_computed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    routes = Routes(lambda prompt, num: 200)
    good = added(store, 3)
    wrong = added(store, 3, stream=True)
    empty = added(store, 0)
    async with computing(store, routes):
        failed = await at_end(store, wrong)
        nothing = await at_end(store, empty)
        await at_end(store, good)
    assert failed["status"] == nothing["status"] == "failed"
    assert [each["line"] for each in failed["errors"]["data"]] == [1, 2, 3]
    assert [each["code"] for each in nothing["errors"]["data"]] == ["empty_file"]
    assert {prompt: len(asked) for prompt, asked in routes.asked.items()} == {
        "Once 0": 1,
        "Once 1": 1,
        "Once 2": 1,
    }


async def test_what_a_later_try_may_better_is_tried_again(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    tries = {"Once 0": [429, 503, 200], "Once 1": [500, 200], "Once 2": [400], "Once 3": [404]}
    routes = Routes(lambda prompt, num: tries[prompt][num - 1])
    batch_id = added(store, 4)
    async with computing(store, routes):
        batch = await at_end(store, batch_id)
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    failed = answers(store, batch["error_file_id"])
    assert [each["response"]["status_code"] for each in failed] == [400, 404]
    assert {prompt: len(asked) for prompt, asked in routes.asked.items()} == {
        prompt: len(statuses) for prompt, statuses in tries.items()
    }


async def test_lines_have_half_of_the_slots_and_batches_take_turns(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    routes = Routes(lambda prompt, num: 200)
    batch_ids = [added(store, 60), added(store, 10)]
    async with computing(store, routes):
        await at_end(store, batch_ids[1])
        assert await num_answered(store, batch_ids[0]) < 40
        await at_end(store, batch_ids[0])
    assert routes.most_running == 4


async def test_lines_are_a_class_of_their_key_with_a_sixteenth_of_its_share(
    tmp_path: Path,
) -> None:
    store = store_in(tmp_path)
    routes = Routes(lambda prompt, num: 200)
    batch_id = added(store, 1, owner=KEY.digest)
    async with computing(store, routes, KeyRing([KEY])):
        await at_end(store, batch_id, KEY.digest)
    ((record,),) = routes.asked.values()
    assert record.key == ApiKey("team/batch", KEY.digest, 2.0 / 16, 4, None, 1000)


async def test_a_line_draws_the_same_whenever_it_is_computed(tmp_path: Path) -> None:
    """The second router goes on where the first one was stopped."""
    store = store_in(tmp_path)
    batch_id = added(store, 6)
    first = Routes(lambda prompt, num: None if prompt == "Once 3" else 200)
    async with computing(store, first):
        async with asyncio.timeout(10):
            while await num_answered(store, batch_id) < 5:
                await asyncio.sleep(0.01)
    drawn = [asked[0].draws for prompt, asked in first.asked.items() if prompt == "Once 3"]
    again = store_in(tmp_path)
    second = Routes(lambda prompt, num: 200)
    async with computing(again, second):
        batch = await at_end(again, batch_id)

    assert [*second.asked] == ["Once 3"]
    found = answers(again, batch["output_file_id"])
    assert [each["custom_id"] for each in found] == [f"line-{n}" for n in range(6)]
    seeds = [each["response"]["body"]["seed"] for each in found]
    assert len({*seeds}) == 6
    assert [seed.getrandbits(64) for seed in drawn if seed is not None] == [seeds[3]]


async def test_a_batch_that_is_cancelled_keeps_the_answers_that_there_are(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    routes = Routes(lambda prompt, num: 200 if prompt == "Once 0" else None)
    batch_id = added(store, 9)
    async with computing(store, routes) as runner:
        async with asyncio.timeout(10):
            while len(routes.asked) < 5:
                await asyncio.sleep(0.01)
        before = "validating in_progress"
        await store.ask(store.change, batch_id, before, status="cancelling")
        runner.wake.set()
        batch = await at_end(store, batch_id)
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    assert [each["custom_id"] for each in answers(store, batch["output_file_id"])] == ["line-0"]
    assert batch["error_file_id"] is None


async def test_what_is_not_computed_in_time_expires_by_name(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    routes = Routes(lambda prompt, num: 200 if prompt == "Once 0" else None)
    batch_id = added(store, 3, window_s=1)
    async with computing(store, routes):
        batch = await at_end(store, batch_id)
    assert batch["status"] == "expired"
    assert len(answers(store, batch["output_file_id"])) == 1
    codes = [each["error"]["code"] for each in answers(store, batch["error_file_id"])]
    assert codes == ["batch_expired"] * 2


async def test_a_key_that_goes_stops_its_batches_and_no_others(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    other = ApiKey("other", b"o" * 32)
    keys = KeyRing([KEY, other])
    routes = Routes(lambda prompt, num: None)
    gone = added(store, 3, owner=KEY.digest)
    stays = added(store, 3, owner=other.digest)
    async with computing(store, routes, keys) as runner:
        async with asyncio.timeout(10):
            while len(routes.asked) < 3 or routes.num_running < 4:
                await asyncio.sleep(0.01)
        keys.replace([ApiKey("team", b"n" * 32), other])
        runner.wake.set()
        batch = await at_end(store, gone, KEY.digest)
        still = await store.ask(store.find, other.digest, stays) or {}
    assert batch["status"] == "cancelled"
    assert [each["code"] for each in batch["errors"]["data"]] == ["key_removed"]
    assert still["status"] == "in_progress"
