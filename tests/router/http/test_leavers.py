"""A thousand clients that leave at random points, streaming or not: everything comes back."""

import asyncio
import json
import random

import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, open_request
from tests.router.rig import PATIENT, methods, settled

NUM_CLIENTS = 1000
NUM_AT_ONCE = 50
ROUTES = ("/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions")


def body_of(path: str, index: int, num_tokens: int) -> dict[str, object]:
    prompt = f"client {index} " + "x" * (index % 90)
    if path.startswith("/generate"):
        return {"inputs": prompt, "parameters": {"max_new_tokens": num_tokens}}
    chosen = {"max_tokens": num_tokens, "stream": index % 3 > 0, "n": 1 + index % 2}
    if path.endswith("chat/completions"):
        return {"messages": [{"role": "user", "content": prompt[:90]}], **chosen}
    return {"prompt": prompt, **chosen}


async def visit(port: int, index: int, chance: random.Random) -> None:
    """Asks, reads or does not, and hangs up: mostly long before the end."""
    path = ROUTES[index % len(ROUTES)]
    body = json.dumps(body_of(path, index, chance.randint(1, 50))).encode()
    reader, writer = await open_request(port, "POST", path, body)
    stays_s = chance.choice((0.0, 0.005, 0.05, 0.3)) * chance.random()
    try:
        async with asyncio.timeout(stays_s):
            await reader.read()
    except TimeoutError:
        pass
    # Without a farewell, as a process that is killed.
    writer.transport.abort()


@pytest.mark.slow
async def test_blocks_rows_and_slots_are_all_back_when_the_last_has_left() -> None:
    chance = random.Random(7)
    shard = FakeShard(num_blocks=4096)
    shard.faults.delay_s = 0.002
    few = asyncio.Semaphore(NUM_AT_ONCE)
    house_of_many = housing(shard, max_concurrent_requests=2 * NUM_AT_ONCE, timeouts=PATIENT)
    async with house_of_many as house, listening(house.app) as port:

        async def one(index: int) -> None:
            async with few:
                await visit(port, index, chance)

        await asyncio.gather(*(one(index) for index in range(NUM_CLIENTS)))
        await settled(house.rig)
        metrics = house.rig.metrics
        assert house.rig.batcher.num_streams == 0
        assert house.rig.scheduler.stats().num_blocks_used == 0
        assert shard.num_held == 0
        num_left = metrics.sequence_ends.value("cancelled")
        assert num_left > NUM_CLIENTS / 4
        assert metrics.cancel_to_free.count() == num_left
        assert "FilterBatch" not in methods(shard), "they left with the steps"
