"""The batcher over fake shards.

What a request comes back as, alone and among others; readers that are slow, leave or have a
deadline; what goes wrong in a row, a step, a shard or the router, and whom it costs what.
"""

import asyncio
import gc
import json
import random
import re
import signal
import sys
import time
from collections import UserList
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest

from proto import generate_pb2 as pb
from proto.contract import FinishReason, Generation, LogprobParams, SamplingParams
from router.engine.batcher import MANY_UNREAD, BatcherLimits, Progress, Wait, failed_row
from router.engine.launcher import Launcher
from router.engine.stream import Stream
from router.engine.validation import Limits, Validation
from router.http.app import Services, create_app
from router.http.server.listen import HttpServer, bind
from router.http.server_info import ServerInfo
from router.request.errors import (
    Cancelled,
    ConstraintRefused,
    Displaced,
    Draining,
    FailedAlone,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RowFailed,
    ServerStopped,
    ShardFailed,
    Unhealthy,
)
from router.request.request import Failed, Finished, PromptScored, TokenGenerated
from router.scheduler.scheduler import Scheduler
from router.shards.shards import Shards, ShardTimeouts
from router.text.chat_template import ChatTemplate
from router.text.detokenizer import Detokenizer
from tests.byte_tokenizer import EOS_ID, byte_ids, save_byte_tokenizer
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.process import PATIENCE_S, ask, serving_http, status_of, stream
from tests.router.rig import (
    ANY_TEXT,
    PATIENT,
    PROMPT,
    QUICK,
    RESTLESS,
    Rig,
    adapter_folder,
    an_hour_ahead,
    asking,
    byte_tokenizer,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    says,
    settled,
    texts_of,
    until,
)


async def test_a_request_comes_back_as_its_tokens_and_one_end() -> None:
    async with routing(FakeShard()) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=5)))
        end = end_of(events)
        assert "".join(texts_of(events)) == end.text == expected_text(PROMPT, 5)
        assert end.reason is FinishReason.LENGTH
        assert (end.num_prompt_tokens, end.num_generated_tokens) == (len(PROMPT), 5)
        assert end.seed is None
        assert end.timings is not None
        assert 0 <= end.timings.queue_s <= end.timings.time_to_first_token_s
        assert end.timings.time_to_first_token_s <= end.timings.total_s


async def test_a_model_that_says_its_end_is_believed() -> None:
    async with routing(says("Hello")) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=20)))
        end = end_of(events)
        assert (end.text, end.reason) == ("Hello", FinishReason.EOS)
        assert end.num_generated_tokens == 6
        last = events[-2]
        assert isinstance(last, TokenGenerated)
        assert (last.token.token_id, last.token.text, last.text) == (EOS_ID, "</s>", "")
        assert last.token.special


async def test_special_tokens_are_shown_when_asked_for() -> None:
    async with routing(says("Hi")) as rig:
        request = asking(max_new_tokens=20, skip_special_tokens=False)
        assert end_of(await events_of(rig.batcher.submit(request))).text == "Hi</s>"


async def test_a_character_of_several_tokens_appears_at_once() -> None:
    async with routing(says("aß→c")) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=20)))
        assert texts_of(events) == ["a", "", "ß", "", "", "→", "c", ""]
        assert end_of(events).text == "aß→c"


async def test_half_a_character_at_the_end_is_said_in_the_tail() -> None:
    async with routing(says("a→")) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=2)))
        assert (end_of(events).tail, end_of(events).text) == ("\ufffd", "a\ufffd")


async def test_the_prompt_is_scored_before_the_first_token_also_in_chunks() -> None:
    async with routing(FakeShard(), max_step_tokens=4) as rig:
        request = asking("abcdefghij", 2, logprobs=LogprobParams(num_top_tokens=2, prompt=True))
        events = await events_of(rig.batcher.submit(request))
        scored = events[0]
        assert isinstance(scored, PromptScored)
        assert "".join(token.text for token in scored.tokens) == "abcdefghij"
        assert scored.tokens[0].logprob is None
        assert all(token.logprob is not None for token in scored.tokens[1:])
        first = events[1]
        assert isinstance(first, TokenGenerated)
        assert len(first.top_tokens) == 2
        assert first.top_tokens[0].token_id == first.token.token_id


