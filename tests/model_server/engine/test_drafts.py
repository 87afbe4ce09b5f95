"""Draft tokens change the number of steps, and nothing else."""

import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from model_server.engine.distributed import World
from model_server.engine.sequences import Drafter, DraftRules, PlannedChunk, SequenceState
from model_server.executor.executor import PagedModel
from proto.contract import (
    FinishReason,
    LogprobParams,
    NewSequence,
    RunningUpdate,
    SamplingParams,
    StopParams,
)
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import Driver
from tests.model_server.engine.shards import driver_of, load

NUM_NEW = 40
# The output has these tokens alone, so that it repeats itself, and not always.
FEW = {5: 40.0, 6: 40.0, 7: 40.0}
SAMPLED = SamplingParams(do_sample=True, temperature=1.5, seed=11, logit_bias=FEW)
PENALISED = SamplingParams(
    do_sample=True, seed=5, repetition_penalty=1.3, frequency_penalty=0.7, logit_bias=FEW
)
WATERMARKED = SamplingParams(do_sample=True, seed=3, watermark=True, logit_bias=FEW)


@cache
def model() -> PagedModel:
    with TemporaryDirectory() as folder:
        tiny_models.build("llama").save_pretrained(folder)
        return load(Path(folder), World())


def answered(
    num_drafts: int,
    sampling: SamplingParams,
    stop: Mapping[str, Any],
    logprobs: LogprobParams,
    step_tokens: int = 1 << 30,
) -> tuple[Driver, int]:
    """A driver with the answers to three requests, and the number of its steps."""
    driver = driver_of(model(), num_drafts=num_drafts)
    for request_id, prompt_len in enumerate((3, 20, 9)):
        prompt = [5 + (request_id * 31 + place * 17) % 60 for place in range(prompt_len)]
        driver.add(
            request_id, prompt, NUM_NEW - request_id, sampling=sampling, logprobs=logprobs, **stop
        )
    num_steps = 0
    while not all(request.finish_reason for request in driver.requests.values()):
        driver.step(step_tokens)
        num_steps += 1
    return driver, num_steps


def tokens_of(driver: Driver) -> list[list[Any]]:
    return [
        [token for generation in request.generations for token in generation.tokens]
        for request in driver.requests.values()
    ]


@pytest.mark.parametrize("num_drafts", [1, 3, 8])
@pytest.mark.parametrize(
    ("sampling", "stop", "logprobs"),
    [
        pytest.param(SamplingParams(), {}, LogprobParams(), id="greedy"),
        pytest.param(SAMPLED, {}, LogprobParams(), id="sampled"),
        pytest.param(PENALISED, {}, LogprobParams(), id="penalised"),
        pytest.param(WATERMARKED, {}, LogprobParams(), id="watermarked"),
        pytest.param(SAMPLED, {}, LogprobParams(num_top_tokens=3, raw=True), id="alternatives"),
        pytest.param(SAMPLED, {}, LogprobParams(prompt=True), id="scored prompt"),
        pytest.param(
            SAMPLED, {"stop_token_ids": (7,), "min_new_tokens": 9}, LogprobParams(), id="stops"
        ),
    ],
)
def test_an_answer_is_the_same_with_drafts_in_fewer_steps(
    num_drafts: int, sampling: SamplingParams, stop: Mapping[str, Any], logprobs: LogprobParams
) -> None:
    plain, num_plain_steps = answered(0, sampling, stop, logprobs)
    drafted, num_steps = answered(num_drafts, sampling, stop, logprobs)
    assert tokens_of(drafted) == tokens_of(plain)
    reasons = [request.finish_reason for request in plain.requests.values()]
    assert [request.finish_reason for request in drafted.requests.values()] == reasons
    if not stop:
        assert num_steps < num_plain_steps


def test_drafts_are_accepted_and_refused() -> None:
    """Else the test above would see half of it."""
    driver, _ = answered(3, SAMPLED, {}, LogprobParams())
    generations = [each for request in driver.requests.values() for each in request.generations]
    assert {each.num_accepted for each in generations} == {0, 1, 2}
    assert any(each.num_accepted < each.num_drafts for each in generations)
    assert all(each.num_accepted in (0, len(each.tokens) - 1) for each in generations)


