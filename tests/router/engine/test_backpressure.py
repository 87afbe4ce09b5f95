"""A reader that does not keep up: its sequence sits the steps out, the others go on."""

import asyncio

from router.engine.backpressure import MANY_UNREAD
from router.engine.batcher import BatcherLimits
from router.engine.stream import Stream
from router.request.events import Failed, Finished
from tests.fakes import FakeShard
from tests.router.rig import asking, end_of, events_of, routing, settled

LONG = 100
FEW_BLOCKS = 12


async def until_paused(stream: Stream) -> None:
    """Until it has as much to read as it may, and no more comes."""
    async with asyncio.timeout(30):
        while stream.num_unread < MANY_UNREAD:
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)


async def test_what_nobody_reads_is_not_made() -> None:
    async with routing(FakeShard()) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        assert unread.num_unread == unread.num_generated == MANY_UNREAD


async def test_a_slow_reader_gets_the_same_text_as_a_quick_one() -> None:
    async with routing(FakeShard()) as rig:
        slow = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(slow)
        text = end_of(await events_of(slow)).text
        quick = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        assert end_of(await events_of(quick)).text == text
        assert len(text) == LONG


async def test_others_go_on_meanwhile() -> None:
    async with routing(FakeShard()) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        for _ in range(3):
            end = end_of(await events_of(rig.batcher.submit(asking(max_new_tokens=20))))
            assert end.num_generated_tokens > 0
        assert unread.num_generated == MANY_UNREAD
        assert rig.metrics.paused_sequences.value() == 1


async def test_a_paused_sequence_gives_its_blocks_to_an_older_one_and_comes_back() -> None:
    shard = FakeShard(num_blocks=FEW_BLOCKS, block_size=16)
    async with routing(shard) as rig:
        older = rig.batcher.submit(asking("older", max_new_tokens=LONG, ignore_eos=True))
        younger = rig.batcher.submit(asking("young", max_new_tokens=LONG, ignore_eos=True))
        reading = asyncio.ensure_future(events_of(older))
        await until_paused(younger)
        assert end_of(await reading).num_generated_tokens == LONG
        assert end_of(await events_of(younger)).num_generated_tokens == LONG


async def test_one_that_leaves_while_it_is_paused_leaves_nothing() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        rig.batcher.cancel(unread)
        await settled(rig)
        assert shard.num_held == 0
        assert rig.scheduler.stats().num_blocks_used == 0


async def test_a_deadline_passes_while_it_is_paused() -> None:
    limits = BatcherLimits(retry_s=0.05, tick_s=0.02)
    async with routing(FakeShard(), limits=limits) as rig:
        loop_s = asyncio.get_running_loop().time()
        unread = rig.batcher.submit(
            asking(max_new_tokens=LONG, ignore_eos=True, deadline_s=loop_s + 0.5)
        )
        await until_paused(unread)
        await asyncio.sleep(0.6)
        assert isinstance(unread.end, Finished)
        assert unread.end.num_generated_tokens == MANY_UNREAD


async def test_a_drain_waits_for_it_no_longer_than_it_says() -> None:
    async with routing(FakeShard()) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        await asyncio.wait_for(rig.batcher.drain(0.05), 30)
        assert isinstance(unread.end, Failed)