async def test_many_requests_together_each_get_their_own_text() -> None:
    prompts = [f"{index} stories of {'x' * (index % 7)}" for index in range(30)]
    async with routing(FakeShard(num_blocks=256)) as rig:
        rig_limit = [asking(prompt, 3 + len(prompt) % 5) for prompt in prompts]
        streams = [rig.batcher.submit(request) for request in rig_limit]
        for prompt, request, stream in zip(prompts, rig_limit, streams, strict=True):
            end = end_of(await events_of(stream))
            assert end.text == expected_text(prompt, request.stop.max_new_tokens)
        await settled(rig)
        assert rig.scheduler.stats().num_blocks_used == 0


async def test_a_pool_too_small_for_all_preempts_and_loses_nothing() -> None:
    prompts = [f"story {index}" for index in range(6)]
    async with routing(FakeShard(num_blocks=16)) as rig:
        streams = [rig.batcher.submit(asking(prompt, 24)) for prompt in prompts]
        for prompt, stream in zip(prompts, streams, strict=True):
            assert end_of(await events_of(stream)).text == expected_text(prompt, 24)
        assert rig.scheduler.stats().num_preemptions > 0
        assert rig.metrics.preemptions.value() == rig.scheduler.stats().num_preemptions


async def test_a_prompt_seen_before_hits_the_prefix_cache() -> None:
    prompt = "a prompt of some length"
    async with routing(FakeShard()) as rig:
        first = end_of(await events_of(rig.batcher.submit(asking(prompt))))
        second = end_of(await events_of(rig.batcher.submit(asking(prompt))))
        assert first.num_cached_tokens == 0
        assert second.num_cached_tokens >= 16
        assert first.text == second.text
        assert rig.metrics.prefix_hit_tokens.value() == second.num_cached_tokens


async def test_two_ranks_serve_as_one() -> None:
    ranks = [FakeShard(rank=rank, world_size=2) for rank in range(2)]
    async with routing(*ranks) as rig:
        streams = [rig.batcher.submit(asking(f"{index} tales", 8)) for index in range(4)]
        for index, stream in enumerate(streams):
            assert end_of(await events_of(stream)).text == expected_text(f"{index} tales", 8)


async def test_beyond_the_limit_requests_are_refused_until_one_ends() -> None:
    limits = BatcherLimits(max_concurrent_requests=2, retry_s=0.05)
    async with routing(FakeShard(), limits=limits) as rig:
        streams = [rig.batcher.submit(asking()) for _ in range(2)]
        with pytest.raises(Overloaded, match="2 requests are waiting or running; at most 2 may"):
            rig.batcher.submit(asking())
        for stream in streams:
            await events_of(stream)
        await events_of(rig.batcher.submit(asking()))
        assert rig.metrics.rejected.value("overloaded") == 1


async def test_a_request_that_could_never_run_is_refused_with_the_numbers() -> None:
    async with routing(FakeShard(num_blocks=4)) as rig:
        with pytest.raises(InvalidRequest, match="the pool has 4"):
            rig.batcher.submit(asking(max_new_tokens=100))
        assert rig.batcher.num_streams == 0


async def test_a_seed_is_reported_only_when_it_mattered() -> None:
    async with routing(FakeShard()) as rig:
        drawn = asking(sampling=SamplingParams(do_sample=True, seed=42))
        assert end_of(await events_of(rig.batcher.submit(drawn))).seed == 42


async def test_a_slow_reader_finds_everything_in_one_burst() -> None:
    async with routing(FakeShard()) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=6))
        await settled(rig)
        burst = await stream.take()
        assert len(burst) == 7
        assert await stream.take() == ()


