"""Who steps back when the pool is full, and comes back with its output."""

from proto.contract import FinishReason
from tests.router.scheduler.steps import answer, fill_pool, make_scheduler, run, step, token, tokens
from tests.strategies import make_request


class TestPreemption:
    def test_the_youngest_gives_its_blocks_to_the_oldest(self) -> None:
        scheduler, full = fill_pool(2)
        answer(scheduler, full, *tokens(2, 20))
        batch = run(scheduler, token(0, 30))
        assert (batch.running_ids, batch.dropped_ids) == ((0,), (1,))
        assert [update.request_id for update in batch.updates] == [0]
        assert scheduler.stats().num_preemptions == 1

    def test_nobody_younger_is_admitted_before_the_preempted_one(self) -> None:
        scheduler = make_scheduler(num_blocks=7, block_size=1)
        scheduler.add(0, make_request((1,)), 0.0)
        scheduler.add(1, make_request((5, 6, 7, 8), max_new_tokens=3), 0.0)
        run(scheduler, token(0, 10), token(1, 20))
        run(scheduler, token(0, 11), token(1, 21))
        scheduler.add(2, make_request((9,), max_new_tokens=1), 0.0)
        batch = run(scheduler, token(0, 12))
        assert (batch.dropped_ids, batch.new) == ((1,), ())
        assert scheduler.stats().num_blocks_used == 3
        assert run(scheduler, token(0, 13, FinishReason.LENGTH)).new == ()
        assert [new.request_id for new in step(scheduler).new] == [1, 2]

    def test_it_resumes_with_its_output(self) -> None:
        scheduler, full = fill_pool(2)
        answer(scheduler, full, *tokens(2, 20))
        run(scheduler, token(0, 30))
        run(scheduler, token(0, 40, FinishReason.LENGTH))
        batch = run(scheduler, token(1, 31))
        (new,) = batch.new
        assert new.token_ids == (1, 11, 21)
        assert (new.cached_len, new.chunk_len) == (0, 3)
        run(scheduler, token(1, 41, FinishReason.LENGTH))
        assert scheduler.stats().num_blocks_used == 0

    def test_one_that_cannot_grow_beside_its_elders_steps_back_by_itself(self) -> None:
        scheduler = make_scheduler(num_blocks=5, block_size=1)
        scheduler.add(0, make_request((1,), max_new_tokens=3), 0.0)
        scheduler.add(1, make_request((5, 6), max_new_tokens=4), 0.0)
        run(scheduler, token(0, 10), token(1, 20))
        run(scheduler, token(0, 11), token(1, 21))
        batch = run(scheduler, token(0, 12, FinishReason.LENGTH))
        assert (batch.running_ids, batch.dropped_ids) == ((0,), (1,))
        (new,) = run(scheduler, token(1, 22)).new
        assert new.token_ids == (5, 6, 20, 21)
        assert (new.cached_len, new.chunk_len) == (2, 2)

    def test_a_preempted_entry_can_be_cancelled(self) -> None:
        scheduler, full = fill_pool(2)
        answer(scheduler, full, *tokens(2, 20))
        run(scheduler, token(0, 30))
        scheduler.finish(1)
        run(scheduler, token(0, 40, FinishReason.LENGTH))
        assert not scheduler.has_work
