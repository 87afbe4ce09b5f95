"""How sequences end: by the router, by a failed row, by a failed step."""

import pytest

from proto.contract import FinishReason, Generation, SampledToken, StepResult
from router.request.errors import ShardFailed
from tests.router.scheduler.steps import (
    answer,
    fill_pool,
    make_scheduler,
    run,
    step,
    token,
)
from tests.strategies import make_request


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
