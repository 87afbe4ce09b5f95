"""Requests with a constraint, from the batcher to the events: runs of tokens and their ends."""

from dataclasses import replace

import pytest

from proto import generate_pb2 as pb
from proto.contract import FinishReason, LogprobParams
from router.request.errors import RowFailed
from router.request.request import Constraint, TokenGenerated
from tests.fake_script import Followed
from tests.fakes import FakeShard
from tests.router.rig import (
    ANY_TEXT,
    PROMPT,
    asking,
    end_of,
    error_of,
    events_of,
    expected_text,
    methods,
    routing,
    says,
    settled,
    texts_of,
)


def forcing(shard: FakeShard, num_forced: int) -> FakeShard:
    """A shard that takes so many tokens more after each one that it draws."""
    shard.followed = Followed(num_forced=lambda _: num_forced)
    return shard


def num_steps(shard: FakeShard) -> int:
    called = methods(shard)
    return called.count("Prefill") + called.count("Decode")


@pytest.mark.parametrize("num_forced", [0, 1, 3, 9])
async def test_a_run_says_what_single_tokens_would(num_forced: int) -> None:
    shard = forcing(FakeShard(), num_forced)
    async with routing(shard) as rig:
        events = await events_of(rig.batcher.submit(asking(max_new_tokens=8, constraint=ANY_TEXT)))
        text = expected_text(PROMPT, 8)
        assert texts_of(events) == list(text)
        end = end_of(events)
        assert (end.text, end.reason, end.num_generated_tokens) == (text, FinishReason.LENGTH, 8)
        num_needed = -(-8 // (num_forced + 1))
        # The last one's tokens are not known yet when a further step is sent.
        assert num_needed <= num_steps(shard) <= num_needed + 1
        assert rig.metrics.output_tokens.value() == 8
        assert rig.metrics.inter_token_latency.count() == 7
        assert rig.metrics.forced_tokens.value() == 8 - num_needed
        assert rig.metrics.constraint_ends.value("satisfied") == 1


async def test_runs_beside_each_other_and_long_prompts_in_small_steps() -> None:
    shard = forcing(FakeShard(num_blocks=40), 5)
    async with routing(shard, max_step_tokens=8) as rig:
        prompts = [f"{index} upon a time" * (1 + index % 3) for index in range(8)]
        streams = [
            rig.batcher.submit(asking(prompt, 9, constraint=ANY_TEXT if index % 2 else None))
            for index, prompt in enumerate(prompts)
        ]
        for prompt, stream in zip(prompts, streams, strict=True):
            assert end_of(await events_of(stream)).text == expected_text(prompt, 9)


async def test_it_ends_where_nothing_but_the_end_may_follow() -> None:
    shard = forcing(says("[1, 2]"), 2)
    async with routing(shard) as rig:
        request = asking(max_new_tokens=9, constraint=ANY_TEXT)
        end = end_of(await events_of(rig.batcher.submit(request)))
        assert (end.text, end.reason) == ("[1, 2]", FinishReason.CONSTRAINT_COMPLETE)
        assert (end.num_generated_tokens, end.constraint_satisfied) == (6, True)
        assert num_steps(shard) <= 3


async def test_an_empty_text_is_an_answer_and_scores_its_prompt() -> None:
    async with routing(says("")) as rig:
        request = asking(constraint=ANY_TEXT, logprobs=LogprobParams(prompt=True))
        events = await events_of(rig.batcher.submit(request))
        assert [type(event).__name__ for event in events] == ["PromptScored", "Finished"]
        end = end_of(events)
        assert (end.text, end.num_generated_tokens) == ("", 0)


@pytest.mark.parametrize("satisfied", [True, False])
async def test_the_shard_says_whether_a_constraint_is_satisfied(satisfied: bool) -> None:
    shard = FakeShard()
    shard.followed = Followed(satisfied=satisfied)
    async with routing(shard) as rig:
        end = end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert end.constraint_satisfied is satisfied
        without = end_of(await events_of(rig.batcher.submit(asking())))
        assert without.constraint_satisfied is None


async def test_a_shard_that_does_not_say_it_promises_nothing() -> None:
    def forget(answer: pb.StepResponse) -> None:
        for generation in answer.generations:
            generation.ClearField("constraint_satisfied")

    shard = FakeShard()
    shard.faults.spoil = forget
    async with routing(shard) as rig:
        end = end_of(await events_of(rig.batcher.submit(asking(constraint=ANY_TEXT))))
        assert end.constraint_satisfied is False


@pytest.mark.parametrize(("keep", "text"), [(True, "one END"), (False, "one ")])
async def test_a_stop_string_within_a_run_ends_the_text_there(keep: bool, text: str) -> None:
    shard = forcing(says("one END and more"), 20)
    async with routing(shard) as rig:
        request = asking(
            max_new_tokens=30, stop=("END",), keep_stop_string=keep, constraint=ANY_TEXT
        )
        events = await events_of(rig.batcher.submit(request))
        end = end_of(events)
        assert (end.text, end.reason) == (text, FinishReason.STOP_STRING)
        assert (end.num_generated_tokens, end.constraint_satisfied) == (7, True)
        assert "".join(texts_of(events)) + end.tail == text
        await settled(rig)


async def test_a_phrase_of_the_constraint_is_left_out_though_stop_strings_stay() -> None:
    constraint: Constraint = replace(ANY_TEXT, dropped_phrases=("\n\n",))
    async with routing(says("Q: a\n\nmore!")) as rig:
        request = asking(max_new_tokens=20, stop=("!",), constraint=constraint)
        events = await events_of(rig.batcher.submit(request))
        end = end_of(events)
        assert (end.text, end.stop_string) == ("Q: a", "\n\n")
        texts = [event.token.text for event in events if isinstance(event, TokenGenerated)]
        assert "".join(texts) == "Q: a"


async def test_a_row_that_its_constraint_breaks_fails_alone() -> None:
    shard = FakeShard()
    async with routing(shard) as rig:
        broken = rig.batcher.submit(asking(max_new_tokens=20, constraint=ANY_TEXT))
        other = rig.batcher.submit(asking(max_new_tokens=20))
        await broken.take()
        shard.faults.row_errors[broken.request_id] = "the engine broke"
        error = error_of(await events_of(broken))
        assert isinstance(error, RowFailed)
        assert str(error) == "the engine broke"
        assert end_of(await events_of(other)).num_generated_tokens == 20


async def test_masks_are_measured_where_there_are_any() -> None:
    def masked(answer: pb.StepResponse) -> None:
        if answer.generations and answer.generations[0].request_id == 2:
            answer.num_masked_rows = 1
            answer.mask_ns = 2_000_000
            answer.mask_wait_ns = 500_000

    shard = FakeShard()
    shard.faults.spoil = masked
    async with routing(shard) as rig:
        await events_of(rig.batcher.submit(asking()))
        assert rig.metrics.mask_duration.count() == 0
        await events_of(rig.batcher.submit(asking(max_new_tokens=3, constraint=ANY_TEXT)))
        metrics = rig.metrics
        assert (metrics.mask_duration.count(), metrics.masked_rows.value()) == (3, 3)
        assert metrics.mask_duration.sum() == pytest.approx(0.006)
        assert metrics.mask_wait_duration.sum() == pytest.approx(0.0015)
        assert metrics.constraint_prepare_duration.count("compiled") == 1
        assert metrics.constrained_sequences.value() == 0
