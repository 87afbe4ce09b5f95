"""Thousands of short requests over HTTP, a fifth of which leave at random points."""

import asyncio
import gc
import json
import random
import re
import time
from collections import UserList
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.engine.batcher import BatcherLimits
from router.engine.validation import Limits, Validation
from router.http.app import Services, create_app
from router.http.server.listen import HttpServer, bind
from router.http.server_info import ServerInfo
from router.text.chat_template import ChatTemplate
from tests.fakes import FakeShard
from tests.router.rig import PATIENT, Rig, byte_tokenizer, routing, settled

_NUM_REQUESTS = 2_000
_NUM_CLIENTS = 48
_SHARE_THAT_LEAVES = 0.2
_PATIENCE_S = 20.0


class _Forgetful(UserList[Any]):
    """What a shard was called with is of no interest here, and would fill the memory."""

    def append(self, item: Any) -> None:
        pass


@asynccontextmanager
async def http_over(rig: Rig, shard: FakeShard) -> AsyncIterator[int]:
    """The routes over a rig, at a port."""
    limits = Limits(max_input_len=64, max_total_len=96, vocab_size=shard.vocab_size)
    info = ServerInfo("fake", ("fake",), limits, "0", 0, 128, 1, "cpu")
    services = Services(
        infer=rig.infer,
        validation=Validation(limits, byte_tokenizer()),
        tokenizer=byte_tokenizer(),
        chat_template=ChatTemplate({}, None, None),
        metrics=rig.metrics,
        info=info,
    )
    server = HttpServer(create_app(services), bind("127.0.0.1", 0), stop_timeout_s=2.0)
    await server.start()
    try:
        yield int(server.address.rpartition(":")[2])
    finally:
        await server.stop()


async def one_request(port: int, dice: random.Random) -> bool:
    """Reads a short stream to its end, or hangs up somewhere; whether it stayed."""
    body = {
        "inputs": "story " + "ab" * dice.randrange(1, 12) + str(dice.randrange(40)),
        "parameters": {"max_new_tokens": dice.randrange(1, 24), "stop": dice.choice([[], ["q"]])},
    }
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /generate_stream HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(payload), payload)
    )
    try:
        if dice.random() < _SHARE_THAT_LEAVES:
            await asyncio.wait_for(reader.read(dice.randrange(1, 400)), _PATIENCE_S)
            await asyncio.sleep(dice.choice([0.0, 0.0, 0.001, 0.005]))
            writer.transport.abort()
            return False
        answer = await asyncio.wait_for(reader.read(), _PATIENCE_S)
        assert b'"generated_text":"' in answer, answer[-300:]
        return True
    finally:
        writer.close()


async def all_requests(port: int, num_requests: int, seed: int) -> int:
    """So many of them from some clients at once; how many stayed."""
    todo = iter(range(num_requests))
    num_stayed = 0

    async def client(number: int) -> None:
        nonlocal num_stayed
        dice = random.Random(f"{seed} {number}")
        for _ in todo:
            stayed = await one_request(port, dice)
            num_stayed += stayed

    await asyncio.gather(*(client(number) for number in range(_NUM_CLIENTS)))
    return num_stayed


async def at_rest(rig: Rig, shard: FakeShard, num_tasks: int) -> None:
    """Until only the tasks are left that were there before; the scheduler is empty then."""
    await settled(rig)
    deadline_s = time.monotonic() + _PATIENCE_S
    while len(asyncio.all_tasks()) > num_tasks:
        assert time.monotonic() < deadline_s, asyncio.all_tasks()
        await asyncio.sleep(0.01)
    assert rig.scheduler.stats().num_blocks_used == 0
    assert shard.num_held == 0
    rig.scheduler.check_invariants()


def resident_mib() -> float:
    gc.collect()
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
async def test_all_blocks_come_back_and_no_task_and_no_memory_is_left() -> None:
    # A pool so small that sequences are preempted all the time.
    shard = FakeShard(num_blocks=32, block_size=4)
    shard.calls = _Forgetful()  # type: ignore[assignment]
    limits = BatcherLimits(max_concurrent_requests=2 * _NUM_CLIENTS)
    async with (
        routing(
            shard, max_step_tokens=256, max_batch_size=32, limits=limits, timeouts=PATIENT
        ) as rig,
        http_over(rig, shard) as port,
    ):
        await all_requests(port, 10, seed=0)
        num_tasks = len(asyncio.all_tasks())
        num_first = _NUM_REQUESTS // 4
        num_stayed = await all_requests(port, num_first, seed=1)
        await at_rest(rig, shard, num_tasks)
        early_mib = resident_mib()
        num_stayed += await all_requests(port, _NUM_REQUESTS - num_first, seed=2)
        await at_rest(rig, shard, num_tasks)
        assert resident_mib() < early_mib * 1.05
        num_left = _NUM_REQUESTS - num_stayed
        assert 0.15 < num_left / _NUM_REQUESTS < 0.25
        metrics = rig.metrics
        assert metrics.request_count.value() == _NUM_REQUESTS + 10
        assert metrics.sequence_ends.value("cancelled") > 100
        assert metrics.preemptions.value() > 0
