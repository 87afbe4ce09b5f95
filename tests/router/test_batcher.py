"""The batcher over a fake shard: text, ends of every kind, and what goes wrong."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import grpc
import pytest

from proto import generate_pb2 as pb
from router.batcher import BatcherLimits
from router.books.scheduler import Scheduler
from router.errors import (
    Cancelled,
    Displaced,
    Draining,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RowFailed,
    ServerStopped,
    ShardFailed,
)
from router.events import FinishReason, PromptScored, TokenGenerated
from router.request import LogprobParams, SamplingParams
from router.shards import Shards, ShardTimeouts
from tests.fakes import EOS_ID, FakeShard, byte_ids, letters, saying
from tests.router.rig import (
    PROMPT,
    asking,
    byte_tokenizer,
    end_of,
    error_of,
    events_of,
    routing,
    settled,
    texts_of,
)


def expected_text(prompt: str, num_tokens: int) -> str:
    token_ids = byte_ids(prompt)
    for _ in range(num_tokens):
        token_ids.append(letters(token_ids))
    return bytes(token_id - 2 for token_id in token_ids[len(prompt) :]).decode()


def says(text: str, prompt: str = PROMPT) -> FakeShard:
    return FakeShard(script=saying(text, len(byte_ids(prompt))))


def methods(shard: FakeShard) -> list[str]:
    return [method for method, _ in shard.calls]


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


@pytest.mark.parametrize(("keep", "text"), [(True, "one END"), (False, "one ")])
async def test_a_stop_string_across_tokens_ends_the_text_and_the_work(
    keep: bool, text: str
) -> None:
    shard = says("one END two three four five six")
    async with routing(shard) as rig:
        request = asking(max_new_tokens=30, stop=("END",), keep_stop_string=keep)
        events = await events_of(rig.batcher.submit(request))
        end = end_of(events)
        assert (end.text, end.reason, end.stop_string) == (text, FinishReason.STOP_STRING, "END")
        assert "".join(texts_of(events)) + end.tail == text
        await settled(rig)
        assert shard.num_held == 0
        # Not one step more than the stop string has tokens.
        assert methods(shard).count("Prefill") + methods(shard).count("Decode") == len("one END")


async def test_what_could_have_become_a_stop_string_is_in_the_tail() -> None:
    async with routing(says("one EN")) as rig:
        request = asking(max_new_tokens=6, stop=("END",), keep_stop_string=False)
        events = await events_of(rig.batcher.submit(request))
        assert texts_of(events)[-2:] == ["", ""]
        assert (end_of(events).tail, end_of(events).text) == ("EN", "one EN")


@pytest.mark.parametrize(("keep", "text"), [(True, "ab."), (False, "ab")])
async def test_a_stop_token_ends_it_and_stays_or_goes(keep: bool, text: str) -> None:
    stop_ids = tuple(byte_ids("."))
    async with routing(says("ab.cd")) as rig:
        request = asking(stop_token_ids=stop_ids, keep_stop_string=keep)
        end = end_of(await events_of(rig.batcher.submit(request)))
        assert (end.text, end.reason, end.stop_token_id) == (
            text,
            FinishReason.STOP_TOKEN,
            stop_ids[0],
        )


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
        assert "FilterBatch" in methods(shard)


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
    async with routing(shard) as rig:
        stream = rig.batcher.submit(asking("x", 900, deadline_s=monotonic() + 0.1))
        end = end_of(await events_of(stream))
        assert end.reason is FinishReason.DEADLINE
        assert 1 <= end.num_generated_tokens < 40
        assert end.text == expected_text("x", end.num_generated_tokens)
        await settled(rig)


async def test_a_deadline_passes_while_a_step_hangs() -> None:
    shard = FakeShard()
    patient = ShardTimeouts(step_s=3.0, control_s=0.5)
    async with routing(shard, timeouts=patient) as rig:
        shard.faults.hangs.add("Prefill")
        began_s = monotonic()
        stream = rig.batcher.submit(asking(deadline_s=began_s + 0.1))
        assert end_of(await events_of(stream)).reason is FinishReason.DEADLINE
        assert monotonic() - began_s < 1.0
        rig.running.cancel()
        await asyncio.gather(rig.running, return_exceptions=True)
        rig.running = asyncio.ensure_future(asyncio.sleep(0))


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


@pytest.mark.parametrize("method", ["Prefill", "Decode"])
async def test_a_failed_step_fails_what_ran_and_the_router_goes_on(method: str) -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        shard.faults.fails.append((method, grpc.StatusCode.INTERNAL, "device lost"))
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=10)))
        error = error_of(events)
        assert isinstance(error, ShardFailed)
        assert f"{method}: INTERNAL: device lost" in str(error)
        epoch = shard.epoch
        again = await events_of(rig.batcher.submit(asking(max_new_tokens=10)))
        assert end_of(again).text == expected_text(PROMPT, 10)
        assert shard.epoch == epoch + 1
        assert rig.batcher.is_alive


async def test_what_waits_outlives_a_failed_step() -> None:
    shard = FakeShard(num_blocks=64)
    async with routing(shard, max_batch_size=1) as rig:
        running = rig.batcher.submit(asking("runs", 30))
        await running.take()
        waiting = rig.batcher.submit(asking("waits", 5))
        shard.faults.fails.append(("Decode", grpc.StatusCode.INTERNAL, "device lost"))
        assert isinstance(error_of(await events_of(running)), ShardFailed)
        assert end_of(await events_of(waiting)).text == expected_text("waits", 5)


async def test_a_hanging_step_fails_at_its_deadline() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        shard.faults.hangs.add("Decode")
        error = error_of(await events_of(rig.batcher.submit(asking())))
        assert "Decode: DEADLINE_EXCEEDED" in str(error)
        shard.faults.hangs.clear()
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


async def test_an_answer_from_before_a_restart_is_not_used() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        first = rig.batcher.submit(asking(max_new_tokens=30))
        await first.take()
        shard.faults.epoch_offset = -1
        assert "answered for epoch" in str(error_of(await events_of(first)))
        shard.faults.epoch_offset = 0
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


def _double(answer: pb.StepResponse) -> None:
    answer.generations.extend(answer.generations[:1])


def _stranger(answer: pb.StepResponse) -> None:
    answer.generations[0].request_id = 999


def _silence(answer: pb.StepResponse) -> None:
    del answer.generations[:]


@pytest.mark.parametrize("spoil", [_double, _stranger, _silence])
async def test_an_answer_that_contradicts_the_books_is_a_failure_of_the_shard(
    spoil: Callable[[pb.StepResponse], None],
) -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        shard.faults.spoil = spoil
        assert isinstance(error_of(await events_of(rig.batcher.submit(asking()))), ShardFailed)
        shard.faults.spoil = None
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


async def test_while_shards_are_gone_requests_fail_soon_and_health_says_so() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        port = shard.urls[0].rpartition(":")[2]
        await shard.stop()
        for _ in range(2):
            assert isinstance(error_of(await events_of(rig.batcher.submit(asking()))), ShardFailed)
            assert not rig.batcher.is_alive
        await shard.start(f"127.0.0.1:{port}")
        deadline_s = monotonic() + 5.0
        while not rig.batcher.is_alive:
            assert monotonic() < deadline_s
            await asyncio.sleep(0.01)
        assert end_of(await events_of(rig.batcher.submit(asking()))).text


async def test_an_idle_router_notices_that_a_shard_is_gone() -> None:
    shard = FakeShard()
    limits = BatcherLimits(health_s=0.05, retry_s=0.05)
    async with routing(shard, limits=limits) as rig:
        await shard.stop()
        deadline_s = monotonic() + 5.0
        while rig.batcher.is_alive:
            assert monotonic() < deadline_s
            await asyncio.sleep(0.01)


async def test_an_idle_router_looks_through_its_books_once() -> None:
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
        await asyncio.wait_for(rig.running, 2.0)


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
        await asyncio.wait_for(rig.running, 2.0)


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


async def test_books_beyond_repair_stop_the_router_and_still_every_stream_ends() -> None:
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


async def test_a_seed_is_told_only_when_it_mattered() -> None:
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


async def test_metrics_tell_what_happened() -> None:
    async with routing(FakeShard()) as rig:
        await events_of(rig.batcher.submit(asking(max_new_tokens=6)))
        await settled(rig)
        metrics = rig.metrics
        assert metrics.output_tokens.value() == 6
        assert metrics.inter_token_latency.count() == 5
        assert metrics.time_to_first_token.count() == 1
        assert metrics.sequence_ends.value("length") == 1
        assert metrics.batch_inference_success.value("prefill") == 1
        assert metrics.batch_inference_success.value("decode") == 5
        assert metrics.kv_blocks_total.value() == 64
        assert metrics.kv_blocks_used.value() == 0
        assert metrics.step_phase.count("rpc") == 6


async def test_a_shard_that_scores_too_little_of_a_prompt_is_told_so() -> None:
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
            await asyncio.wait_for(rig.running, 5.0)
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
        assert isinstance(error_of(await events_of(rig.batcher.submit(asking()))), ShardFailed)
        await asyncio.sleep(0.5)
        assert 2 <= num_tries <= 4
        monkeypatch.undo()


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
        assert shard.num_held == 0, "the shard is told to forget the row"
        assert rig.metrics.sequence_ends.value("row_failed") == 1


async def test_a_line_about_a_request_carries_its_id(caplog: pytest.LogCaptureFixture) -> None:
    shard = FakeShard()
    shard.faults.row_errors[1] = "NaN logits"
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(replace(asking(), trace_id="abc-1")))
        assert "request_id=abc-1 failed alone: NaN logits" in caplog.text


async def test_what_can_fail_is_counted_from_zero() -> None:
    async with routing(FakeShard()) as rig:
        told = rig.metrics.exposition().decode()
        assert 'tgi_batch_inference_failure_total{method="prefill"} 0.0' in told
        assert 'tgi_batch_inference_failure{method="decode"} 0.0' in told
        assert 'tgi_request_failure{err="validation"} 0.0' in told


async def test_reasons_of_an_end_are_words_in_small_letters() -> None:
    async with routing(FakeShard(num_blocks=256)) as rig:
        stream = rig.batcher.submit(asking(max_new_tokens=400))
        await stream.take()
        rig.batcher.cancel(stream)
        await settled(rig)
        assert rig.metrics.sequence_ends.value("cancelled") == 1


@pytest.mark.parametrize(
    ("keep", "told", "text"),
    [
        (True, ["a", "b", "c", "d"], "abcd"),
        (False, ["a", "b", "", ""], "ab"),
    ],
)
async def test_tokens_tell_no_more_of_a_stop_string_than_the_text_does(
    keep: bool, told: list[str], text: str
) -> None:
    async with routing(says("abcdef")) as rig:
        request = asking(
            max_new_tokens=20,
            stop=("cd",),
            keep_stop_string=keep,
            logprobs=LogprobParams(num_top_tokens=2),
        )
        events = await events_of(rig.batcher.submit(request))
        tokens = [event for event in events if isinstance(event, TokenGenerated)]
        assert [event.token.text for event in tokens] == told
        assert end_of(events).text == text
        seen = [other.text for event in tokens for other in event.top_tokens]
        assert ("c" in seen, len(seen)) == ((True, 8) if keep else (True, 4))


async def test_tokens_that_waited_for_a_stop_string_are_told_whole_when_there_is_none() -> None:
    async with routing(says("abc")) as rig:
        request = asking(max_new_tokens=20, stop=("bcd",), keep_stop_string=False)
        events = await events_of(rig.batcher.submit(request))
        tokens = [event for event in events if isinstance(event, TokenGenerated)]
        assert [event.token.text for event in tokens] == ["a", "b", "c", "</s>"]


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