async def test_alternatives_without_any_probability_are_left_out() -> None:
    def spoil(answer: pb.StepResponse) -> None:
        answer.generations[0].tokens[0].top_tokens[1].logprob = float("-inf")

    shard = FakeShard()
    shard.faults.spoil = spoil
    async with routing(shard) as rig:
        request = asking(max_new_tokens=2, logprobs=LogprobParams(num_top_tokens=3))
        events = await events_of(rig.batcher.submit(request))
        tokens = [event for event in events if isinstance(event, TokenGenerated)]
        assert [len(event.top_tokens) for event in tokens] == [2, 2]


LONG = 100
FEW_BLOCKS = 12


async def until_paused(stream: Stream) -> None:
    """Until it has as much to read as it may, and no more comes."""
    async with asyncio.timeout(30):
        while stream.num_unread < MANY_UNREAD:
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)


async def test_what_nobody_reads_is_not_made() -> None:
    async with routing(FakeShard()) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        # One more was under way.
        assert unread.num_unread == unread.num_generated == MANY_UNREAD + 1


async def test_a_slow_reader_gets_the_same_text_as_a_quick_one() -> None:
    async with routing(FakeShard()) as rig:
        slow = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(slow)
        text = end_of(await events_of(slow)).text
        quick = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        assert end_of(await events_of(quick)).text == text
        assert len(text) == LONG


async def test_others_go_on_meanwhile() -> None:
    async with routing(FakeShard()) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        for _ in range(3):
            end = end_of(await events_of(rig.batcher.submit(asking(max_new_tokens=20))))
            assert end.num_generated_tokens > 0
        assert unread.num_generated == MANY_UNREAD + 1
        assert rig.metrics.paused_sequences.value() == 1


async def test_a_paused_sequence_gives_its_blocks_to_an_older_one_and_comes_back() -> None:
    shard = FakeShard(num_blocks=FEW_BLOCKS, block_size=16)
    async with routing(shard) as rig:
        older = rig.batcher.submit(asking("older", max_new_tokens=LONG, ignore_eos=True))
        younger = rig.batcher.submit(asking("young", max_new_tokens=LONG, ignore_eos=True))
        reading = asyncio.ensure_future(events_of(older))
        await until_paused(younger)
        assert end_of(await reading).num_generated_tokens == LONG
        assert end_of(await events_of(younger)).num_generated_tokens == LONG


async def test_one_that_leaves_while_it_is_paused_leaves_nothing() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        rig.batcher.cancel(unread)
        await settled(rig)
        assert shard.num_held == 0
        assert rig.scheduler.stats().num_blocks_used == 0


async def test_a_deadline_passes_while_it_is_paused() -> None:
    ahead_s = 0.0
    async with routing(FakeShard(), clock=lambda: monotonic() + ahead_s) as rig:
        unread = rig.batcher.submit(
            asking(max_new_tokens=LONG, ignore_eos=True, deadline_s=monotonic() + 60.0)
        )
        await until_paused(unread)
        ahead_s = 60.0
        await until(lambda: unread.end is not None)
        assert isinstance(unread.end, Finished)
        assert unread.end.num_generated_tokens == MANY_UNREAD + 1


async def test_a_drain_waits_for_it_no_longer_than_it_says() -> None:
    async with routing(FakeShard()) as rig:
        unread = rig.batcher.submit(asking(max_new_tokens=LONG, ignore_eos=True))
        await until_paused(unread)
        await asyncio.wait_for(rig.batcher.drain(0.05), 30)
        assert isinstance(unread.end, Failed)


async def test_a_reader_that_leaves_frees_its_row_at_once() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        leaver = rig.batcher.submit(asking("leave", 500))
        stayer = rig.batcher.submit(asking("stay", 40))
        await leaver.take()
        rig.batcher.cancel(leaver)
        assert isinstance(error_of(await events_of(leaver)), Cancelled)
        assert end_of(await events_of(stayer)).text == expected_text("stay", 40)
        await settled(rig)
        assert shard.num_held == 0
        assert rig.scheduler.stats().num_blocks_used == 0
        assert "FilterBatch" not in methods(shard), "it left with a step"


