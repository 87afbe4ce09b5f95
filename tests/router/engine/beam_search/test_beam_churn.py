"""Many searches at once over few blocks, some left, some late, some whose steps fail."""

import asyncio
import random
from contextlib import suppress
from time import monotonic

import grpc
import pytest

from router.engine.batcher import BatcherLimits
from router.engine.beam_search.types import Place, SearchEnd
from tests.fakes import FakeShard
from tests.router.engine.beam_search.beams import searching
from tests.router.rig import ANY_TEXT, PATIENT, Rig, asking, routing, settled

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
        assert rig.batcher.num_streams == rig.batcher.slots.num_taken == 0
    assert dict(zip(prompts, result, strict=True)) == expected
