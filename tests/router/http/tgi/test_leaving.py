"""Clients of the cloud shapes that leave: what they asked for ends, all of it."""

import asyncio
import json
from typing import Any

import pytest

from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening, open_request
from tests.router.rig import settled

LONG = {"max_new_tokens": 100}


def num_steps(house: House) -> int:
    return sum(method in ("Prefill", "Decode") for method, _ in house.shard.calls)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", {"inputs": "hello", "parameters": LONG}),
        ("/invocations", {"inputs": "hello", "parameters": LONG, "stream": True}),
        ("/invocations", {"prompt": ["a", "b"], "max_tokens": 100}),
        ("/vertex", {"instances": [{"inputs": "a", "parameters": LONG}] * 2}),
    ],
)
async def test_a_client_that_leaves_ends_its_generation_within_a_step(
    path: str, body: dict[str, Any]
) -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    async with housing(shard) as house, listening(house.app) as port:
        _, writer = await open_request(port, "POST", path, json.dumps(body).encode())
        while num_steps(house) < 3:
            await asyncio.sleep(0.005)
        writer.close()
        await writer.wait_closed()
        num_before = num_steps(house)
        await settled(house.rig)

        # One step may be under way, one may be scheduled before the server hears of it.
        assert num_steps(house) <= num_before + 2
        assert shard.num_held == 0
        assert house.rig.metrics.request_failure.value("dropped") == 1