async def test_readers_that_all_leave_clear_the_batch_and_the_next_begins_anew() -> None:
    shard = FakeShard(num_blocks=256)
    async with routing(shard) as rig:
        streams = [rig.batcher.submit(asking(f"{index}", 500)) for index in range(3)]
        for stream in streams:
            await stream.take()
        for stream in streams:
            rig.batcher.cancel(stream)
        await settled(rig)
        assert shard.num_held == 0
        assert end_of(await events_of(rig.batcher.submit(asking()))).reason is FinishReason.LENGTH


async def test_leaving_before_the_first_step_costs_nothing() -> None:
    async with routing(FakeShard()) as rig:
        stream = rig.batcher.submit(asking())
        rig.batcher.cancel(stream)
        rig.batcher.cancel(stream)
        assert isinstance(error_of(await events_of(stream)), Cancelled)
        await settled(rig)


async def test_a_deadline_ends_with_what_there_is() -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.01
    async with routing(shard, clock=an_hour_ahead(shard)) as rig:
        stream = rig.batcher.submit(asking("x", 900, deadline_s=monotonic() + 60.0))
        end = end_of(await events_of(stream))
        assert end.reason is FinishReason.DEADLINE
        assert 1 <= end.num_generated_tokens < 900
        assert end.text == expected_text("x", end.num_generated_tokens)
        await settled(rig)


async def test_a_deadline_passes_while_a_step_hangs() -> None:
    shard = FakeShard()
    patient = ShardTimeouts(step_s=60.0, control_s=0.5)
    async with routing(shard, timeouts=patient) as rig:
        shard.faults.hangs.add("Prefill")
        began_s = monotonic()
        stream = rig.batcher.submit(asking(deadline_s=began_s + 0.1))
        assert end_of(await events_of(stream)).reason is FinishReason.DEADLINE
        assert monotonic() - began_s < 20.0
        rig.running.cancel()
        await asyncio.gather(rig.running, return_exceptions=True)
        rig.running = asyncio.ensure_future(asyncio.sleep(0))


async def test_draining_lets_what_runs_finish_and_refuses_the_rest() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.005
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=10))
        drained = asyncio.ensure_future(rig.batcher.drain(5.0))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            rig.batcher.submit(asking())
        assert end_of(await events_of(stream)).text == expected_text(PROMPT, 10)
        await drained
        await asyncio.wait_for(rig.running, 30)


async def test_draining_for_too_long_fails_what_is_left() -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.01
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=900))
        waiting = rig.batcher.submit(asking(max_new_tokens=900))
        await rig.batcher.drain(0.1)
        for left in (stream, waiting):
            error = error_of(await events_of(left))
            assert isinstance(error, ServerStopped)
            assert "0.1 s" in str(error)
        await asyncio.wait_for(rig.running, 30)


async def test_when_the_task_is_cancelled_every_stream_still_gets_its_end() -> None:
    async with routing(FakeShard(num_blocks=256)) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=900))
        await stream.take()
        rig.running.cancel()
        assert isinstance(error_of(await events_of(stream)), ServerStopped)
        await asyncio.gather(rig.running, return_exceptions=True)
        with pytest.raises(Draining):
            rig.batcher.submit(asking())
        rig.running = asyncio.ensure_future(asyncio.sleep(0))


STEPS = ("Prefill", "Decode")


def num_steps(shard: FakeShard) -> int:
    return sum(method in STEPS for method in methods(shard))


