"""While the shards are broken: who may still wait for them, and who is refused at the door."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic

import grpc
import pytest

from router.engine.batcher import BatcherLimits
from router.request.errors import Unhealthy
from tests.fakes import FakeShard
from tests.router.rig import (
    PROMPT,
    QUICK,
    Rig,
    asking,
    end_of,
    error_of,
    events_of,
    expected_text,
    routing,
    until,
)

# A router that soon gives failed shards up.
HOPELESS = BatcherLimits(health_s=0.02, retry_s=0.05, restart_s=0.1)


async def until_refused(rig: Rig) -> Unhealthy:
    deadline_s = monotonic() + 5.0
    while monotonic() < deadline_s:
        try:
            assert isinstance(error_of(await events_of(rig.batcher.submit(asking()))), Unhealthy)
        except Unhealthy as error:
            return error
        await asyncio.sleep(0.02)
    raise AssertionError("nobody was refused")


@asynccontextmanager
async def gone(shard: FakeShard, limits: BatcherLimits) -> AsyncIterator[tuple[Rig, str]]:
    """A router whose shard has just been found to be gone, and where it was."""
    async with routing(shard, limits=limits) as rig:
        address = f"127.0.0.1:{shard.urls[0].rpartition(':')[2]}"
        await shard.stop()
        await until(lambda: not rig.batcher.is_alive)
        yield rig, address


async def test_a_request_that_recovery_may_serve_is_taken_and_served() -> None:
    shard = FakeShard()
    async with gone(shard, BatcherLimits(health_s=0.02, retry_s=0.05)) as (rig, address):
        await asyncio.sleep(0.2)  # several attempts to begin anew are over
        assert rig.batcher.trouble is not None
        waiting = rig.batcher.submit(asking())
        await shard.start(address)
        assert end_of(await events_of(waiting)).text == expected_text(PROMPT, 6)


async def test_after_attempts_in_vain_requests_are_refused_at_the_door() -> None:
    async with gone(FakeShard(), HOPELESS) as (
        rig,
        _,
    ):
        error = await until_refused(rig)
        assert "the shards have not answered for" in str(error)
        assert error.retry_after_s == 1.0
        assert rig.batcher.num_streams == 0
        assert rig.metrics.rejected.value("unhealthy") == 1


async def test_once_the_shards_are_back_nobody_is_refused() -> None:
    shard = FakeShard()
    async with gone(shard, HOPELESS) as (
        rig,
        address,
    ):
        await until_refused(rig)
        await shard.start(address)
        deadline_s = monotonic() + 5.0
        while rig.batcher.trouble is not None:
            assert monotonic() < deadline_s
            await asyncio.sleep(0.01)
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


async def test_a_deadline_passes_while_the_shards_do_not_begin_anew() -> None:
    shard = FakeShard()
    async with routing(shard, timeouts=replace(QUICK, control_s=1.0)) as rig:
        shard.faults.hangs.add("ClearCache")
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        waiting = rig.batcher.submit(asking(deadline_s=monotonic() + 0.05))
        end = end_of(await events_of(waiting))
        assert (end.reason.value, end.text) == ("deadline", "")
        shard.faults.hangs.clear()


@pytest.mark.parametrize("num_refused", [1, 3])
async def test_every_refusal_is_counted_once(num_refused: int) -> None:
    async with gone(FakeShard(), HOPELESS) as (
        rig,
        _,
    ):
        await until_refused(rig)
        for _ in range(num_refused):
            with pytest.raises(Unhealthy):
                await rig.infer.complete_all([asking("a"), asking("b")])
        assert rig.metrics.rejected.value("unhealthy") == 1 + num_refused
