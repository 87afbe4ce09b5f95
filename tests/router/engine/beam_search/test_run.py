"""Beam searches in the batcher: failures of shards, cancellation, and churn."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from time import monotonic

import grpc
import pytest

from router.engine.batcher import BatcherLimits
from router.engine.beam_search import BeamRun, Place, SearchEnd, SearchOutcome
from router.request.errors import FailedAlone, GenerationFailed, Unhealthy
from tests.fakes import FakeShard
from tests.router.engine.beam_search.beams import searching
from tests.router.rig import ANY_TEXT, PATIENT, QUICK, Rig, asking, methods, routing, settled

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
    assert rig.batcher.num_streams == rig.batcher.admission.num_taken == 0


@pytest.mark.parametrize("max_batch_size", [8, 1], ids=["all run", "some wait"])
async def test_a_search_whose_shard_dies_for_good_ends_with_all_that_waits(
    max_batch_size: int,
) -> None:
    shard = slow_shard()
    limits = replace(SELDOM, restart_s=0.1, retry_s=0.05)
    async with routing(shard, limits=limits, max_batch_size=max_batch_size) as rig:
        run = searching(rig, asking(max_new_tokens=90), report_s=0.0)
        for _ in range(2):
            assert await run.next() is None
        await shard.stop()
        with pytest.raises(Unhealthy, match="shard 0"):
            await ended(run)
        run.close()
        assert_nothing_is_left(rig)


async def test_a_search_outlives_its_shard() -> None:
    shard = slow_shard()
    async with routing(shard) as rig:
        address = f"127.0.0.1:{shard.urls[0].rpartition(':')[2]}"
        run = searching(rig, asking(max_new_tokens=9), report_s=0.0)
        for _ in range(2):
            assert await run.next() is None
        await shard.stop()
        await shard.start(address)
        outcome = await ended(run)
        run.close()
    async with routing(FakeShard(num_blocks=512)) as rig:
        undisturbed = searching(rig, asking(max_new_tokens=9), report_s=0.0)
        assert outcome.ended == (await ended(undisturbed)).ended
        undisturbed.close()


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
    async with routing(shard, timeouts=replace(QUICK, step_s=1.0)) as rig:
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


async def test_a_search_fails_with_a_step_that_the_shards_fail() -> None:
    shard = slow_shard()
    async with routing(shard) as rig:
        run = searching(rig, asking(max_new_tokens=4), report_s=0.0)
        shard.faults.fail_for_good("Prefill", grpc.StatusCode.INTERNAL, "device lost")
        with pytest.raises(FailedAlone, match="device lost"):
            await ended(run)
        run.close()
        await settled(rig)
        assert methods(shard).count("Prefill") == 3
        assert_nothing_is_left(rig)


LIMITS = BatcherLimits(max_concurrent_requests=64, retry_s=5.0, tick_s=0.02)
Found = list[tuple[Place, float]]


async def found_alone(prompt: str, width: int) -> Found:
    """What a search finds with all the blocks for itself."""
    async with routing(FakeShard(num_blocks=512), timeouts=PATIENT) as rig:
        return await found(rig, prompt, width)


async def found(rig: Rig, prompt: str, width: int, *, deadline_s: float | None = None) -> Found:
    request = asking(prompt, 8, stop=("q", "zz"), constraint=ANY_TEXT, deadline_s=deadline_s)
    run = searching(rig, request, width, report_s=0.0)
    try:
        while (outcome := await run.next()) is None:
            pass
    finally:
        run.close()
    assert outcome.reason is (SearchEnd.COMPLETE if deadline_s is None else SearchEnd.DEADLINE)
    return list(outcome.ended)


async def left(rig: Rig, prompt: str, width: int, after_s: float) -> None:
    """A search whose reader is gone after a while."""
    with suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            while True:
                await found(rig, prompt, width)


@pytest.mark.parametrize("seed", range(3))
async def test_searches_that_stay_find_the_same_whatever_becomes_of_the_others(seed: int) -> None:
    dice = random.Random(seed)
    prompts = [f"story {number}" for number in range(6)]
    expected = {prompt: await found_alone(prompt, 4) for prompt in prompts}
    # A search of four alone would like 20 blocks or so.
    shard = FakeShard(num_blocks=14)
    async with routing(shard, limits=LIMITS, timeouts=PATIENT) as rig:
        leaving = [
            asyncio.ensure_future(left(rig, f"other {number}", 3, dice.uniform(0.0, 0.3)))
            for number in range(6)
        ]
        staying = [asyncio.ensure_future(found(rig, prompt, 4)) for prompt in prompts]
        late = asyncio.ensure_future(found(rig, "late", 4, deadline_s=monotonic()))
        await asyncio.sleep(dice.uniform(0.0, 0.05))
        for _ in range(2):
            shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        result = await asyncio.gather(*staying)
        await asyncio.gather(late, *leaving)
        await settled(rig)
        assert not shard.faults.fails
        assert rig.batcher.num_streams == rig.batcher.admission.num_taken == 0
    assert dict(zip(prompts, result, strict=True)) == expected
