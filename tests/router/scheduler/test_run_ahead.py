"""Steps that are made before the last one's tokens are known."""

from proto.contract import FinishReason, StepResult
from tests.router.scheduler.steps import answer, fill_pool, make_scheduler, step, token, tokens
from tests.strategies import make_request


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
        assert scheduler.apply(StepResult(second.step_id, (), ()), 0.0) == ()
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
