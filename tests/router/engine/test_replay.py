"""Whatever becomes of the shards, every stream ends once, with the text that it would have had."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest

from proto import generate_pb2 as pb
from proto.contract import LogprobParams
from router.engine.batcher import BatcherLimits
from router.engine.stream import Stream
from router.request.errors import Cancelled
from router.request.request import PromptScored
from tests.fakes import FakeShard
from tests.router.rig import (
    ANY_TEXT,
    QUICK,
    Rig,
    asking,
    end_of,
    error_of,
    events_of,
    expected_text,
    routing,
    settled,
)

pytestmark = pytest.mark.slow
NUM_STREAMS = 40
MAX_BATCH_SIZE = 12
LIMITS = BatcherLimits(health_s=0.2, retry_s=0.02, tick_s=0.02)
TIMEOUTS = replace(QUICK, step_s=1.0, control_s=1.0, health_s=1.0)


def once(shard: FakeShard, change: Callable[[pb.StepResponse], None]) -> None:
    """The next answer of a step is spoilt, and no other."""

    def spoil(answer: pb.StepResponse) -> None:
        shard.faults.spoil = None
        change(answer)

    shard.faults.spoil = spoil


async def kill(shard: FakeShard) -> None:
    """A new process takes its place after a while, with nothing of the old one but its address."""
    address = f"127.0.0.1:{shard.urls[0].rpartition(':')[2]}"
    await shard.stop()
    shard.is_warm = False
    shard.rows = None
    await asyncio.sleep(0.05)
    await shard.start(address)


async def hang(shard: FakeShard) -> None:
    """It answers nothing for a while."""
    methods = {"Prefill", "Decode", "Health", "ClearCache"}
    shard.faults.hangs |= methods
    await asyncio.sleep(0.5)
    # The calls that hang do so for ever: the router does not wait for them.
    shard.faults.hangs -= methods


async def fail_a_call(shard: FakeShard) -> None:
    shard.faults.fails.append(("Decode", grpc.StatusCode.UNAVAILABLE, "cut short"))


async def double_an_answer(shard: FakeShard) -> None:
    once(shard, lambda answer: answer.generations.extend(answer.generations[:1]))


async def lose_a_token(shard: FakeShard) -> None:
    once(shard, lambda answer: answer.ClearField("generations"))


async def answer_late(shard: FakeShard) -> None:
    once(shard, lambda answer: setattr(answer, "epoch", answer.epoch - 1))


async def delay_calls(shard: FakeShard) -> None:
    shard.faults.delay_s = 0.1
    await asyncio.sleep(0.3)
    shard.faults.delay_s = 0.002


FAULTS = (kill, hang, fail_a_call, double_an_answer, lose_a_token, answer_late, delay_calls)


async def break_now_and_then(shard: FakeShard, dice: random.Random) -> None:
    """One fault after the other, with time for some tokens between them.

    So many calls that each request that is computed alone gets further: one that meets three faults
    in a row ends, as it should.
    """
    while True:
        num_calls = len(shard.calls) + 3 * MAX_BATCH_SIZE
        await asyncio.sleep(dice.uniform(0.05, 0.25))
        while len(shard.calls) < num_calls:
            await asyncio.sleep(0.01)
        await dice.choice(FAULTS)(shard)


async def read(rig: Rig, index: int, dice: random.Random) -> None:
    """One of the streams: most are read to the end, some leave."""
    await asyncio.sleep(dice.uniform(0.0, 2.0))
    prompt = f"story {index}"
    num_tokens = dice.randint(1, 60)
    request = asking(
        prompt,
        num_tokens,
        logprobs=LogprobParams(prompt=index % 5 == 1),
        constraint=ANY_TEXT if index % 3 == 1 else None,
    )
    stream: Stream = rig.batcher.submit(request)
    if index % 7 == 6:
        await asyncio.sleep(dice.uniform(0.0, 0.5))
        rig.batcher.cancel(stream)
        events = await events_of(stream)
        assert stream.end is not None
        assert not hasattr(stream.end, "error") or isinstance(error_of(events), Cancelled)
        return
    events = await events_of(stream)
    assert end_of(events).text == expected_text(prompt, num_tokens)
    scored = [event for event in events if isinstance(event, PromptScored)]
    assert [len(each.tokens) for each in scored] == [len(prompt)] * (index % 5 == 1)


@pytest.mark.parametrize("seed", range(4))
async def test_streams_are_the_same_whatever_becomes_of_their_shard(seed: int) -> None:
    dice = random.Random(seed)
    shard = FakeShard(num_blocks=200)
    shard.faults.delay_s = 0.002
    router = routing(shard, limits=LIMITS, timeouts=TIMEOUTS, max_batch_size=MAX_BATCH_SIZE)
    async with router as rig:
        breaking = asyncio.ensure_future(break_now_and_then(shard, dice))
        await asyncio.gather(*(read(rig, index, dice) for index in range(NUM_STREAMS)))
        breaking.cancel()
        await asyncio.gather(breaking, return_exceptions=True)
        shard.faults.hangs.clear()
        shard.faults.spoil = None
        if not shard.listens:
            await shard.start(f"127.0.0.1:{shard.urls[0].rpartition(':')[2]}")
        assert end_of(await events_of(rig.batcher.submit(asking()))).text
        await settled(rig)
        assert rig.scheduler.stats().num_blocks_used == 0
        assert rig.metrics.shard_failures.value() > 0
