"""The replicas as they are now, by what they answer."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fleet.discovery import Discovery
from fleet.errors import DidNotStart, NoReplica, ServerGone
from fleet.metrics import FleetMetrics
from fleet.replica_pool import CheckRules, ReplicaPool, RunningReplicas
from tests.fleet.replica_harness import running_front


async def test_a_replica_that_fails_a_use_is_out_until_its_next_check(tmp_path: Path) -> None:
    async with running_front(tmp_path, "ab", checks=CheckRules(interval_s=0.2)) as front:
        pool = front.pool
        use = await pool.use([], ())
        pool.report_failure(use, ServerGone("it is gone"))
        use.close()
        use.close()
        assert list(pool.ready) == ["b"]
        with pytest.raises(NoReplica):
            await pool.use([], {"b"})
        back = await pool.use([], {"b"}, wait_s=5.0)
        assert back.name == "a"
        assert front.metrics.ejections.value("a") == 1


async def test_what_another_address_did_does_not_concern_the_new_one(tmp_path: Path) -> None:
    async with running_front(tmp_path, "ab") as front:
        pool = front.pool
        old = await pool.use([], {"b"})
        sockets = {replica.name: replica.socket for replica in front.replicas}
        # Started anew, at another place.
        pool.replace({"a": sockets["b"]})
        async with asyncio.timeout(5):
            await pool.until_ready()
        pool.report_failure(old, ServerGone("it is gone"))
        assert pool.ready == {"a": sockets["b"]}
        waiting = asyncio.create_task(pool.until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        old.close()
        await waiting


class Source:
    """Of no replica."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def stop(self) -> None:
        pass

    def stop_now(self) -> None:
        pass


async def test_a_front_starts_with_its_first_replica_or_says_why_not(tmp_path: Path) -> None:
    pool = ReplicaPool(FleetMetrics(CollectorRegistry()), CheckRules())
    with pytest.raises(DidNotStart, match="no weights"):
        await RunningReplicas(pool, Source(DidNotStart("no weights"))).start()
    async with running_front(tmp_path, "a") as front:
        await RunningReplicas(front.pool, Source()).start()


async def test_a_drain_waits_for_uses_and_no_longer_than_it_may(tmp_path: Path) -> None:
    async with running_front(tmp_path, "a") as front:
        use = await front.pool.use([], ())
        patient = Discovery([], front.pool, 60.0)
        draining = asyncio.create_task(RunningReplicas(front.pool, patient).drain())
        await asyncio.sleep(0.01)
        assert front.pool.is_draining
        assert not draining.done()
        use.close()
        await asyncio.wait_for(draining, 30)
        await front.pool.use([], ())
        hurried = Discovery([], front.pool, 0.01)
        await asyncio.wait_for(RunningReplicas(front.pool, hurried).drain(), 30)
