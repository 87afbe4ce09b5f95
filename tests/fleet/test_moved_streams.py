"""Both halves of a move: the front of replicas, over routers of which one stops."""

import asyncio
import re
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from fleet.metrics import FleetMetrics
from fleet.replica_front import MoveRules, ReplicaFront
from fleet.replica_pool import CheckRules, ReplicaPool
from fleet.upstream import HostAddress
from router.http.bodies import DEFAULT_BOUNDS, BodyReader, ParserThread
from router.http.server.access import Access
from tests.fakes import FakeShard
from tests.fleet.replica_harness import no_sockets
from tests.integration.server import FRONT_SECRET
from tests.router.http.harness import House, housing, listening
from tests.router.http.test_resumption import BODIES
from tests.router.rig import until

_IDS = re.compile(r'"(?:id|item_id)":"[^"]+"|"created(?:_at)?":\d+')
_TIMES = re.compile(r'"work_details":{[^}]*}|"completed_at":\d+')


def slow_shard() -> FakeShard:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.004
    return shard


def shape(events: str) -> str:
    """The events with each id in the place of the one that it is the same as."""
    seen: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[0] not in seen:
            seen.append(found[0])
        return str(seen.index(found[0]))

    return _IDS.sub(number, _TIMES.sub("", events))


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_outlives_its_router(path: str) -> None:
    rules: dict[str, Any] = {"front_secret": FRONT_SECRET}
    async with (
        housing(slow_shard(), **rules) as one,
        housing(slow_shard(), **rules) as other,
        listening(one.app) as first,
        listening(other.app) as second,
    ):
        metrics = FleetMetrics(CollectorRegistry())
        pool = ReplicaPool(metrics, CheckRules(interval_s=0.01))
        ports = {"one": first, "other": second}
        pool.replace({name: HostAddress("127.0.0.1", port) for name, port in ports.items()})
        bodies = BodyReader(100_000, 30.0, metrics.connections_cut)
        parser = ParserThread(DEFAULT_BOUNDS)
        front = ReplicaFront(pool, metrics, no_sockets, bodies, parser, MoveRules(FRONT_SECRET))
        await until(lambda: pool.are_all_ready)
        transport = httpx.ASGITransport(app=Access(front))

        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            for _ in range(2):  # the second one finds its prompt in the cache
                undisturbed = await client.post(path, json=BODIES[path])
            asking = asyncio.ensure_future(client.post(path, json=BODIES[path]))
            house = await running(one, other)
            await house.rig.batcher.drain(0.0)
            moved = await asking
        await pool.close()

    assert b'tandem_fleet_moves_total{kind="stream"} 1.0' in metrics.exposition()
    assert shape(moved.text) == shape(undisturbed.text)


async def running(*houses: House) -> House:
    """The one that has begun to answer."""
    before = [len(house.shard.calls) for house in houses]

    def begun() -> list[House]:
        pairs = zip(houses, before, strict=True)
        return [house for house, num in pairs if len(house.shard.calls) > num + 12]

    await until(lambda: bool(begun()))
    return begun()[0]
