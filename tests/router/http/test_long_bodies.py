"""Bodies of two megabytes beside everything else: the event loop goes on."""

import asyncio
import time

import pytest

from bench.hostile_bodies import bodies
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, open_request

BODIES = {name: each for name, each in bodies().items() if each[0] != "/lmtp"}
# A busy machine stops the loop, too, but not each time.
NUM_TRIES = 3
# Each of these took 60 to 1660 ms on the loop.
MAX_LAG_S = 0.05


async def lag_s(port: int, path: str, body: bytes) -> float:
    """The longest time that the loop stood still until the body was answered."""

    async def answer() -> None:
        reader, writer = await open_request(port, "POST", path, body)
        assert (await reader.read()).startswith(b"HTTP/1.1 4")
        writer.close()

    answering = asyncio.create_task(answer())
    longest_s = 0.0
    while not answering.done():
        begun_s = time.perf_counter()
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.perf_counter() - begun_s - 0.001)
    await answering
    return longest_s


@pytest.mark.parametrize(
    "name",
    [
        *("messages-in-bounds", "responses-in-bounds", "calls-in-bounds", "keys", "metadata"),
        *("stop-ids", "prompt-ids", "logit-bias", "tokenize", "control-tokens"),
    ],
)
async def test_the_loop_goes_on_while_a_body_is_read(name: str) -> None:
    path, body = BODIES[name]
    async with housing(FakeShard(), max_body_len=2_000_000) as house, listening(house.app) as port:
        lags_s = [await lag_s(port, path, body) for _ in range(NUM_TRIES)]

    assert min(lags_s) < MAX_LAG_S
