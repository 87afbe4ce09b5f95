"""What goes wrong in a row, in a step, in a shard or in the router, and whom it costs what."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import grpc
import pytest

from proto import generate_pb2 as pb
from proto.contract import LogprobParams
from router.engine.batcher import BatcherLimits
from router.request.errors import (
    Displaced,
    Draining,
    FailedAlone,
    GenerationFailed,
    RowFailed,
    ShardFailed,
)
from router.scheduler.scheduler import Scheduler
from router.shards.shards import Shards
from router.text.detokenizer import Detokenizer
from tests.fakes import FakeShard
from tests.router.rig import (
    PROMPT,
    asking,
    byte_tokenizer,
    end_of,
    error_of,
    events_of,
    expected_text,
    routing,
    settled,
)


async def test_a_failed_row_fails_alone() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        good = rig.batcher.submit(asking("good", 20))
        bad = rig.batcher.submit(asking("bad", 20))
        await bad.take()
        shard.faults.row_errors[bad.request_id] = "NaN logits"
        error = error_of(await events_of(bad))
        assert isinstance(error, RowFailed)
        assert "NaN logits" in str(error)
        assert end_of(await events_of(good)).text == expected_text("good", 20)


def _double(answer: pb.StepResponse) -> None:
    answer.generations.extend(answer.generations[:1])


def _stranger(answer: pb.StepResponse) -> None:
    answer.generations[0].request_id = 999


def _silence(answer: pb.StepResponse) -> None:
    del answer.generations[:]


@pytest.mark.parametrize("spoil", [_double, _stranger, _silence])
async def test_an_answer_that_contradicts_the_scheduler_is_a_failure_of_the_shard(
    spoil: Callable[[pb.StepResponse], None],
) -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        shard.faults.spoil = spoil
        assert isinstance(error_of(await events_of(rig.batcher.submit(asking()))), FailedAlone)
        shard.faults.spoil = None
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


async def test_an_idle_router_checks_its_scheduler_once() -> None:
    class Books(Scheduler):
        num_checks = 0

        def check_invariants(self) -> None:
            self.num_checks += 1
            super().check_invariants()

    limits = BatcherLimits(health_s=0.02)
    async with routing(FakeShard(), limits=limits, scheduler_class=Books) as rig:
        assert isinstance(rig.scheduler, Books)
        await events_of(rig.batcher.submit(asking()))
        await asyncio.sleep(0.2)
        assert rig.scheduler.num_checks == 1


class BreakingClock:
    """Time, but for one moment."""

    breaks = False

    def __call__(self) -> float:
        if self.breaks:
            self.breaks = False
            raise ZeroDivisionError("a bug")
        return monotonic()


async def test_a_bug_in_a_step_ends_all_loudly_and_the_router_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = BreakingClock()
    async with routing(FakeShard(), clock=clock) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=100))
        await stream.take()
        clock.breaks = True
        error = error_of(await events_of(stream))
        assert isinstance(error, GenerationFailed)
        assert "ZeroDivisionError: a bug" in str(error)
        assert "a step failed by a bug" in caplog.text
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


async def test_a_bug_in_the_last_words_of_an_expired_request_costs_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flush(self: Detokenizer) -> str:
        raise ZeroDivisionError("a bug")

    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.05
    async with routing(shard, limits=BatcherLimits(tick_s=0.01)) as rig:
        other = rig.batcher.submit(asking("good", 20))
        monkeypatch.setattr(Detokenizer, "flush", flush)
        stream = rig.batcher.submit(asking(deadline_s=monotonic() + 0.1))
        error = error_of(await events_of(stream))
        monkeypatch.undo()
        assert "ZeroDivisionError: a bug" in str(error)
        assert end_of(await events_of(other)).text == expected_text("good", 20)


async def test_an_inconsistent_scheduler_stops_the_router_and_still_every_stream_ends() -> None:
    class BrokenBooks(Scheduler):
        is_broken = True

        def check_invariants(self) -> None:
            assert not self.is_broken, "a block is lost"

    clock = BreakingClock()
    async with routing(FakeShard(), clock=clock, scheduler_class=BrokenBooks) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=100))
        await stream.take()
        clock.breaks = True
        assert isinstance(error_of(await events_of(stream)), GenerationFailed)
        with pytest.raises(AssertionError, match="a block is lost"):
            await rig.running
        with pytest.raises(Draining):
            rig.batcher.submit(asking())
        BrokenBooks.is_broken = False
        rig.running = asyncio.ensure_future(asyncio.sleep(0))


async def test_a_shard_that_scores_too_little_of_a_prompt_fails() -> None:
    def forget(answer: pb.StepResponse) -> None:
        for generation in answer.generations:
            del generation.prompt_logprobs[:1]

    shard = FakeShard()
    shard.faults.spoil = forget
    async with routing(shard) as rig:
        request = asking(logprobs=LogprobParams(prompt=True))
        error = error_of(await events_of(rig.batcher.submit(request)))
        assert "7 prompt log-probabilities came instead of 8" in str(error)
        assert byte_tokenizer().vocab_size == shard.vocab_size


async def test_a_displaced_router_fails_what_it_has_and_ends() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=400))
        await stream.take()
        shard.epoch += 1000
        assert isinstance(error_of(await events_of(stream)), ShardFailed)
        with pytest.raises(Displaced, match="another router has taken over"):
            await asyncio.wait_for(rig.running, 30)
        rig.running = asyncio.ensure_future(asyncio.sleep(0))


async def test_a_bug_while_beginning_anew_is_not_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_tries = 0

    async def reset(shards: Shards) -> None:
        nonlocal num_tries
        num_tries += 1
        raise ZeroDivisionError("a bug")

    shard = FakeShard()
    limits = BatcherLimits(retry_s=0.2)
    async with routing(shard, limits=limits) as rig:
        monkeypatch.setattr(Shards, "reset", reset)
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "broken"))
        stream = rig.batcher.submit(asking())
        await asyncio.sleep(0.5)
        assert 2 <= num_tries <= 4
        monkeypatch.undo()
        assert end_of(await events_of(stream)).text == expected_text(PROMPT, 6)


async def test_a_logprob_that_is_not_a_number_costs_its_own_request_alone() -> None:
    shard = FakeShard(num_blocks=256)

    def spoil(answer: pb.StepResponse) -> None:
        for generation in answer.generations:
            if generation.request_id == 1 and not generation.finish_reason:
                generation.tokens[0].logprob = float("nan")

    async with routing(shard) as rig:
        first = rig.batcher.submit(asking(max_new_tokens=40))
        second = rig.batcher.submit(asking("Long ago", max_new_tokens=20))
        await second.take()
        shard.faults.spoil = spoil
        error = error_of(await events_of(first))
        assert isinstance(error, RowFailed)
        assert "is not a number" in str(error)
        assert end_of(await events_of(second)).text == expected_text("Long ago", 20)
        await settled(rig)
        assert shard.num_held == 0, "the shard still holds the row"
        assert rig.metrics.sequence_ends.value("row_failed") == 1


async def test_a_line_about_a_request_carries_its_id(caplog: pytest.LogCaptureFixture) -> None:
    shard = FakeShard()
    shard.faults.row_errors[1] = "NaN logits"
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(replace(asking(), trace_id="abc-1")))
        assert "request_id=abc-1 failed alone: NaN logits" in caplog.text