async def steps_until_free(rig: Rig, shard: FakeShard, stream: Stream) -> int:
    """Cancels, and counts the steps that begin before nothing of it is anywhere."""
    histogram = rig.metrics.cancel_to_free
    before = num_steps(shard)
    num_gone = histogram.count()
    num_streams = rig.batcher.num_streams
    rig.batcher.cancel(stream)
    assert rig.batcher.num_streams == num_streams - 1
    async with asyncio.timeout(30):
        while histogram.count() == num_gone:
            await asyncio.sleep(0)
    assert rig.scheduler.has_left(stream.request_id)
    assert stream.request_id not in (shard.rows or {})
    return num_steps(shard) - before


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_wherever_a_client_leaves_all_is_back_with_the_third_step(num_ranks: int) -> None:
    chance = random.Random(11)
    ranks = [
        FakeShard(rank=rank, world_size=num_ranks, num_blocks=2048) for rank in range(num_ranks)
    ]
    # Chunks of prompts, decodes, waiting ones and readers that never looked are all among them.
    async with routing(*ranks, max_step_tokens=16, max_batch_size=6) as rig:
        stayer = rig.batcher.submit(asking("stay", 4000))
        for index in range(60):
            prompt = f"{index} " + "x" * chance.randrange(60)
            leavers = [rig.batcher.submit(asking(prompt, 500)) for _ in range(3)]
            for leaver in leavers:
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                assert await steps_until_free(rig, ranks[0], leaver) <= 4
        assert stayer.end is None
        rig.batcher.cancel(stayer)
        await settled(rig)
        assert rig.scheduler.stats().num_blocks_used == 0
        assert rig.metrics.cancel_to_free.count() == 181


async def test_a_client_that_leaves_before_its_first_step_is_gone_at_once() -> None:
    async with routing(FakeShard()) as rig:
        rig.batcher.cancel(rig.batcher.submit(asking()))
        assert rig.metrics.cancel_to_free.count() == 1
        await settled(rig)


async def test_a_client_that_leaves_a_failing_step_is_gone_with_it() -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.05
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=500))
        await stream.take()
        shard.faults.fails.append(("Decode", grpc.StatusCode.INTERNAL, "device lost"))
        assert await steps_until_free(rig, shard, stream) <= 2


async def test_its_slot_is_free_for_the_next_at_once() -> None:
    limits = BatcherLimits(max_concurrent_requests=1)
    async with routing(FakeShard(num_blocks=256), limits=limits) as rig:
        for index in range(5):
            stream = rig.batcher.submit(asking(f"{index}", 500))
            await stream.take()
            assert rig.batcher.num_streams == 1
            rig.batcher.cancel(stream)
            assert rig.batcher.num_streams == 0


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
        books = rig.scheduler
        await events_of(rig.batcher.submit(asking()))
        await until(lambda: books.num_checks > 0)
        await asyncio.sleep(0.2)
        assert books.num_checks == 1


# Nobody but the turns reads the clock.
NO_TICK = replace(RESTLESS, tick_s=60.0, health_s=60.0)


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
    async with routing(FakeShard(), clock=clock, limits=NO_TICK) as rig:
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
        other = rig.batcher.submit(asking("good", 8))
        monkeypatch.setattr(Detokenizer, "flush", flush)
        stream = rig.batcher.submit(asking(deadline_s=monotonic() + 0.1))
        error = error_of(await events_of(stream))
        monkeypatch.undo()
        assert "ZeroDivisionError: a bug" in str(error)
        assert end_of(await events_of(other)).text == expected_text("good", 8)


async def test_an_inconsistent_scheduler_stops_the_router_and_still_every_stream_ends() -> None:
    class BrokenBooks(Scheduler):
        is_broken = True

        def check_invariants(self) -> None:
            assert not self.is_broken, "a block is lost"

    clock = BreakingClock()
    async with routing(
        FakeShard(), clock=clock, limits=NO_TICK, scheduler_class=BrokenBooks
    ) as rig:
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
    tries_s: list[float] = []

    async def reset(shards: Shards) -> None:
        tries_s.append(monotonic())
        raise ZeroDivisionError("a bug")

    shard = FakeShard()
    limits = BatcherLimits(retry_s=0.2)
    async with routing(shard, limits=limits) as rig:
        monkeypatch.setattr(Shards, "reset", reset)
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "broken"))
        stream = rig.batcher.submit(asking())
        await until(lambda: len(tries_s) == 3)
        monkeypatch.undo()
        assert min(later - earlier for earlier, later in pairwise(tries_s)) >= limits.retry_s
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


