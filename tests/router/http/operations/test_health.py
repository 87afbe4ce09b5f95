"""The three questions to a server, and who may ask for which."""

import asyncio
from time import monotonic

import httpx
import pytest

from router.engine.batcher import BatcherLimits
from router.shards.shards import ShardTimeouts
from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.rig import asking, events_of

READY_PATHS = ("/health", "/health/ready", "/ping", "/")
PATHS = (*READY_PATHS, "/health/live", "/health/progress")
# Quick enough for a test, and with room for a machine that is busy with others.
IMPATIENT = BatcherLimits(
    max_concurrent_requests=8, health_s=0.05, patience_s=0.2, progress_s=0.3, tick_s=0.02
)


async def until_status(client: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    deadline_s = monotonic() + 20.0
    while True:
        answer = await client.get(path)
        if answer.status_code == status:
            return answer
        assert monotonic() < deadline_s, (path, answer.status_code, answer.text)
        await asyncio.sleep(0.02)


async def test_a_server_that_serves_answers_all_three_with_an_empty_200() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for path in PATHS:
            answer = await client.get(path)
            assert (answer.status_code, answer.content) == (200, b""), path
            assert (await client.head(path)).status_code == 200


async def test_a_draining_server_is_there_and_gets_on_but_is_not_ready() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        await house.rig.batcher.drain(1.0)
        for path in READY_PATHS:
            answer = await client.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"error": "unhealthy", "error_type": "healthcheck"}
            assert (await client.head(path)).status_code == 503
        for path in ("/health/live", "/health/progress"):
            assert (await client.get(path)).status_code == 200


async def test_a_step_that_hangs_shows_at_progress_alone() -> None:
    shard = FakeShard()
    patient = ShardTimeouts(step_s=2.0, control_s=0.5)
    hung = housing(shard, batcher_limits=IMPATIENT, timeouts=patient)
    async with hung as house, house.client as client:
        shard.faults.hangs.add("Decode")
        stream = house.rig.batcher.submit(asking())
        answer = await until_status(client, "/health/progress", 503)
        assert answer.json()["error_type"] == "healthcheck"
        assert answer.json()["error"].startswith("a step has been under way for 0.")
        for path in (*READY_PATHS, "/health/live"):
            assert (await client.get(path)).status_code == 200, path
        shard.faults.hangs.clear()
        await events_of(stream)
        await until_status(client, "/health/progress", 200)


async def test_an_idle_shard_that_hangs_shows_at_ready_and_progress() -> None:
    shard = FakeShard()
    async with housing(shard, batcher_limits=IMPATIENT) as house, house.client as client:
        shard.faults.hangs.add("Health")
        for path in (*READY_PATHS, "/health/progress"):
            await until_status(client, path, 503)
        assert (await client.get("/health/live")).status_code == 200


async def test_shards_that_are_gone_show_at_ready_and_progress_until_they_are_back() -> None:
    shard = FakeShard()
    async with housing(shard, batcher_limits=IMPATIENT) as house, house.client as client:
        port = shard.urls[0].rpartition(":")[2]
        await shard.stop()
        for path in ("/health/ready", "/health/progress"):
            await until_status(client, path, 503)
        assert "have not begun anew" in (await client.get("/health/progress")).json()["error"]
        await shard.start(f"127.0.0.1:{port}")
        for path in ("/health/ready", "/health/progress"):
            await until_status(client, path, 200)


@pytest.mark.parametrize("path", PATHS)
async def test_a_probe_asks_no_shard_for_anything(path: str) -> None:
    shard = FakeShard()
    async with housing(shard) as house, house.client as client:
        before = len(shard.calls)
        for _ in range(20):
            await client.get(path)
        assert len(shard.calls) == before


async def test_the_document_has_the_probes() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        paths = (await client.get("/api-doc/openapi.json")).json()["paths"]
    for path in ("/health", "/health/live", "/health/ready", "/health/progress", "/ping"):
        assert paths[path]["get"]["responses"]["200"].get("content") is None
    assert "503" in paths["/health/progress"]["get"]["responses"]
    assert "503" not in paths["/health/live"]["get"]["responses"]
