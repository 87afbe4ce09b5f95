"""Three times as many clients as there are slots, over a real shard's gRPC, on real time."""

import asyncio
import random
from collections import Counter
from time import monotonic

import pytest

from proto.contract import FinishReason
from router.engine.batcher import BatcherLimits
from router.request.errors import Overloaded
from tests.fakes import FakeShard
from tests.router.rig import PATIENT, Rig, asking, routing, settled

NUM_SLOTS = 32
# A step takes some 15 ms, so that a sequence takes about 1.5 s and a slot comes free each 50 ms.
NUM_TOKENS = (45, 135)
STEP_S = 0.01


async def ask(rig: Rig, prompt: str, num_tokens: int) -> int:
    """One request, sent again when the server asks for it; how often it was sent."""
    for num_tries in range(1, 100):
        try:
            (completion,) = await rig.infer.complete_all([asking(prompt, num_tokens)])
        except Overloaded as error:
            await asyncio.sleep(error.retry_after_s)
            continue
        assert completion.finished.reason is FinishReason.LENGTH
        return num_tries
    raise AssertionError("99 times refused")


async def goodput(rig: Rig, num_clients: int, duration_s: float) -> tuple[float, Counter[int]]:
    """Answers per second of clients that ask again and again, and the tries that they took."""
    num_tries: Counter[int] = Counter()
    chance = random.Random(3)
    began_s = monotonic()

    async def client(index: int) -> None:
        turn = 0
        while monotonic() - began_s < duration_s:
            num_tries[await ask(rig, f"{index} {turn}", chance.randint(*NUM_TOKENS))] += 1
            turn += 1

    clients = [asyncio.create_task(client(index)) for index in range(num_clients)]
    await asyncio.sleep(duration_s)
    num_answered = sum(num_tries.values())
    await asyncio.gather(*clients)
    return num_answered / duration_s, num_tries


@pytest.mark.alone
@pytest.mark.slow
async def test_at_three_times_the_capacity_goodput_stays_and_all_get_in_at_last() -> None:
    shard = FakeShard(num_blocks=4096, block_size=16, checks_blocks=False)
    shard.faults.delay_s = STEP_S
    limits = BatcherLimits(max_concurrent_requests=NUM_SLOTS)
    async with routing(
        shard,
        max_step_tokens=1024,
        max_batch_size=NUM_SLOTS,
        limits=limits,
        timeouts=PATIENT,
    ) as rig:
        alone, _ = await goodput(rig, NUM_SLOTS, 3.0)
        rushed, num_tries = await goodput(rig, 3 * NUM_SLOTS, 6.0)
        await settled(rig)
        num_refused = rig.metrics.rejected.value("overloaded")
    assert num_refused > 0
    assert rushed > 0.85 * alone, (alone, rushed, num_tries)
