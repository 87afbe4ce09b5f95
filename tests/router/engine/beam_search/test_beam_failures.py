"""Searches whose shards die, fail or hang under them: one clear end, at once, and nothing left."""

import asyncio
from time import monotonic

import grpc
import pytest

from router.engine.batcher import BatcherLimits
from router.engine.beam_search.run import BeamRun
from router.engine.beam_search.types import SearchEnd, SearchOutcome
from router.request.errors import GenerationFailed, ShardFailed, Unhealthy
from tests.fakes import FakeShard
from tests.router.engine.beam_search.beams import searching
from tests.router.rig import Rig, asking, methods, routing, settled

# A router that waits long until it asks failed shards again, and far longer than a test.
SELDOM = BatcherLimits(retry_s=60.0, tick_s=60.0)


def slow_shard() -> FakeShard:
    shard = FakeShard(num_blocks=512)
    shard.faults.delay_s = 0.01
    return shard


async def ended(run: BeamRun) -> SearchOutcome:
    async with asyncio.timeout(10.0):
        while (outcome := await run.next()) is None:
            pass
    return outcome


def assert_nothing_is_left(rig: Rig) -> None:
    assert rig.batcher.num_streams == rig.batcher.slots.num_taken == 0


@pytest.mark.parametrize("max_batch_size", [8, 1], ids=["all run", "some wait"])
async def test_a_search_whose_shard_dies_ends_with_the_first_attempt_in_vain(
    max_batch_size: int,
) -> None:
    shard = slow_shard()
    async with routing(shard, limits=SELDOM, max_batch_size=max_batch_size) as rig:
        run = searching(rig, asking(max_new_tokens=90), report_s=0.0)
        for _ in range(2):
            assert await run.next() is None
        await shard.stop()
        with pytest.raises(Unhealthy, match="the shards do not answer"):
            await ended(run)
        run.close()
        assert_nothing_is_left(rig)


async def test_a_bug_under_a_search_ends_it_at_once() -> None:
    shard = slow_shard()
    async with routing(shard, limits=SELDOM) as rig:
        run = searching(rig, asking(max_new_tokens=90), report_s=0.0)
        assert await run.next() is None
        shard.faults.spoil = lambda response: response.ClearField("generations")
        with pytest.raises(GenerationFailed):
            await ended(run)
        shard.faults.spoil = None
        run.close()
        await settled(rig)
        assert_nothing_is_left(rig)


async def test_a_search_ends_at_its_deadline_though_a_step_hangs() -> None:
    shard = slow_shard()
    async with routing(shard) as rig:
        run = searching(rig, asking(max_new_tokens=90, deadline_s=monotonic() + 0.5), report_s=0.0)
        assert await run.next() is None
        shard.faults.hangs |= {"Prefill", "Decode"}
        async with asyncio.timeout(2.0):
            outcome = await ended(run)
        assert outcome.reason is SearchEnd.DEADLINE
        shard.faults.hangs.clear()
        run.close()
        await settled(rig)
        assert_nothing_is_left(rig)


async def test_a_step_is_tried_again_three_times_in_a_row() -> None:
    shard = slow_shard()
    async with routing(shard) as rig:
        run = searching(rig, asking(max_new_tokens=4), report_s=0.0)
        for _ in range(4):
            shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        with pytest.raises(ShardFailed, match="device lost"):
            await ended(run)
        run.close()
        await settled(rig)
        assert methods(shard).count("Prefill") == 4
        assert_nothing_is_left(rig)
