"""Constrained rows too are computed behind a step in flight; their masks wait for its tokens."""

import time
from dataclasses import replace

import pytest

from model_server.masking.guided_output import GuidedOutput
from model_server.masking.mask_scheduler import MaskScheduler
from proto.contract import FinishReason, OutputConstraint, SamplingParams
from tests.model_server.engine.ahead_driver import AheadDriver
from tests.model_server.engine.driver import Driver
from tests.model_server.masking.faulty import FAULTY, FaultyLanguages
from tests.model_server.masking.shard import NUM_BLOCKS, Shard
from tests.model_server.masking.test_guided_steps import COLOUR, DATE, PERSON, SENTENCE

HOT = SamplingParams(do_sample=True, temperature=1.5)
PENALISED = replace(HOT, repetition_penalty=1.3, frequency_penalty=0.5, watermark=True)
# Most of what a row draws among many candidates is found only when all are looked at.
FILTERED = replace(HOT, temperature=1.2, top_p=0.8)


def ahead_of(shard: Shard, seed: int = 0, guides: MaskScheduler | None = None) -> AheadDriver:
    runner = shard.runner(guides, runs_ahead=True)
    return AheadDriver(runner, NUM_BLOCKS, shard.model.block_size, seed)


def add_mixed(driver: Driver, seed: int, samplings: tuple[SamplingParams, ...]) -> None:
    """Constrained requests, some of which end early, beside free ones."""
    for request_id, constraint in enumerate((DATE, None, COLOUR, PERSON, SENTENCE, None)):
        driver.add(
            request_id,
            range(300 + request_id, 310 + request_id),
            30 + 15 * (request_id % 3),
            sampling=replace(samplings[request_id % len(samplings)], seed=seed + request_id),
            constraint=constraint,
        )


@pytest.mark.parametrize(
    ("seed", "samplings", "step_tokens"),
    [
        (0, (HOT,), 1 << 20),
        (1, (PENALISED, HOT), 9),
        (2, (FILTERED, PENALISED, HOT), 1 << 20),
        (3, (FILTERED, PENALISED, HOT), 9),
    ],
)
def test_constrained_and_free_requests_get_the_tokens_that_they_get_step_by_step(
    shard: Shard, seed: int, samplings: tuple[SamplingParams, ...], step_tokens: int
) -> None:
    ahead = ahead_of(shard, seed)
    step_by_step = shard.driver()
    for driver in (ahead, step_by_step):
        add_mixed(driver, seed, samplings)
        driver.run(step_tokens)
    assert ahead.outputs == step_by_step.outputs
    assert ahead.num_ahead > 20
    for request_id, request in ahead.requests.items():
        expected = step_by_step.requests[request_id]
        assert request.finish_reason is expected.finish_reason
        last = request.generations[-1]
        expected_last = expected.generations[-1]
        assert last.constraint_satisfied is expected_last.constraint_satisfied


def test_steps_of_constrained_rows_alone_are_launched_behind_one_in_flight(shard: Shard) -> None:
    driver = ahead_of(shard)
    for request_id in range(4):
        driver.add(request_id, (300, 301), 40, sampling=HOT, constraint=PERSON)
    driver.run()
    num_steps = max(len(request.generations) for request in driver.requests.values())
    # All but the first, whose masks come from a worker, and those that wait for nothing to follow.
    assert driver.num_ahead > 0.8 * num_steps


def refuse_every_third(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Guides refuse every third token that each of their outputs draws."""
    num_asked: dict[GuidedOutput, int] = {}
    refused: list[int] = []
    accepts = GuidedOutput.accepts

    def accepts_fewer(self: GuidedOutput, token_id: int, words: object) -> bool:
        asked = num_asked[self] = num_asked.get(self, 0) + 1
        allowed = words.view("u4")  # type: ignore[attr-defined]
        if asked % 3 == 0 and sum(int(word).bit_count() for word in allowed) > 1:
            allowed[token_id // 32] &= ~(1 << (token_id % 32)) & 0xFFFFFFFF
            refused.append(self.request_id)
            return False
        return accepts(self, token_id, words)  # type: ignore[arg-type]

    monkeypatch.setattr(GuidedOutput, "accepts", accepts_fewer)
    return refused


@pytest.mark.parametrize("seed", range(1))
def test_a_row_whose_token_is_refused_takes_its_other_token_a_step_later(
    shard: Shard, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refuse_every_third(monkeypatch)
    outputs = []
    num_late = 0
    for make in (lambda: ahead_of(shard, seed), shard.driver):
        driver: Driver = make()
        add_mixed(driver, seed, (HOT,))
        driver.run()
        outputs.append(driver.outputs)
        num_late += sum(g.is_late for r in driver.requests.values() for g in r.generations)
    assert outputs[0] == outputs[1]
    assert len(refused) > 10
    assert num_late > 5


def test_rows_whose_masks_are_late_go_on_later_and_the_others_do_not_wait(shard: Shard) -> None:
    slow = FaultyLanguages(shard.languages, lambda: time.sleep(0.06), num_good=2)
    ahead = ahead_of(shard, guides=Shard(shard.model, slow).guides(hold_s=0.001))
    step_by_step = Shard(shard.model, slow).driver()
    for driver in (ahead, step_by_step):
        driver.add(1, range(300, 310), 9, sampling=HOT, constraint=FAULTY)
        driver.add(2, range(300, 310), 40, sampling=HOT)
        driver.run()
    assert ahead.outputs == step_by_step.outputs
    late = [generation.is_late for generation in ahead.requests[1].generations]
    assert any(late)
    assert not any(generation.is_late for generation in ahead.requests[2].generations)


@pytest.mark.parametrize("constraint", [None, PERSON])
def test_who_is_dropped_while_a_step_is_in_flight_is_not_missed(
    shard: Shard, constraint: OutputConstraint | None
) -> None:
    ahead = ahead_of(shard)
    alone = shard.driver()
    for driver in (ahead, alone):
        driver.add(1, (300, 301), 30, sampling=PENALISED, constraint=constraint)
    ahead.add(2, (300, 302), 30, sampling=PENALISED, constraint=PERSON)
    for _ in range(6):
        ahead._begin(64)
    ahead.drop(2)
    ahead.run()
    alone.run()
    assert ahead.outputs[1] == alone.outputs[1]
    assert ahead.requests[2].finish_reason is None


def test_a_row_without_a_constraint_that_draws_again_is_never_late(shard: Shard) -> None:
    """Its step begins anew: the router takes no late answer for such a row."""
    ahead = ahead_of(shard)
    step_by_step = shard.driver()
    num_redrawn = 0
    for driver in (ahead, step_by_step):
        for request_id in range(3):
            sampling = replace(FILTERED, seed=request_id)
            driver.add(request_id, (300, 301), 40, sampling=sampling)
    while ahead._begin(64):
        num_redrawn += len(ahead.runner._redrawn)
    ahead.run()
    step_by_step.run()
    assert ahead.outputs == step_by_step.outputs
    assert num_redrawn > 0
    for request in ahead.requests.values():
        assert request.finish_reason is FinishReason.LENGTH
        assert not any(generation.is_late for generation in request.generations)
