"""Shards that fail, die, hang or come back otherwise: what ran goes on, behind a pause."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import grpc
import pytest

from router.engine.batcher import BatcherLimits
from router.engine.launcher import Launcher
from router.request.errors import (
    FailedAlone,
    Unhealthy,
)
from tests.byte_tokenizer import byte_ids
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.rig import (
    PROMPT,
    QUICK,
    RESTLESS,
    asking,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    texts_of,
    until,
)


class RecordingLauncher(Launcher):
    """Starts nothing, and remembers whether it was asked to."""

    def __init__(self) -> None:
        super().__init__(None)
        self.was_asked = False

    def restart_shards(self) -> None:
        self.was_asked = True


@pytest.mark.parametrize("method", ["Prefill", "Decode"])
async def test_a_failed_step_costs_a_pause_and_no_token(method: str) -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        epoch = shard.epoch
        shard.faults.fails.append((method, grpc.StatusCode.INTERNAL, "device lost"))
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=10)))
        assert end_of(events).text == "".join(texts_of(events)) == expected_text(PROMPT, 10)
        assert shard.epoch == epoch + 1
        assert rig.batcher.is_alive
        assert rig.metrics.shard_failures.value() == 1


@pytest.mark.parametrize("method", ["Prefill", "Decode"])
async def test_a_step_that_fails_time_and_again_fails_its_request(method: str) -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        shard.faults.fail_for_good(method, grpc.StatusCode.INTERNAL, "device lost")
        error = error_of(await events_of(rig.batcher.submit(asking(max_new_tokens=10))))
        assert isinstance(error, FailedAlone)
        assert "Prefill: INTERNAL: device lost" in str(error)
        again = await events_of(rig.batcher.submit(asking(max_new_tokens=10)))
        assert end_of(again).text == expected_text(PROMPT, 10)


def _kills(prompt: str) -> Callable[[Sequence[int]], int]:
    """Letters, but for a prompt that no shard survives from its fourth token on."""

    def script(token_ids: Sequence[int]) -> int:
        if token_ids[: len(prompt)] == byte_ids(prompt) and len(token_ids) >= len(prompt) + 3:
            raise ZeroDivisionError("device lost")
        return letters(token_ids)

    return script


async def test_of_many_requests_the_one_that_kills_the_shards_fails_and_no_other() -> None:
    shard = FakeShard(num_blocks=512, script=_kills("killer"))
    async with routing(shard) as rig:
        streams = {
            prompt: rig.batcher.submit(asking(prompt, 12))
            for prompt in ("one", "two", "killer", "three", "four")
        }
        events = {prompt: await events_of(stream) for prompt, stream in streams.items()}
        assert isinstance(error_of(events["killer"]), FailedAlone)
        assert "".join(texts_of(events["killer"])) == expected_text("killer", 3)
        for prompt in events.keys() - {"killer"}:
            assert end_of(events[prompt]).text == expected_text(prompt, 12)
        assert rig.metrics.shard_failures.value() == 3


async def test_a_failure_that_ends_everyone_frees_nobody_s_time_to_come_back() -> None:
    shard = FakeShard()
    limits = replace(RESTLESS, max_concurrent_requests=8, restart_s=0.1)
    async with routing(shard, limits=limits) as rig:
        await asyncio.sleep(2 * RESTLESS.tick_s)
        at_rest = rig.metrics.drain_rate.value()
        streams = [rig.batcher.submit(asking(str(index), 20)) for index in range(8)]
        await shard.stop()
        for stream in streams:
            assert isinstance(error_of(await events_of(stream)), Unhealthy)
        await asyncio.sleep(2 * RESTLESS.tick_s)
        assert 0 < rig.metrics.drain_rate.value() <= at_rest


async def test_what_waits_outlives_a_failed_step() -> None:
    shard = FakeShard(num_blocks=64)
    async with routing(shard, max_batch_size=1) as rig:
        running = rig.batcher.submit(asking("runs", 30))
        await running.take()
        waiting = rig.batcher.submit(asking("waits", 5))
        shard.faults.fails.append(("Decode", grpc.StatusCode.INTERNAL, "device lost"))
        assert end_of(await events_of(running)).text == expected_text("runs", 30)
        assert end_of(await events_of(waiting)).text == expected_text("waits", 5)


async def test_a_hanging_step_is_tried_again_after_its_deadline() -> None:
    shard = FakeShard()
    async with routing(shard, timeouts=replace(QUICK, step_s=1.0)) as rig:
        shard.faults.hangs.add("Decode")
        stream = rig.batcher.submit(asking())
        await until(lambda: rig.metrics.shard_failures.value() == 1)
        shard.faults.hangs.clear()
        assert end_of(await events_of(stream)).text == expected_text(PROMPT, 6)


async def test_shards_that_cannot_be_reset_in_time_are_to_be_started_anew() -> None:
    shard = FakeShard()
    launcher = RecordingLauncher()
    timeouts = replace(QUICK, control_s=0.2)
    async with routing(shard, timeouts=timeouts, launcher=launcher) as rig:
        shard.faults.hangs.add("ClearCache")
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        stream = rig.batcher.submit(asking())
        await until(lambda: launcher.was_asked)
        shard.faults.hangs.clear()
        assert end_of(await events_of(stream)).text == expected_text(PROMPT, 6)


async def test_an_answer_from_before_a_restart_is_not_used() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        first = rig.batcher.submit(asking(max_new_tokens=30))
        await first.take()
        shard.faults.epoch_offset = -1
        await until(lambda: rig.batcher.trouble is not None)
        shard.faults.epoch_offset = 0
        assert end_of(await events_of(first)).text == expected_text(PROMPT, 30)


async def test_while_shards_are_gone_requests_wait_and_health_says_so() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        port = shard.urls[0].rpartition(":")[2]
        running = rig.batcher.submit(asking("runs", 30))
        await running.take()
        await shard.stop()
        await until(lambda: not rig.batcher.is_alive)
        waiting = rig.batcher.submit(asking())
        shard.is_warm = False
        await shard.start(f"127.0.0.1:{port}")
        assert end_of(await events_of(running)).text == expected_text("runs", 30)
        assert end_of(await events_of(waiting)).text == expected_text(PROMPT, 6)
        assert rig.batcher.is_alive
        assert methods(shard).count("Warmup") == 2


async def test_shards_that_come_back_with_another_pool_are_to_be_started_anew() -> None:
    shard = FakeShard(num_blocks=64)
    launcher = RecordingLauncher()
    async with routing(shard, launcher=launcher) as rig:
        shard.is_warm = False
        shard.num_blocks = 32
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        stream = rig.batcher.submit(asking())
        await until(lambda: launcher.was_asked)
        shard.is_warm = False
        shard.num_blocks = 64
        assert end_of(await events_of(stream)).text == expected_text(PROMPT, 6)


async def test_a_shard_without_a_sign_of_life_is_not_waited_for() -> None:
    shard = FakeShard(num_blocks=256)
    timeouts = replace(QUICK, step_s=60.0, health_s=0.2)
    limits = replace(RESTLESS, health_s=0.1)
    launcher = RecordingLauncher()
    async with routing(shard, timeouts=timeouts, limits=limits, launcher=launcher) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=200))
        await stream.take()
        shard.faults.hangs |= {"Health", "Decode", "Prefill"}
        await until(lambda: launcher.was_asked)
        shard.faults.hangs.clear()
        assert end_of(await events_of(stream)).text == expected_text(PROMPT, 200)


async def test_a_long_step_of_a_shard_that_lives_is_waited_for() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.5
    timeouts = replace(QUICK, health_s=0.2)
    limits = replace(RESTLESS, health_s=0.1)
    async with routing(shard, timeouts=timeouts, limits=limits) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=2)))
        assert end_of(events).text == expected_text(PROMPT, 2)
        assert rig.metrics.shard_failures.value() == 0


async def test_an_idle_router_notices_that_a_shard_is_gone() -> None:
    shard = FakeShard()
    limits = BatcherLimits(health_s=0.05, retry_s=0.05)
    async with routing(shard, limits=limits) as rig:
        await shard.stop()
        await until(lambda: not rig.batcher.is_alive)
