"""Requests with a constraint, of which one step may bring several tokens."""

import pytest

from proto.contract import FinishReason, Generation, RunningUpdate, SampledToken
from router.request.errors import ShardFailed
from router.scheduler.scheduler import Scheduler
from tests.router.scheduler.steps import answer, chunks, make_scheduler, run, step, token
from tests.strategies import make_request


def a_run(request_id: int, *token_ids: int, reason: FinishReason | None = None) -> Generation:
    tokens = tuple(SampledToken(token_id, -0.5) for token_id in token_ids)
    return Generation(request_id, tokens, reason, num_forced=len(tokens) - 1)


def add(scheduler: Scheduler, request_id: int, max_new_tokens: int = 8) -> None:
    request = make_request((request_id, 1, 2), max_new_tokens, is_constrained=True)
    scheduler.add(request_id, request, 0.0)


def test_the_next_step_computes_the_whole_run_in_blocks_of_its_own() -> None:
    scheduler = make_scheduler(block_size=2)
    add(scheduler, 0)
    run(scheduler, a_run(0, 7, 8, 9, 10))
    batch = step(scheduler)
    (update,) = batch.updates
    assert (update.chunk_len, len(update.block_ids)) == (4, 2)
    assert (batch.num_tokens, batch.num_decode_tokens) == (4, 4)
    assert answer(scheduler, batch, token(0, 11)) == (token(0, 11),)
    assert step(scheduler).updates == (), "a single token needs no word"


def test_a_run_that_does_not_fit_a_step_is_computed_in_parts_and_draws_after_the_last() -> None:
    scheduler = make_scheduler(max_step_tokens=3)
    add(scheduler, 0)
    run(scheduler, a_run(0, 7, 8, 9, 10))
    first = run(scheduler)
    second = run(scheduler, a_run(0, 11, 12))
    assert chunks(first)[0] == 3
    assert (second.num_tokens, chunks(second)[0]) == (1, None)
    assert chunks(step(scheduler))[0] == 2


def test_a_run_leaves_everyone_behind_it_a_token() -> None:
    scheduler = make_scheduler(max_step_tokens=6)
    add(scheduler, 0)
    scheduler.add(1, make_request((1, 2, 3)), 0.0)
    run(scheduler, a_run(0, 7, 8, 9, 10, 11, 12), token(1, 7))
    batch = step(scheduler)
    assert (batch.num_tokens, chunks(batch)[0]) == (6, 5)
    answer(scheduler, batch, token(1, 8))
    assert (step(scheduler).num_tokens, chunks(batch)[0]) == (2, 5)


def test_a_sequence_that_sits_a_step_out_keeps_its_token_of_the_next_ones() -> None:
    scheduler = make_scheduler(max_step_tokens=2, max_steps_in_flight=2)
    for request_id in (0, 1):
        scheduler.add(request_id, make_request((request_id,), is_constrained=True), 0.0)
    scheduler.add(2, make_request((3,)), 0.0)
    first = step(scheduler)
    assert [new.request_id for new in first.new] == [0, 1]
    for request_id in (0, 1):
        scheduler.pause(request_id, True)
    assert scheduler.schedule(0.0) is None
    scheduler.check_invariants()
    for request_id in (0, 1):
        scheduler.pause(request_id, False)
    answer(scheduler, first, a_run(0, 7, 8), token(1, 7))
    assert step(scheduler).num_tokens == 2


def test_a_step_made_before_a_run_is_known_has_room_for_it() -> None:
    scheduler = make_scheduler(block_size=4, max_steps_in_flight=2)
    add(scheduler, 0)
    scheduler.add(1, make_request((1, 2, 3)), 0.0)
    first = step(scheduler)
    second = step(scheduler)
    assert second.updates == (RunningUpdate(0, (2, 3), chunk_len=15),)
    answer(scheduler, first, a_run(0, 7, 8), token(1, 7))
    third = step(scheduler)
    assert answer(scheduler, second, a_run(0, 9), token(1, 8)) == (a_run(0, 9), token(1, 8))
    assert answer(scheduler, third, a_run(0, 10), token(1, 9)) == (a_run(0, 10), token(1, 9))
    scheduler.check_invariants()