@pytest.mark.parametrize(
    ("output_ids", "reason"), [((), "too_complex"), ((5,), "broken")], ids=["new", "gone on with"]
)
def test_a_constraint_that_fails_on_the_way_is_refused_and_no_fault_of_the_server(
    output_ids: tuple[int, ...], reason: str
) -> None:
    stream = Stream(1, replace(asking(), output_ids=output_ids), byte_tokenizer(), 0.0)
    error = failed_row(stream, Generation(1, error="too slow", is_refused=True), "too slow")
    assert isinstance(error, ConstraintRefused)
    assert (error.reason, str(error)) == (reason, "too slow")


async def test_a_line_about_a_request_carries_its_id(caplog: pytest.LogCaptureFixture) -> None:
    shard = FakeShard()
    shard.faults.row_errors[1] = "NaN logits"
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(replace(asking(), trace_id="abc-1")))
        assert "request_id=abc-1 failed alone: NaN logits" in caplog.text


def test_with_nothing_to_do_all_is_well() -> None:
    progress = Progress(4.0, 2.0, 300.0)
    assert progress.trouble(1e6) is None
    assert progress.is_answering(1e6)


def test_a_step_that_takes_too_long_is_trouble_but_no_reason_to_doubt_the_shards() -> None:
    progress = Progress(4.0, 2.0, 300.0)
    progress.start_wait(Wait.STEP, 10.0)
    assert progress.trouble(14.0) is None
    assert progress.trouble(17.2) == "a step has been under way for 7.2 s; 4 s is usual"
    assert progress.is_answering(17.2)
    progress.end_wait(Wait.STEP)
    assert progress.trouble(17.3) is None


def test_a_shard_without_a_sign_of_life_is_doubted_soon() -> None:
    progress = Progress(4.0, 2.0, 300.0)
    progress.start_wait(Wait.CHECK, 10.0)
    assert progress.is_answering(12.0)
    assert not progress.is_answering(12.1)
    assert progress.trouble(12.1) is not None
    progress.end_wait(Wait.CHECK)
    assert progress.is_answering(12.2)


def test_broken_shards_are_no_trouble_before_they_should_be_back() -> None:
    progress = Progress(4.0, 2.0, 300.0)
    progress.mark_broken(10.0)
    progress.mark_broken(12.0)
    assert progress.is_broken
    assert progress.broken_s(13.0) == 3.0
    assert not progress.is_answering(13.0)
    assert progress.trouble(310.0) is None
    assert progress.trouble(310.5) == "the shards failed 300.5 s ago and have not begun anew"
    progress.mark_recovered()
    assert progress.trouble(310.5) is None
    assert progress.is_answering(310.5)


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
        await until(lambda: rig.metrics.drain_rate.value() > 0)
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
    async with routing(shard, timeouts=replace(QUICK, step_s=0.4)) as rig:
        shard.faults.hangs.add("Decode")
        stream = rig.batcher.submit(asking())
        await until(lambda: rig.metrics.shard_failures.value() >= 1)
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
        await until(lambda: not rig.batcher.is_alive)
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
    # More than a busy machine stands still for, and less than the step takes.
    timeouts = replace(QUICK, health_s=1.0)
    shard.faults.delay_s = 1.5
    limits = replace(RESTLESS, health_s=0.1)
    async with routing(shard, timeouts=timeouts, limits=limits) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=1)))
        assert methods(shard).count("Health") > 1
        assert end_of(events).text == expected_text(PROMPT, 1)
        assert rig.metrics.shard_failures.value() == 0


