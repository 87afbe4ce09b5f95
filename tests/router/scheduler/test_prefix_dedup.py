"""Requests that begin alike: one computes the beginning, the others wait until it is there."""

import pytest

from proto.contract import Batch
from router.scheduler.scheduler import Scheduler
from tests.router.scheduler.steps import make_scheduler, run, step, token
from tests.strategies import make_request

SHARED = tuple(range(10, 22))


def add(scheduler: Scheduler, request_id: int, *prompt_ids: int, **more: object) -> None:
    scheduler.add(request_id, make_request(prompt_ids, **more), 0.0)  # type: ignore[arg-type]


def new_of(batch: Batch) -> list[tuple[int, int]]:
    """Who entered, and how many tokens were there already."""
    return [(new.request_id, new.cached_len) for new in batch.new]


def test_the_first_computes_the_beginning_and_the_others_find_it() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    for request_id in range(4):
        add(scheduler, request_id, *SHARED, request_id)
    assert new_of(run(scheduler, token(0, 7))) == [(0, 0)]
    others = step(scheduler)
    assert new_of(others) == [(1, 12), (2, 12), (3, 12)]
    assert others.num_tokens == 4


def test_equal_prompts_are_computed_once() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    for request_id in range(3):
        add(scheduler, request_id, *SHARED)
    run(scheduler, token(0, 7))
    assert new_of(step(scheduler)) == [(1, 10), (2, 10)]


def test_a_beginning_of_several_steps_is_waited_for_to_its_end() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=5)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    assert new_of(run(scheduler)) == [(0, 0)]
    assert new_of(run(scheduler)) == []
    # What is left to wait for is worth less than a step.
    assert new_of(run(scheduler, token(0, 7))) == [(1, 10)]


@pytest.mark.parametrize(
    "prompt_ids",
    [(*SHARED[:6], 1, 2, 3, 4, 5, 6, 7), (*SHARED, *range(50, 70)), (1, *SHARED)],
    ids=["little is shared", "most is its own", "nothing is shared"],
)
def test_what_is_not_worth_a_step_is_not_waited_for(prompt_ids: tuple[int, ...]) -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *prompt_ids)
    assert new_of(step(scheduler)) == [(0, 0), (1, 0)]


def test_those_behind_are_not_held_up() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    add(scheduler, 2, 1, 2, 3)
    assert new_of(step(scheduler)) == [(0, 0), (2, 0)]


def test_a_prompt_that_is_scored_from_its_beginning_waits_for_nobody() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1, prompt_logprobs=True)
    add(scheduler, 2, *SHARED, 2, prompt_logprobs=True, prompt_from=12)
    assert new_of(step(scheduler)) == [(0, 0), (1, 0)]


def test_the_waiting_one_goes_on_alone_when_the_other_leaves() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=5)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    run(scheduler)
    scheduler.finish(0)
    assert new_of(step(scheduler)) == [(1, 4)]


def test_nobody_waits_where_nothing_is_shared() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64, prefix_caching=False)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    assert new_of(step(scheduler)) == [(0, 0), (1, 0)]


def test_a_step_in_flight_is_waited_for() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64, max_steps_in_flight=2)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    assert new_of(step(scheduler)) == [(0, 0)]
    ahead = step(scheduler)
    assert (new_of(ahead), ahead.num_tokens) == ([], 1)