def test_what_a_run_has_more_than_that_room_is_computed_next_and_draws_after_the_last() -> None:
    scheduler = make_scheduler(max_step_tokens=3, max_steps_in_flight=2)
    add(scheduler, 0)
    first = step(scheduler)
    second = step(scheduler)
    answer(scheduler, first, a_run(0, 7, 8, 9, 10))
    third = step(scheduler)
    assert (chunks(second)[0], third.num_tokens) == (3, 1)
    assert answer(scheduler, second) == ()
    assert answer(scheduler, third, token(0, 11)) == (token(0, 11),)
    scheduler.check_invariants()


def test_without_blocks_for_such_room_it_sits_the_step_out_and_nobody_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=1, max_steps_in_flight=2)
    scheduler.add(0, make_request((5, 6), 3), 0.0)
    add(scheduler, 1, max_new_tokens=2)
    first = step(scheduler)
    second = step(scheduler)
    assert (chunks(second)[1], scheduler.stats().num_preemptions) == (0, 0)
    answer(scheduler, first, token(0, 7), a_run(1, 8))
    scheduler.check_invariants()


def test_a_preempted_run_comes_back_with_its_output() -> None:
    scheduler = make_scheduler(num_blocks=6, block_size=1)
    scheduler.add(0, make_request((5,), 5), 0.0)
    scheduler.add(1, make_request((6,), 5, is_constrained=True), 0.0)
    run(scheduler, token(0, 7), a_run(1, 8, 9, 10))
    run(scheduler, token(0, 7), token(1, 11))
    batch = step(scheduler)
    assert (batch.dropped_ids, batch.running_ids) == ((1,), (0,))
    answer(scheduler, batch, token(0, 7))
    run(scheduler, token(0, 7))
    run(scheduler, token(0, 7, FinishReason.LENGTH))
    (new,) = step(scheduler).new
    assert new.token_ids == (6, 8, 9, 10, 11)
    scheduler.check_invariants()


@pytest.mark.parametrize(
    ("generation", "fault"),
    [
        (a_run(0, 7, 8, 9, 10), "4 tokens came where 3 were to be made at most"),
        (a_run(0, 7, 8, 9), "goes on after its last token, number 3"),
    ],
)
def test_a_run_past_the_limit_is_the_shards_fault(generation: Generation, fault: str) -> None:
    scheduler = make_scheduler()
    add(scheduler, 0, max_new_tokens=3)
    with pytest.raises(ShardFailed, match=fault):
        answer(scheduler, step(scheduler), generation)


def test_a_run_may_fill_the_limit_and_end_there() -> None:
    scheduler = make_scheduler()
    add(scheduler, 0, max_new_tokens=3)
    last = a_run(0, 7, 8, 9, reason=FinishReason.LENGTH)
    assert answer(scheduler, step(scheduler), last) == (last,)
    assert not scheduler.has_work


def test_an_empty_text_ends_without_a_token() -> None:
    scheduler = make_scheduler()
    add(scheduler, 0)
    end = Generation(0, (), FinishReason.CONSTRAINT_COMPLETE)
    assert answer(scheduler, step(scheduler), end) == (end,)
    assert not scheduler.has_work


def test_a_sequence_that_is_not_ready_waits_and_delays_no_other() -> None:
    scheduler = make_scheduler()
    scheduler.add(0, make_request((1, 2), is_constrained=True), 0.0, is_ready=False)
    scheduler.add(1, make_request((1, 3)), 0.0)
    assert [new.request_id for new in run(scheduler, token(1, 7)).new] == [1]
    assert scheduler.stats().num_waiting == 1
    scheduler.release(0)
    assert [new.request_id for new in step(scheduler).new] == [0]


def test_a_sequence_that_is_not_ready_may_leave() -> None:
    scheduler = make_scheduler()
    scheduler.add(0, make_request(), 0.0, is_ready=False)
    scheduler.finish(0)
    scheduler.release(0)
    assert not scheduler.has_work
    assert scheduler.schedule(0.0) is None