async def test_an_idle_router_notices_that_a_shard_is_gone() -> None:
    shard = FakeShard()
    limits = BatcherLimits(health_s=0.05, retry_s=0.05)
    async with routing(shard, limits=limits) as rig:
        await shard.stop()
        await until(lambda: not rig.batcher.is_alive)


# A router that soon gives failed shards up.
HOPELESS = BatcherLimits(health_s=0.02, retry_s=0.05, restart_s=0.1)


async def until_refused(rig: Rig) -> Unhealthy:
    async with asyncio.timeout(30):
        while True:
            try:
                events = await events_of(rig.batcher.submit(asking()))
            except Unhealthy as error:
                return error
            assert isinstance(error_of(events), Unhealthy)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def gone(shard: FakeShard, limits: BatcherLimits) -> AsyncIterator[tuple[Rig, str]]:
    """A router whose shard has just been found to be gone, and where it was."""
    async with routing(shard, limits=limits) as rig:
        address = f"127.0.0.1:{shard.urls[0].rpartition(':')[2]}"
        await shard.stop()
        await until(lambda: not rig.batcher.is_alive)
        yield rig, address


async def test_a_request_that_recovery_may_serve_is_taken_and_served() -> None:
    shard = FakeShard()
    async with gone(shard, BatcherLimits(health_s=0.02, retry_s=0.05)) as (rig, address):
        await asyncio.sleep(0.2)  # several attempts to begin anew are over
        assert not rig.batcher.is_alive
        waiting = rig.batcher.submit(asking())
        await shard.start(address)
        assert end_of(await events_of(waiting)).text == expected_text(PROMPT, 6)


async def test_after_attempts_in_vain_requests_are_refused_at_the_door() -> None:
    async with gone(FakeShard(), HOPELESS) as (
        rig,
        _,
    ):
        error = await until_refused(rig)
        assert "the shards have not answered for" in str(error)
        assert error.retry_after_s == 1.0
        assert rig.batcher.num_streams == 0
        assert rig.metrics.rejected.value("unhealthy") == 1


async def test_once_the_shards_are_back_nobody_is_refused() -> None:
    shard = FakeShard()
    async with gone(shard, HOPELESS) as (
        rig,
        address,
    ):
        await until_refused(rig)
        await shard.start(address)
        await until(lambda: rig.batcher.is_alive)
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


async def test_a_deadline_passes_while_the_shards_do_not_begin_anew() -> None:
    shard = FakeShard()
    async with routing(shard, timeouts=replace(QUICK, control_s=0.3)) as rig:
        shard.faults.hangs.add("ClearCache")
        shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        waiting = rig.batcher.submit(asking(deadline_s=monotonic() + 0.05))
        end = end_of(await events_of(waiting))
        assert (end.reason.value, end.text) == ("deadline", "")
        shard.faults.hangs.clear()


@pytest.mark.parametrize("num_refused", [1, 3])
async def test_every_refusal_is_counted_once(num_refused: int) -> None:
    async with gone(FakeShard(), HOPELESS) as (
        rig,
        _,
    ):
        await until_refused(rig)
        for _ in range(num_refused):
            with pytest.raises(Unhealthy):
                await rig.infer.complete_all([asking("a"), asking("b")])
        assert rig.metrics.rejected.value("unhealthy") == 1 + num_refused


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


async def kill_shard(shard: FakeShard) -> None:
    """A new process takes its place after a while, with nothing of the old one but its address."""
    address = f"127.0.0.1:{shard.urls[0].rpartition(':')[2]}"
    await shard.stop()
    shard.restart()
    await asyncio.sleep(0.05)
    await shard.start(address)


async def hang_shard(shard: FakeShard) -> None:
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


