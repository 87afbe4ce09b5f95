"""The batcher over a fake shard: what a request comes back as, alone and among others."""

import pytest

from proto import generate_pb2 as pb
from proto.contract import FinishReason, LogprobParams, SamplingParams
from router.engine.batcher import BatcherLimits
from router.request.errors import (
    InvalidRequest,
    Overloaded,
)
from router.request.request import PromptScored, TokenGenerated
from tests.byte_tokenizer import EOS_ID
from tests.fakes import FakeShard
from tests.router.rig import (
    PROMPT,
    asking,
    end_of,
    events_of,
    expected_text,
    routing,
    says,
    settled,
    texts_of,
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
