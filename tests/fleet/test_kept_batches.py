"""Files and batches behind the front of replicas: two routers, each with a store of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from fleet.metrics import FleetMetrics
from fleet.replica_front import MoveRules, ReplicaFront
from fleet.replica_pool import CheckRules, ReplicaPool
from fleet.upstream import HostAddress
from router.http.batches.runner import BatchRunner
from router.http.batches.store import BatchStore
from router.http.bodies import DEFAULT_BOUNDS, BodyReader, ParserThread, end
from router.http.server.access import Access
from router.http.server.auth import NO_KEYS
from tests.fakes import FakeShard
from tests.fleet.replica_harness import no_sockets
from tests.router.http.batches.harness import (
    COMPLETIONS,
    DAY_S,
    content,
    ended,
    lines,
    request_line,
    upload,
)
from tests.router.http.harness import housing, listening
from tests.router.rig import until


@asynccontextmanager
async def replica(path: Path) -> AsyncIterator[HostAddress]:
    """A router that keeps its batches there."""
    runner = BatchRunner(BatchStore(path, 1 << 30, DAY_S), NO_KEYS, 8)
    async with housing(FakeShard(), batches=runner) as house, listening(house.app) as port:
        running = asyncio.create_task(runner.run())
        try:
            yield HostAddress("127.0.0.1", port)
        finally:
            await end(running)


@asynccontextmanager
async def front_of(pool: ReplicaPool, metrics: FleetMetrics) -> AsyncIterator[httpx.AsyncClient]:
    bodies = BodyReader(100_000, 30.0, metrics.connections_cut)
    parser = ParserThread(DEFAULT_BOUNDS)
    front = ReplicaFront(pool, metrics, no_sockets, bodies, parser, MoveRules(None))
    transport = httpx.ASGITransport(app=Access(front))
    await until(lambda: pool.are_all_ready)
    async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
        yield client
    await pool.close()


async def listed(client: httpx.AsyncClient, path: str, **asked: Any) -> list[str]:
    """The ids of a list, page by page."""
    ids: list[str] = []
    while True:
        after = {"after": ids[-1]} if ids else {}
        page = (await client.get(path, params={**asked, **after})).json()
        ids += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            return ids


@pytest.fixture
def metrics() -> FleetMetrics:
    return FleetMetrics(CollectorRegistry())


async def test_what_is_kept_is_asked_of_the_replica_that_its_id_names(
    metrics: FleetMetrics, tmp_path: Path
) -> None:
    pool = ReplicaPool(metrics, CheckRules(interval_s=0.01))
    async with replica(tmp_path / "a") as one, AsyncExitStack() as doomed:
        other = await doomed.enter_async_context(replica(tmp_path / "b"))
        pool.replace({"one": one, "other": other})
        async with front_of(pool, metrics) as client:
            here = await upload(client, b"{}\n")
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{other.port}") as direct:
                there = await upload(direct, lines([request_line(n) for n in range(3)]))
            body = {"input_file_id": there["id"], "endpoint": COMPLETIONS}
            batch = await client.post("/v1/batches", json={**body, "completion_window": "1h"})
            done = await ended(client, batch.json()["id"])
            assert done["status"] == "completed"
            assert len(await content(client, done["output_file_id"])) == 3
            files = {here["id"], there["id"], done["output_file_id"]}
            assert {each.split("-")[-2] for each in files} == set(pool.stores)
            for limit in (1, 2, 20):
                assert set(await listed(client, "/v1/files", limit=limit)) == files
            assert await listed(client, "/v1/batches") == [done["id"]]
            assert (await client.get("/v1/files?after=file-x")).status_code == 404
            assert (await client.get("/v1/files?limit=x")).status_code == 400

            await doomed.aclose()
            await until(lambda: not pool.are_all_ready)
            away = await client.get(f"/v1/batches/{done['id']}")
            assert (away.status_code, away.headers["retry-after"]) == (503, "1")
            assert done["id"] in away.json()["error"]["message"]
            assert (await client.get("/v1/files")).status_code == 503
            # The one that would have it is there.
            unknown = here["id"][:-1] + "x"
            assert (await client.get(f"/v1/files/{here['id']}")).json() == here
            assert (await client.delete(f"/v1/files/{here['id']}")).status_code == 200
            assert (await client.get(f"/v1/files/{here['id']}")).status_code == 404
            assert (await client.get(f"/v1/files/{unknown}")).status_code == 503

            async with replica(tmp_path / "b") as back:
                pool.replace({"one": one, "elsewhere": back})
                await until(lambda: pool.are_all_ready)
                assert (await client.get(f"/v1/batches/{done['id']}")).json() == done


async def test_a_store_that_replicas_share_is_asked_of_any(
    metrics: FleetMetrics, tmp_path: Path
) -> None:
    pool = ReplicaPool(metrics, CheckRules(interval_s=0.01))
    async with replica(tmp_path / "a") as one, replica(tmp_path / "a") as other:
        pool.replace({"one": one, "other": other})
        async with front_of(pool, metrics) as client:
            file = await upload(client, b"{}\n")
            pool.replace({"one": tmp_path / "nobody", "other": other})
            await until(lambda: not pool.are_all_ready)
            assert (await client.get(f"/v1/files/{file['id']}")).json() == file
            assert await listed(client, "/v1/files") == [file["id"]]
