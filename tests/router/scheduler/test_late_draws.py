"""Requests whose mask was not made in time: a step draws nothing for them, and a later one does."""

import pytest

from proto.contract import FinishReason, Generation
from router.request.errors import ShardFailed
from router.scheduler.scheduler import Scheduler
from tests.router.scheduler.steps import answer, chunks, make_scheduler, run, step, token
from tests.strategies import make_request


def late(request_id: int, *prompt_logprobs: float) -> Generation:
    return Generation(request_id, prompt_logprobs=prompt_logprobs, is_late=True)


def add(scheduler: Scheduler, max_new_tokens: int = 8) -> None:
    scheduler.add(0, make_request((5, 1, 2), max_new_tokens, is_constrained=True), 0.0)


def test_a_later_step_computes_the_last_token_again_and_draws() -> None:
    scheduler = make_scheduler()
    add(scheduler)
    run(scheduler, late(0))
    again = step(scheduler)
    assert (again.num_tokens, again.num_decode_tokens, again.updates) == (1, 1, ())
    assert answer(scheduler, again, token(0, 7)) == (token(0, 7),)
    assert step(scheduler).num_tokens == 1


def test_a_late_sample_is_not_reported() -> None:
    scheduler = make_scheduler()
    add(scheduler)
    assert answer(scheduler, step(scheduler), late(0)) == ()


def test_a_draw_may_be_late_again_and_again_while_the_others_go_on() -> None:
    scheduler = make_scheduler()
    add(scheduler)
    scheduler.add(1, make_request((1, 3), 8), 0.0)
    for token_id in range(4):
        run(scheduler, late(0), token(1, token_id))
    assert step(scheduler).num_tokens == 2


def test_behind_a_late_run_only_its_last_token_is_computed_again() -> None:
    scheduler = make_scheduler()
    add(scheduler)
    run(scheduler, Generation(0, token(0, 7).tokens + token(0, 8).tokens, num_forced=1))
    assert chunks(run(scheduler, late(0)))[0] == 2
    assert step(scheduler).num_tokens == 1


def test_the_last_token_may_be_late() -> None:
    scheduler = make_scheduler()
    add(scheduler, max_new_tokens=1)
    run(scheduler, late(0))
    last = token(0, 7, FinishReason.LENGTH)
    assert answer(scheduler, step(scheduler), last) == (last,)
    assert not scheduler.has_work


def test_a_prompts_log_probabilities_count_once() -> None:
    scheduler = make_scheduler()
    request = make_request((5, 1, 2), prompt_logprobs=True, is_constrained=True)
    scheduler.add(0, request, 0.0)
    (first,) = answer(scheduler, step(scheduler), late(0, -1.0, -2.0))
    assert first.prompt_logprobs == (-1.0, -2.0)
    drawn = Generation(0, token(0, 7).tokens, prompt_logprobs=(-2.0,))
    (second,) = answer(scheduler, step(scheduler), drawn)
    assert (second.tokens, second.prompt_logprobs) == (drawn.tokens, ())


def test_a_sequence_preempted_before_the_late_answer_is_recomputed() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=1, max_steps_in_flight=2)
    scheduler.add(0, make_request((6,), 4), 0.0)
    scheduler.add(1, make_request((5,), 3, is_constrained=True), 0.0)
    first = step(scheduler)
    second = step(scheduler)
    answer(scheduler, first, token(0, 7), token(1, 8))
    third = step(scheduler)
    answer(scheduler, second, token(0, 7), token(1, 9))
    assert scheduler.schedule(0.0) is None, "the older one waits for the blocks of the younger one"
    answer(scheduler, third, token(0, 7), late(1))
    fourth = step(scheduler)
    assert fourth.dropped_ids == (1,)
    answer(scheduler, fourth, token(0, 7, FinishReason.LENGTH))
    (new,) = step(scheduler).new
    assert (new.request_id, new.token_ids) == (1, (5, 8, 9))
    scheduler.check_invariants()


@pytest.mark.parametrize("generation", [late(1), Generation(0, token(0, 7).tokens, is_late=True)])
def test_a_sequence_without_a_mask_or_with_a_token_is_not_late(generation: Generation) -> None:
    scheduler = make_scheduler()
    add(scheduler)
    scheduler.add(1, make_request((1, 3)), 0.0)
    others = [
        each for each in (token(0, 7), token(1, 7)) if each.request_id != generation.request_id
    ]
    with pytest.raises(ShardFailed, match="it cannot be late"):
        answer(scheduler, step(scheduler), generation, *others)


def test_a_prompt_chunk_is_not_late() -> None:
    scheduler = make_scheduler(max_step_tokens=2)
    add(scheduler)
    with pytest.raises(ShardFailed, match="it cannot be late"):
        answer(scheduler, step(scheduler), late(0))


def test_a_late_answer_brings_the_log_probabilities_of_its_part_of_the_prompt() -> None:
    scheduler = make_scheduler()
    request = make_request((5, 1, 2), prompt_logprobs=True, is_constrained=True)
    scheduler.add(0, request, 0.0)
    with pytest.raises(ShardFailed, match="1 prompt log-probabilities came instead of 2"):
        answer(scheduler, step(scheduler), late(0, -1.0))
