"""The scheduler with its queue and its planner, one situation at a time."""

import pytest

from proto.contract import FinishReason, RunningUpdate
from router.request.errors import InvalidRequest
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from tests.router.scheduler.steps import (
    answer,
    chunks,
    make_scheduler,
    run,
    step,
    token,
)
from tests.strategies import make_request


class TestBudget:
    def test_decodes_come_first_then_prompts_being_computed_then_admissions(self) -> None:
        scheduler = make_scheduler(max_step_tokens=6)
        scheduler.add(0, make_request((1, 2, 3)), 0.0)
        scheduler.add(1, make_request(tuple(range(8))), 0.0)
        scheduler.add(2, make_request((5, 6, 7)), 0.0)
        first = run(scheduler, token(0, 9))
        assert chunks(first) == {0: 3, 1: 3}
        second = run(scheduler, token(0, 9), token(1, 9))
        assert second.running_ids == (0, 1)
        assert chunks(second) == {1: 5}
        assert (second.num_tokens, second.num_decode_tokens) == (6, 1)
        third = run(scheduler, token(0, 9), token(1, 9), token(2, 9))
        assert chunks(third) == {0: None, 1: None, 2: 3}
        assert (third.num_tokens, third.num_decode_tokens) == (5, 2)

    def test_a_chunk_of_a_prompt_draws_no_token(self) -> None:
        scheduler = make_scheduler(max_step_tokens=2)
        scheduler.add(0, make_request((1, 2, 3), max_new_tokens=1), 0.0)
        run(scheduler)
        batch = step(scheduler)
        assert answer(scheduler, batch, token(0, 4, FinishReason.LENGTH)) != ()
        assert not scheduler.has_work

    def test_no_more_run_than_the_batch_holds(self) -> None:
        scheduler = make_scheduler(max_batch_size=1)
        scheduler.add(0, make_request(max_new_tokens=1), 0.0)
        scheduler.add(1, make_request(max_new_tokens=1), 0.0)
        assert chunks(run(scheduler, token(0, 9, FinishReason.LENGTH))) == {0: 3}
        assert chunks(run(scheduler, token(1, 9, FinishReason.LENGTH))) == {1: 1}
        assert scheduler.schedule(0.0) is None

    @pytest.mark.parametrize("name", ["max_step_tokens", "max_batch_size", "max_steps_in_flight"])
    def test_a_limit_below_one_is_refused(self, name: str) -> None:
        limits = {"max_step_tokens": 1, "max_batch_size": 1, name: 0}
        with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
            SchedulerLimits(**limits)


class TestBlocks:
    def test_a_block_is_appended_when_a_decode_needs_one(self) -> None:
        scheduler = make_scheduler(block_size=2)
        scheduler.add(0, make_request((1, 2, 3)), 0.0)
        assert run(scheduler, token(0, 9)).new[0].block_ids == (0, 1)
        assert run(scheduler, token(0, 9)).updates == ()
        assert run(scheduler, token(0, 9)).updates == (RunningUpdate(0, (2,)),)

    def test_an_equal_prompt_is_shared_as_soon_as_it_is_computed(self) -> None:
        scheduler = make_scheduler(block_size=2)
        scheduler.add(0, make_request((1, 2, 3, 4, 5)), 0.0)
        run(scheduler, token(0, 9))
        scheduler.add(1, make_request((1, 2, 3, 4, 5)), 0.0)
        batch = run(scheduler, token(0, 9), token(1, 9))
        assert (batch.new[0].cached_len, batch.new[0].chunk_len) == (4, 1)
        assert batch.new[0].block_ids[:2] == (0, 1)
        stats = scheduler.stats()
        assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (10, 4)

    def test_the_next_turn_finds_the_answer_of_the_last(self) -> None:
        scheduler = make_scheduler(block_size=2)
        scheduler.add(0, make_request((1, 2, 3), max_new_tokens=3), 0.0)
        run(scheduler, token(0, 7))
        run(scheduler, token(0, 8))
        run(scheduler, token(0, 9, FinishReason.LENGTH))
        scheduler.add(1, make_request((1, 2, 3, 7, 8, 9, 4)), 0.0)
        # The last token's KV was never computed: (1 2) (3 7) are whole, (8 9) is not.
        assert step(scheduler).new[0].cached_len == 4

    def test_whoever_asks_for_prompt_logprobs_has_all_positions_computed(self) -> None:
        scheduler = make_scheduler(block_size=2)
        scheduler.add(0, make_request((1, 2, 3), max_new_tokens=1), 0.0)
        run(scheduler, token(0, 9, FinishReason.LENGTH))
        scheduler.add(1, make_request((1, 2, 3), prompt_logprobs=True), 0.0)
        assert step(scheduler).new[0].cached_len == 0

    def test_an_entry_alone_may_fill_the_pool_to_its_last_slot(self) -> None:
        scheduler = make_scheduler(num_blocks=3, block_size=2)
        scheduler.add(0, make_request((1, 2, 3, 4), max_new_tokens=1), 0.0)
        run(scheduler, token(0, 5, FinishReason.LENGTH))
        scheduler.add(1, make_request((1, 2, 3, 4), max_new_tokens=3), 0.0)
        run(scheduler, token(1, 5))
        run(scheduler, token(1, 6))
        run(scheduler, token(1, 7, FinishReason.LENGTH))
        assert scheduler.stats().num_preemptions == 0

    @pytest.mark.parametrize(
        ("request_", "fault"),
        [
            (make_request((1,) * 4, max_new_tokens=4), "need 4 KV blocks; the pool has 3"),
            (make_request(()), "the prompt is empty"),
            (make_request(max_new_tokens=0), "max_new_tokens is 0"),
        ],
    )
    def test_what_could_never_run_is_refused(self, request_: object, fault: str) -> None:
        scheduler = make_scheduler(num_blocks=3, block_size=2)
        with pytest.raises(InvalidRequest, match=fault):
            scheduler.add(0, request_, 0.0)  # type: ignore[arg-type]
        assert not scheduler.has_work


