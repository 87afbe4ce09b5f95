"""Tokens are the same whether or not a step is launched before the one before it is read."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.engine.distributed import World
from model_server.executor.executor import PagedModel
from proto.contract import FinishReason, LogprobParams, SamplingParams
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.ahead_driver import AheadDriver
from tests.model_server.engine.driver import Driver
from tests.model_server.engine.shards import NUM_BLOCKS, load, warmed_up

GREEDY = SamplingParams()
DRAWN = SamplingParams(do_sample=True, temperature=1.3)
KINDS = (
    GREEDY,
    DRAWN,
    replace(DRAWN, top_k=9, top_p=0.9),
    replace(GREEDY, logit_bias={7: 3.0}),
    # What such a row draws depends on all that it has drawn: the step in flight has to end first.
    replace(DRAWN, repetition_penalty=1.4),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    return load(tiny_models.save("llama", tmp_path_factory.mktemp("llama")), World())


def ahead(model: PagedModel, seed: int = 0) -> AheadDriver:
    return AheadDriver(warmed_up(model, runs_ahead=True), NUM_BLOCKS, model.block_size, seed)


def add_requests(driver: Driver, seed: int, num_kinds: int) -> None:
    """Four of them, that stop at some token or after so many."""
    rng = random.Random(seed)
    for request_id in range(4):
        driver.add(
            request_id,
            [rng.randrange(3, 150) for _ in range(rng.choice((1, 5, 15, 40)))],
            rng.randrange(1, 30),
            sampling=replace(KINDS[rng.randrange(num_kinds)], seed=request_id),
            logprobs=LogprobParams(num_top_tokens=rng.choice((0, 0, 2))),
            stop_token_ids=tuple(rng.sample(range(3, 150), 8)),
        )


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    num_kinds=st.sampled_from([4, 5]),
    step_tokens=st.sampled_from([7, 64]),
)
def test_requests_get_the_tokens_that_they_get_without_a_step_in_flight(
    model: PagedModel, seed: int, num_kinds: int, step_tokens: int
) -> None:
    drivers = ahead(model, seed), Driver(warmed_up(model), NUM_BLOCKS, model.block_size, seed)
    for driver in drivers:
        add_requests(driver, seed, num_kinds)
        driver.run(step_tokens)
    expected = drivers[1].outputs
    assert drivers[0].outputs == expected
    for request_id, request in drivers[0].requests.items():
        assert request.generations == drivers[1].requests[request_id].generations


def test_steps_are_launched_behind_one_in_flight(model: PagedModel) -> None:
    driver = ahead(model)
    for request_id in range(3):
        driver.add(request_id, [5 + request_id, 9], 20)
    driver.run()
    assert driver.num_ahead > 15
    assert all(r.finish_reason is FinishReason.LENGTH for r in driver.requests.values())


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_who_stays_does_not_notice_who_is_dropped(
    model: PagedModel, seed: int, data: st.DataObject
) -> None:
    driver, alone = ahead(model, seed), Driver(warmed_up(model), NUM_BLOCKS, model.block_size)
    for each in (driver, alone):
        add_requests(each, seed, 4)
    alone.run()
    num_steps = data.draw(st.integers(1, 12))
    for _ in range(num_steps):
        driver._begin(64)
    driver.drop(data.draw(st.integers(0, 3)))
    driver.run()
    for request_id, request in driver.requests.items():
        if not request.is_dropped:
            assert request.output == alone.outputs[request_id]
        else:
            assert request.output == alone.outputs[request_id][: len(request.output)]


def test_a_prompt_that_enters_ends_the_step_in_flight(model: PagedModel) -> None:
    driver, alone = ahead(model), Driver(warmed_up(model), NUM_BLOCKS, model.block_size)
    for each in (driver, alone):
        each.add(0, [4, 5, 6], 20)
    for _ in range(5):
        driver._begin(64)
        alone.step()
    for each in (driver, alone):
        each.add(1, list(range(3, 40)), 8)
        each.run(16)
    assert driver.outputs == alone.outputs


def test_a_request_whose_logits_are_broken_fails_alone(model: PagedModel) -> None:
    driver = ahead(model)
    for request_id in range(2):
        driver.add(request_id, [5 + request_id, 9], 12)
    for _ in range(3):
        driver._begin(64)
    forward, calls = model.forward, list[int]()

    def broken(inputs: object) -> object:
        logits = forward(inputs)  # type: ignore[arg-type]
        if not calls:
            logits[0] = float("nan")
        calls.append(1)
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", broken)
        driver.run()
    first, second = driver.requests.values()
    assert first.finish_reason is FinishReason.ERROR
    assert (second.finish_reason, len(second.output)) == (FinishReason.LENGTH, 12)
    assert len(first.output) < 12
