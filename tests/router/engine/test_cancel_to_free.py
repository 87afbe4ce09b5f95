"""A client that leaves is out of the third step: then its blocks and rows are back, and its slot.

Two steps may be with the shards when it leaves; the third drops it, and while that is answered a
fourth has begun.
"""

import asyncio
import random

import grpc
import pytest

from router.engine.batcher import BatcherLimits
from router.engine.stream import Stream
from tests.fakes import FakeShard
from tests.router.rig import Rig, asking, methods, routing, settled

STEPS = ("Prefill", "Decode")


def num_steps(shard: FakeShard) -> int:
    return sum(method in STEPS for method in methods(shard))


async def steps_until_free(rig: Rig, shard: FakeShard, stream: Stream) -> int:
    """Cancels, and counts the steps that begin before nothing of it is anywhere."""
    histogram = rig.metrics.cancel_to_free
    before = num_steps(shard)
    num_gone = histogram.count()
    num_streams = rig.batcher.num_streams
    rig.batcher.cancel(stream)
    assert rig.batcher.num_streams == num_streams - 1
    async with asyncio.timeout(30):
        while histogram.count() == num_gone:
            await asyncio.sleep(0)
    assert rig.scheduler.has_left(stream.request_id)
    assert stream.request_id not in (shard.rows or {})
    return num_steps(shard) - before


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_wherever_a_client_leaves_all_is_back_with_the_third_step(num_ranks: int) -> None:
    chance = random.Random(11)
    ranks = [
        FakeShard(rank=rank, world_size=num_ranks, num_blocks=2048) for rank in range(num_ranks)
    ]
    # Chunks of prompts, decodes, waiting ones and readers that never looked are all among them.
    async with routing(*ranks, max_step_tokens=16, max_batch_size=6) as rig:
        stayer = rig.batcher.submit(asking("stay", 4000))
        for index in range(60):
            prompt = f"{index} " + "x" * chance.randrange(60)
            leavers = [rig.batcher.submit(asking(prompt, 500)) for _ in range(3)]
            for leaver in leavers:
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                assert await steps_until_free(rig, ranks[0], leaver) <= 4
        assert stayer.end is None
        rig.batcher.cancel(stayer)
        await settled(rig)
        assert rig.scheduler.stats().num_blocks_used == 0
        assert rig.metrics.cancel_to_free.count() == 181


async def test_a_client_that_leaves_before_its_first_step_is_gone_at_once() -> None:
    async with routing(FakeShard()) as rig:
        rig.batcher.cancel(rig.batcher.submit(asking()))
        assert rig.metrics.cancel_to_free.count() == 1
        await settled(rig)


async def test_a_client_that_leaves_a_failing_step_is_gone_with_it() -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.05
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=500))
        await stream.take()
        shard.faults.fails.append(("Decode", grpc.StatusCode.INTERNAL, "device lost"))
        assert await steps_until_free(rig, shard, stream) <= 2


async def test_its_slot_is_free_for_the_next_at_once() -> None:
    limits = BatcherLimits(max_concurrent_requests=1)
    async with routing(FakeShard(num_blocks=256), limits=limits) as rig:
        for index in range(5):
            stream = rig.batcher.submit(asking(f"{index}", 500))
            await stream.take()
            assert rig.batcher.num_streams == 1
            rig.batcher.cancel(stream)
            assert rig.batcher.num_streams == 0
