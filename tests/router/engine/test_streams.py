"""A reader that does not keep up: its sequence sits the steps out, the others go on."""

import asyncio
from time import monotonic

import pytest

from proto.contract import FinishReason
from router.engine.batcher import MANY_UNREAD, BatcherLimits
from router.engine.stream import Stream
from router.request.errors import (
    Cancelled,
    Draining,
    ServerStopped,
)
from router.request.request import Failed, Finished
from router.shards.shards import ShardTimeouts
from tests.fakes import FakeShard
from tests.router.rig import (
    PROMPT,
    asking,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    settled,
)

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
        # One more was under way.
        assert unread.num_unread == unread.num_generated == MANY_UNREAD + 1


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
        assert unread.num_generated == MANY_UNREAD + 1
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
        assert unread.end.num_generated_tokens == MANY_UNREAD + 1


async def test_a_drain_waits_for_it_no_longer_than_it_says() -> None:
    async with routing(FakeShard()) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        await asyncio.wait_for(rig.batcher.drain(0.05), 30)
        assert isinstance(unread.end, Failed)


async def test_a_reader_that_leaves_frees_its_row_at_once() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        leaver = rig.batcher.submit(asking("leave", 500))
        stayer = rig.batcher.submit(asking("stay", 40))
        await leaver.take()
        rig.batcher.cancel(leaver)
        assert isinstance(error_of(await events_of(leaver)), Cancelled)
        assert end_of(await events_of(stayer)).text == expected_text("stay", 40)
        await settled(rig)
        assert shard.num_held == 0
        assert rig.scheduler.stats().num_blocks_used == 0
        assert "FilterBatch" not in methods(shard), "it left with a step"


async def test_readers_that_all_leave_clear_the_batch_and_the_next_begins_anew() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        streams = [rig.batcher.submit(asking(f"{index}", 500)) for index in range(3)]
        for stream in streams:
            await stream.take()
        for stream in streams:
            rig.batcher.cancel(stream)
        await settled(rig)
        assert shard.num_held == 0
        assert end_of(await events_of(rig.batcher.submit(asking()))).reason is FinishReason.LENGTH


async def test_leaving_before_the_first_step_costs_nothing() -> None:
    async with routing(FakeShard()) as rig:
        stream = rig.batcher.submit(asking())
        rig.batcher.cancel(stream)
        rig.batcher.cancel(stream)
        assert isinstance(error_of(await events_of(stream)), Cancelled)
        await settled(rig)


async def test_a_deadline_ends_with_what_there_is() -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.01
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking("x", 900, deadline_s=monotonic() + 0.1))
        end = end_of(await events_of(stream))
        assert end.reason is FinishReason.DEADLINE
        assert 1 <= end.num_generated_tokens < 40
        assert end.text == expected_text("x", end.num_generated_tokens)
        await settled(rig)


async def test_a_deadline_passes_while_a_step_hangs() -> None:
    shard = FakeShard()
    patient = ShardTimeouts(step_s=60.0, control_s=0.5)
    async with routing(shard, timeouts=patient) as rig:
        shard.faults.hangs.add("Prefill")
        began_s = monotonic()
        stream = rig.batcher.submit(asking(deadline_s=began_s + 0.1))
        assert end_of(await events_of(stream)).reason is FinishReason.DEADLINE
        assert monotonic() - began_s < 20.0
        rig.running.cancel()
        await asyncio.gather(rig.running, return_exceptions=True)
        rig.running = asyncio.ensure_future(asyncio.sleep(0))


async def test_draining_lets_what_runs_finish_and_refuses_the_rest() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.005
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=10))
        drained = asyncio.ensure_future(rig.batcher.drain(5.0))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            rig.batcher.submit(asking())
        assert end_of(await events_of(stream)).text == expected_text(PROMPT, 10)
        await drained
        await asyncio.wait_for(rig.running, 30)


async def test_draining_for_too_long_fails_what_is_left() -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.01
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=900))
        waiting = rig.batcher.submit(asking(max_new_tokens=900))
        await rig.batcher.drain(0.1)
        for left in (stream, waiting):
            error = error_of(await events_of(left))
            assert isinstance(error, ServerStopped)
            assert "0.1 s" in str(error)
        await asyncio.wait_for(rig.running, 30)


async def test_when_the_task_is_cancelled_every_stream_still_gets_its_end() -> None:
    async with routing(FakeShard(num_blocks=256)) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=900))
        await stream.take()
        rig.running.cancel()
        assert isinstance(error_of(await events_of(stream)), ServerStopped)
        await asyncio.gather(rig.running, return_exceptions=True)
        with pytest.raises(Draining):
            rig.batcher.submit(asking())
        rig.running = asyncio.ensure_future(asyncio.sleep(0))