FAULTS = (
    kill_shard,
    hang_shard,
    fail_a_call,
    double_an_answer,
    lose_a_token,
    answer_late,
    delay_calls,
)


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
    """One of the streams: most are read to the end, some leave; some are of an adapter."""
    await asyncio.sleep(dice.uniform(0.0, 2.0))
    prompt = f"story {index}"
    num_tokens = dice.randint(1, 60)
    request = asking(
        prompt,
        num_tokens,
        logprobs=LogprobParams(prompt=index % 5 == 1),
        constraint=ANY_TEXT if index % 3 == 1 else None,
        adapter_id=index % 4 or None,
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
    with_adapter = index % 4 > 0
    assert end_of(events).text == expected_text(prompt, num_tokens, with_adapter=with_adapter)
    scored = [event for event in events if isinstance(event, PromptScored)]
    assert [len(each.tokens) for each in scored] == [len(prompt)] * (index % 5 == 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))]
)
async def test_streams_are_the_same_whatever_becomes_of_their_shard(
    seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    shard = FakeShard(num_blocks=200, max_loras=3)
    shard.faults.delay_s = 0.002
    router = routing(shard, limits=LIMITS, timeouts=TIMEOUTS, max_batch_size=MAX_BATCH_SIZE)
    async with router as rig:
        for name in ("one", "two", "three"):
            await rig.adapters.load(name, adapter_folder(tmp_path, name))
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


_SHARD = """
import asyncio, sys
from tests.fakes import FakeShard

async def main():
    shard = FakeShard(num_blocks=4096, checks_blocks=False)
    shard.faults.delay_s = 0.02
    await shard.start(f"unix:{sys.argv[1]}")
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
# What the probes promise with their defaults.
SHOWS_WITHIN_S = 5.0


@asynccontextmanager
async def shard_process(socket: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A fake shard in a process of its own, which can be stopped."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SHARD, str(socket), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"listening\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def seconds_until(port: int, path: str, status: int) -> float:
    """How long it takes until a probe says so."""
    began_s = monotonic()
    while await status_of(port, "GET", path) != status:
        assert monotonic() - began_s < PATIENCE_S, f"{path} is not {status}"
        await asyncio.sleep(0.05)
    return monotonic() - began_s


@pytest.mark.slow
@pytest.mark.nightly
async def test_a_stopped_process_shows_within_five_seconds(
    tmp_path: Path,
) -> None:
    tokenizer = save_byte_tokenizer(tmp_path / "tokenizer")
    async with (
        shard_process(tmp_path / "shard-0") as shard,
        serving_http(str(tmp_path / "shard-0"), tokenizer) as router,
    ):
        shard.send_signal(signal.SIGSTOP)
        assert await seconds_until(router.port, "/health/ready", 503) < SHOWS_WITHIN_S
        assert await status_of(router.port, "GET", "/health/progress") == 503
        assert await status_of(router.port, "GET", "/health/live") == 200
        shard.send_signal(signal.SIGCONT)
        assert await seconds_until(router.port, "/health/ready", 200) < SHOWS_WITHIN_S

        running = await stream(router.port, "Once", 10_000)
        await running.until(b"data:")
        shard.send_signal(signal.SIGSTOP)
        assert await seconds_until(router.port, "/health/progress", 503) < SHOWS_WITHIN_S
        probe = await ask(router.port, "GET", "/health/progress")
        body = await asyncio.wait_for(probe.reader.read(), PATIENCE_S)
        probe.writer.close()
        assert b"has been under way for" in body
        assert await status_of(router.port, "GET", "/health/live") == 200

        shard.send_signal(signal.SIGCONT)
        assert await seconds_until(router.port, "/health/progress", 200) < SHOWS_WITHIN_S
        await running.until(b"data:")
        running.writer.close()


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
    info = ServerInfo("fake", (), limits, "0", 0, 128, 1, "cpu")
    services = Services(
        infer=rig.infer,
        validation=Validation(limits, byte_tokenizer()),
        tokenizer=byte_tokenizer(),
        chat_template=ChatTemplate({}, None, None),
        metrics=rig.metrics,
        info=info,
        adapters=rig.adapters,
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
@pytest.mark.nightly
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