def test_without_room_in_a_step_or_after_preemption_the_answer_is_the_same() -> None:
    plain, _ = answered(0, SAMPLED, {}, LogprobParams())
    drafted = driver_of(model(), num_drafts=4)
    for request in plain.requests.values():
        drafted.add(
            request.request_id,
            request.token_ids[: request.prompt_len],
            request.stop.max_new_tokens,
            sampling=SAMPLED,
        )
    chance = random.Random(2)
    while not all(request.finish_reason for request in drafted.requests.values()):
        drafted.num_drafts = chance.choice([0, 1, 4])
        drafted.step(chance.choice([3, 7, 40]))
        running = [r.request_id for r in drafted.requests.values() if r.is_held and r.output]
        running = [each for each in running if not drafted.requests[each].finish_reason]
        if running and chance.random() < 0.2:
            drafted.preempt(chance.choice(running))
    assert drafted.outputs == plain.outputs


def test_a_draft_follows_the_longest_match() -> None:
    drafter = Drafter()
    assert drafter.draft((1, 2), 4) == ()
    assert drafter.draft((1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3), 4) == (4,)


def test_beside_many_rows_only_a_long_match_is_followed() -> None:
    few, many = DraftRules.of_rows(3, ()), DraftRules.of_rows(4, ())
    short, long = (1, 2, 3, 9, 1, 2, 3), (*range(8), 20, *range(8))
    for token_ids, rules, drafts in (
        (short, few, (9,)),
        (short, many, ()),
        (long, many, (20,)),
    ):
        assert Drafter().draft(token_ids, 4, rules.min_match_len) == drafts


def test_a_draft_grows_with_its_success_and_repeats_what_repeats() -> None:
    drafter, token_ids = Drafter(), [1, 2, 1, 2]
    assert drafter.draft(token_ids, 8) == (1,)
    drafter.note(1, 1)
    assert drafter.draft(token_ids, 8) == (1, 2)
    drafter.note(2, 2)
    assert drafter.draft(token_ids, 3) == (1, 2, 1)
    drafter.note(3, 0)
    assert drafter.draft(token_ids, 8) == (1,)


def planned(
    stop: StopParams | None = None,
    *,
    num_blocks: int = 4,
    prompt_len: int = 9,
    pause_len: int | None = None,
) -> PlannedChunk:
    """A chunk of up to six tokens of 1, 2, 3, 1, 2, 3, .. which decodes; 3 ends a sequence."""
    new = NewSequence(
        request_id=1,
        token_ids=(1, 2, 3) * 3,
        prompt_len=prompt_len,
        cached_len=8,
        chunk_len=1,
        block_ids=tuple(range(num_blocks)),
        sampling=SamplingParams(),
        stop=stop or StopParams(20),
        pause_len=pause_len,
    )
    sequence = SequenceState.of(new)
    sequence.is_decoding = True
    sequence.draft(1, DraftRules())
    sequence.take_drafts(8, 8)
    sequence.computed_len = 8
    return PlannedChunk.of(sequence, RunningUpdate(1, (), 6), 4, DraftRules(2, (3,)))


def test_no_draft_ends_the_sequence() -> None:
    assert planned().drafts == (1, 2)
    assert planned(StopParams(20, ignore_eos=True)).drafts == (1, 2, 3, 1, 2)
    assert planned(StopParams(20, ignore_eos=True, stop_token_ids=(2,))).drafts == (1,)


def test_drafts_keep_to_the_tokens_that_are_left_and_to_the_blocks() -> None:
    assert planned(StopParams(20, ignore_eos=True), num_blocks=3).drafts == (1, 2, 3)
    assert planned(StopParams(3, ignore_eos=True), prompt_len=8).drafts == (1,)
    assert planned(StopParams(20, ignore_eos=True), prompt_len=8, pause_len=3).drafts == (1,)
    last = planned(StopParams(2, ignore_eos=True), prompt_len=8)
    assert (last.drafts, last.num_logits) == ((), 1)


def test_a_reason_to_end_is_that_of_the_last_token() -> None:
    driver, _ = answered(
        8, SAMPLED, {"stop_token_ids": (6,), "min_new_tokens": 20}, LogprobParams()
    )
    for request in driver.requests.values():
        assert request.finish_reason is FinishReason.STOP_TOKEN
        assert request.output[-1] == 6
        assert 6 not in request.output[20:-1]