class TestAdmission:
    def test_nobody_is_admitted_behind_one_that_does_not_fit(self) -> None:
        scheduler = make_scheduler(num_blocks=6, block_size=1)
        scheduler.add(0, make_request((1, 2), max_new_tokens=1), 0.0)
        scheduler.add(1, make_request((3, 4, 5, 6, 7, 8), max_new_tokens=1), 0.0)
        scheduler.add(2, make_request((9,), max_new_tokens=1), 0.0)
        last = FinishReason.LENGTH
        admitted = [
            [new.request_id for new in run(scheduler, token(request_id, 9, last)).new]
            for request_id in range(3)
        ]
        assert admitted == [[0], [1], [2]]

    def test_a_running_entry_keeps_a_block_to_grow_into(self) -> None:
        scheduler = make_scheduler(num_blocks=5, block_size=1)
        scheduler.add(0, make_request((1, 2), max_new_tokens=3), 0.0)
        run(scheduler, token(0, 9))
        scheduler.add(1, make_request((3, 4), max_new_tokens=1), 0.0)
        batch = run(scheduler, token(0, 9))
        assert (batch.updates, batch.new) == ((RunningUpdate(0, (2,)),), ())
        batch = run(scheduler, token(0, 9, FinishReason.LENGTH))
        assert (batch.updates, batch.new) == ((RunningUpdate(0, (3,)),), ())
        assert [new.request_id for new in step(scheduler).new] == [1]

    def test_an_id_is_not_used_again_before_it_is_gone(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(), 0.0)
        with pytest.raises(ValueError, match="request 0 is not gone yet"):
            scheduler.add(0, make_request(), 0.0)
        run(scheduler, token(0, 9))
        scheduler.finish(0)
        with pytest.raises(ValueError, match="request 0 is not gone yet"):
            scheduler.add(0, make_request(), 0.0)


class TestUsage:
    def test_blocks_are_used_cached_or_free(self) -> None:
        scheduler = make_scheduler(num_blocks=8, block_size=2)
        scheduler.add(0, make_request((1, 2, 3), max_new_tokens=1), 0.0)
        scheduler.add(1, make_request((4, 5, 6)), 0.0)
        run(scheduler, token(0, 9, FinishReason.LENGTH), token(1, 9))
        stats = scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (1, 0)
        used_and_cached = (stats.num_blocks_used, stats.num_blocks_cached)
        assert (used_and_cached, stats.num_blocks_total) == ((2, 1), 8)


class _Counting(Scheduler):
    """Counts its checks."""

    num_checks = 0

    def check_invariants(self) -> None:
        self.num_checks += 1
        super().check_invariants()


@pytest.mark.parametrize(("checks_steps", "expected"), [(False, 0), (True, 2)])
def test_the_books_are_checked_with_each_answer_where_that_is_asked_for(
    checks_steps: bool, expected: int
) -> None:
    limits = SchedulerLimits(max_step_tokens=16, max_batch_size=8, max_steps_in_flight=1)
    scheduler = _Counting(limits, Allocator(16, 2, True), checks_steps=checks_steps)
    scheduler.add(0, make_request((1, 2, 3), max_new_tokens=2), 0.0)
    answer(scheduler, step(scheduler), token(0, 9))
    answer(scheduler, step(scheduler), token(0, 9, FinishReason.LENGTH))

    assert scheduler.num_checks == expected
