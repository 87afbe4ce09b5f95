"""The scheduler, one situation at a time: requests, steps ahead of their answers, and ends."""

from typing import Any

import pytest

from proto.contract import FinishReason, Generation, RunningUpdate, SampledToken, StepResult
from router.request.errors import InvalidRequest, ShardFailed
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from tests.router.scheduler.steps import (
    answer,
    chunks,
    fill_pool,
    make_scheduler,
    run,
    step,
    token,
    tokens,
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
        limits: dict[str, Any] = {"max_step_tokens": 1, "max_batch_size": 1, name: 0}
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


class TestRunAhead:
    def test_the_next_step_is_made_before_the_last_ones_token_is_known(self) -> None:
        scheduler = make_scheduler(max_steps_in_flight=2)
        scheduler.add(0, make_request((1, 2, 3)), 0.0)
        first = step(scheduler)
        second = step(scheduler)
        assert (second.running_ids, second.num_decode_tokens) == ((0,), 1)
        assert scheduler.schedule(0.0) is None
        assert answer(scheduler, first, token(0, 7)) == (token(0, 7),)
        assert answer(scheduler, second, token(0, 8)) == (token(0, 8),)
        scheduler.check_invariants()

    def test_no_token_is_drawn_beyond_the_limit(self) -> None:
        scheduler = make_scheduler(max_steps_in_flight=3)
        scheduler.add(0, make_request(max_new_tokens=2), 0.0)
        first = step(scheduler)
        second = step(scheduler)
        assert scheduler.schedule(0.0) is None
        answer(scheduler, first, token(0, 7))
        assert scheduler.schedule(0.0) is None
        answer(scheduler, second, token(0, 8, FinishReason.LENGTH))
        assert not scheduler.has_work

    def test_a_late_token_is_cut_and_the_blocks_stay_until_its_step_is_answered(self) -> None:
        scheduler = make_scheduler(max_steps_in_flight=2)
        scheduler.add(0, make_request((1, 2, 3)), 0.0)
        first = step(scheduler)
        second = step(scheduler)
        answer(scheduler, first, token(0, 7, FinishReason.EOS))
        assert scheduler.stats().num_blocks_used == 2
        assert scheduler.schedule(0.0) is None
        assert answer(scheduler, second, token(0, 8)) == ()
        assert scheduler.stats().num_blocks_used == 0
        assert not scheduler.has_work

    def test_a_shard_that_skips_the_late_row_is_right_too(self) -> None:
        scheduler = make_scheduler(max_steps_in_flight=2)
        scheduler.add(0, make_request(), 0.0)
        first = step(scheduler)
        second = step(scheduler)
        answer(scheduler, first, token(0, 7, FinishReason.EOS))
        assert scheduler.apply(StepResult(second.step_id, (), ()), 0.0) == ([], [])
        assert not scheduler.has_work

    def test_while_blocks_are_on_their_way_back_one_is_preempted_and_not_all(self) -> None:
        scheduler, full = fill_pool(3, max_steps_in_flight=2)
        assert scheduler.schedule(0.0) is None
        assert scheduler.stats().num_preemptions == 1
        late = tokens(3, 20)
        assert answer(scheduler, full, *late) == tuple(late), "the preempted one's token counts"
        batch = step(scheduler)
        assert (batch.running_ids, batch.dropped_ids) == ((0, 1), (2,))
        assert len(batch.updates) == 2
        scheduler.check_invariants()

    def test_a_preempted_entry_may_end_by_a_token_in_flight(self) -> None:
        scheduler, full = fill_pool(3, max_steps_in_flight=2)
        assert scheduler.schedule(0.0) is None
        last = token(2, 22, FinishReason.EOS)
        answer(scheduler, full, token(0, 20), token(1, 21), last)
        assert scheduler.stats().num_waiting == 0
        assert step(scheduler).dropped_ids == ()

    def test_a_preempted_entry_is_not_named_as_new_while_it_is_to_be_dropped(self) -> None:
        scheduler, full = fill_pool(2, max_steps_in_flight=2)
        assert scheduler.schedule(0.0) is None
        answer(scheduler, full, token(0, 20, FinishReason.EOS), token(1, 21))
        batch = step(scheduler)
        assert (batch.new, batch.dropped_ids, batch.has_work) == ((), (1,), False)
        (new,) = step(scheduler).new
        assert new.token_ids == (1, 11, 21)

    def test_a_spent_entry_needs_no_drop_when_the_router_ends_it(self) -> None:
        scheduler = make_scheduler(max_steps_in_flight=2)
        scheduler.add(0, make_request(max_new_tokens=1), 0.0)
        scheduler.add(1, make_request(), 0.0)
        first = step(scheduler)
        scheduler.finish(0)
        assert step(scheduler).dropped_ids == ()
        counted = answer(scheduler, first, token(0, 7, FinishReason.LENGTH), token(1, 7))
        assert counted == (token(1, 7),)


class TestFinish:
    def test_a_waiting_entry_leaves_no_trace(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(), 0.0)
        scheduler.finish(0)
        assert not scheduler.has_work
        assert scheduler.schedule(0.0) is None

    def test_a_running_entry_is_dropped_by_the_next_step(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(), 0.0)
        scheduler.add(1, make_request(), 0.0)
        run(scheduler, token(0, 9), token(1, 9))
        scheduler.finish(0)
        batch = run(scheduler, token(1, 9))
        assert (batch.running_ids, batch.dropped_ids) == ((1,), (0,))
        assert run(scheduler, token(1, 9)).dropped_ids == ()

    def test_the_last_one_is_dropped_by_a_step_without_work(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(), 0.0)
        run(scheduler, token(0, 9))
        scheduler.finish(0)
        assert scheduler.stats().num_blocks_used == 0
        batch = run(scheduler)
        assert (batch.has_work, batch.dropped_ids) == (False, (0,))
        assert not scheduler.has_work

    def test_a_token_that_comes_after_it_is_cut(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(), 0.0)
        batch = step(scheduler)
        scheduler.finish(0)
        assert scheduler.stats().num_blocks_used == 2, "the step in flight may write them"
        assert answer(scheduler, batch, token(0, 9)) == ()
        assert scheduler.stats().num_blocks_used == 0
        assert step(scheduler).dropped_ids == (0,)

    def test_one_that_the_shard_ended_meanwhile_is_not_dropped(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(), 0.0)
        batch = step(scheduler)
        scheduler.finish(0)
        assert answer(scheduler, batch, token(0, 9, FinishReason.EOS)) == ()
        assert not scheduler.has_work

    def test_an_unknown_or_ended_id_is_no_matter(self) -> None:
        scheduler = make_scheduler()
        scheduler.finish(5)
        scheduler.add(0, make_request(max_new_tokens=1), 0.0)
        run(scheduler, token(0, 9, FinishReason.LENGTH))
        scheduler.finish(0)
        assert not scheduler.has_work

    def test_entries_past_their_deadline_are_named_until_they_end(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(deadline_s=5.0), 0.0)
        scheduler.add(1, make_request(), 0.0)
        assert scheduler.expired(4.9) == ()
        assert scheduler.expired(5.0) == (0,)
        scheduler.finish(0)
        assert scheduler.expired(6.0) == ()


class TestRows:
    def test_a_failed_row_ends_its_entry_alone_and_leaves_nothing_in_the_cache(self) -> None:
        scheduler = make_scheduler(block_size=2)
        scheduler.add(0, make_request((1, 2, 3)), 0.0)
        scheduler.add(1, make_request((5, 6, 7)), 0.0)
        run(scheduler, token(0, 9), token(1, 9))
        failed = Generation(0, error="not a number")
        batch = step(scheduler)
        assert answer(scheduler, batch, failed, token(1, 9)) == (failed, token(1, 9))
        scheduler.add(2, make_request((1, 2, 3)), 0.0)
        batch = run(scheduler, token(1, 9), token(2, 9))
        assert (batch.running_ids, batch.dropped_ids) == ((1,), ())
        assert batch.new[0].cached_len == 0

    def test_prompt_logprobs_are_not_reported_again_after_a_preemption(self) -> None:
        scheduler = make_scheduler(num_blocks=5, block_size=1)
        scheduler.add(0, make_request((1,), max_new_tokens=3), 0.0)
        scheduler.add(1, make_request((5, 6), prompt_logprobs=True), 0.0)
        scored = Generation(1, (SampledToken(20, -0.5),), prompt_logprobs=(-1.5,))
        batch = step(scheduler)
        assert answer(scheduler, batch, token(0, 10), scored) == (token(0, 10), scored)
        run(scheduler, token(0, 11), token(1, 21))
        assert run(scheduler, token(0, 12, FinishReason.LENGTH)).dropped_ids == (1,)
        batch = step(scheduler)
        assert (batch.new[0].token_ids, batch.new[0].cached_len) == ((5, 6, 20, 21), 0)
        again = Generation(1, (SampledToken(22, -0.5),), prompt_logprobs=(-1.5,))
        assert answer(scheduler, batch, again) == (token(1, 22),)

    def test_an_answer_that_contradicts_the_schedule_changes_nothing(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request(), 0.0)
        batch = step(scheduler)
        with pytest.raises(ShardFailed, match="which took no part"):
            answer(scheduler, batch, token(0, 9), token(4, 9))
        assert answer(scheduler, batch, token(0, 9)) == (token(0, 9),)

    def test_an_answer_to_no_step_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no step is"):
            make_scheduler().apply(StepResult(1, (), ()), 0.0)


class TestFail:
    def test_what_ran_waits_again_in_its_place_and_is_computed_from_what_is_known(self) -> None:
        scheduler = make_scheduler(max_batch_size=2)
        for request_id in range(3):
            scheduler.add(request_id, make_request((request_id,)), 0.0)
        run(scheduler, token(0, 8), token(1, 9))
        step(scheduler)
        assert scheduler.fail() == ()
        stats = scheduler.stats()
        assert (stats.num_waiting, stats.num_running, stats.num_blocks_used) == (3, 0, 0)
        assert [scheduler.place(request_id) for request_id in range(3)] == [1, 2, 3]
        batch = run(scheduler, token(0, 8), token(1, 9))
        assert [(new.request_id, new.token_ids) for new in batch.new] == [(0, (0, 8)), (1, (1, 9))]
        assert batch.dropped_ids == ()

    def test_the_prefix_cache_is_void(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(0, make_request((1, 2, 3), max_new_tokens=1), 0.0)
        run(scheduler, token(0, 9, FinishReason.LENGTH))
        assert scheduler.fail() == ()
        scheduler.add(1, make_request((1, 2, 3)), 0.0)
        assert step(scheduler).new[0].cached_len == 0

    def test_a_preempted_entry_goes_on_from_the_tokens_that_are_known(self) -> None:
        scheduler, _ = fill_pool(3, max_steps_in_flight=2)
        assert scheduler.schedule(0.0) is None
        assert scheduler.fail() == ()
        scheduler.check_invariants()
        batch = step(scheduler)
        assert batch.new[0].token_ids == (0, 10)
        assert batch.dropped_ids == ()

    def test_a_prompt_half_computed_begins_anew(self) -> None:
        scheduler = make_scheduler(max_step_tokens=4)
        scheduler.add(0, make_request(tuple(range(10))), 0.0)
        run(scheduler)
        scheduler.fail()
        new = step(scheduler).new[0]
        assert (new.cached_len, new.chunk_len) == (0, 4)

    def test_those_of_two_failures_in_a_row_are_computed_alone_and_then_together(self) -> None:
        scheduler = make_scheduler()
        for request_id in range(3):
            scheduler.add(request_id, make_request((request_id,), max_new_tokens=9), 0.0)
        for _ in range(2):
            step(scheduler)
            assert scheduler.fail() == ()
        for request_id in range(3):
            batch = run(scheduler, token(request_id, 9))
            assert [new.request_id for new in batch.new] == [request_id]
            assert [update.chunk_len for update in batch.updates] == [0] * request_id
        batch = run(scheduler, token(0, 9), token(1, 9), token(2, 9))
        assert batch.num_tokens == 3

    def test_one_with_which_alone_the_shards_fail_ends_and_the_others_go_on(self) -> None:
        scheduler = make_scheduler()
        for request_id in range(2):
            scheduler.add(request_id, make_request((request_id,), max_new_tokens=9), 0.0)
        for _ in range(2):
            step(scheduler)
            scheduler.fail()
        assert [new.request_id for new in step(scheduler).new] == [0]
        assert scheduler.fail() == (0,)
        scheduler.check_invariants()
        assert [new.request_id for new in run(scheduler, token(1, 9)).new] == [1]

    def test_failures_with_progress_between_them_are_no_reason_to_suspect_anyone(self) -> None:
        scheduler = make_scheduler(num_blocks=99, max_step_tokens=99)
        for request_id in range(2):
            scheduler.add(request_id, make_request((request_id,), max_new_tokens=90), 0.0)
        for _ in range(9):
            assert run(scheduler, token(0, 9), token(1, 9)).num_tokens >= 2
            assert run(scheduler, token(0, 9), token(1, 9)).num_tokens == 2
            step(scheduler)
            assert scheduler.fail() == ()

    def test_a_suspect_whose_reader_is_behind_holds_up_nobody(self) -> None:
        scheduler = make_scheduler(max_steps_in_flight=2)
        for request_id in range(2):
            scheduler.add(request_id, make_request((request_id,), max_new_tokens=9), 0.0)
        for _ in range(2):
            step(scheduler)
            step(scheduler)
            scheduler.fail()
        scheduler.pause(0, True)
        computed = []
        for _ in range(4):
            batch = step(scheduler)
            idle = {update.request_id for update in batch.updates if update.chunk_len == 0}
            ids = {*batch.running_ids, *(new.request_id for new in batch.new)} - idle
            computed.append(ids)
            answer(scheduler, batch, *(token(request_id, 9) for request_id in ids))
        assert computed == [{0}, {0}, {1}, {1}]

    def test_what_was_in_no_step_is_not_suspected(self) -> None:
        scheduler = make_scheduler(max_batch_size=1)
        for request_id in range(2):
            scheduler.add(request_id, make_request((request_id,), max_new_tokens=9), 0.0)
        for _ in range(3):
            step(scheduler)
            scheduler.fail()
        assert scheduler.place(1) == 1
        scheduler.add(2, make_request((2,)), 0.0)
        assert len(step(scheduler).new) == 1
