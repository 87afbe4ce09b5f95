"""What a key's requests took: tokens by kind, and time by share."""

from proto.contract import FinishReason, Generation, SampledToken, StepResult
from router.request.request import NO_WORK, ApiKey, Work
from router.scheduler.fair_shares import KeyUse
from router.scheduler.scheduler import Scheduler
from tests.router.scheduler.steps import make_scheduler
from tests.strategies import make_request

ONE = ApiKey("one")
TWO = ApiKey("two")


def step(scheduler: Scheduler, begun_s: float, answered_s: float, *ended_ids: int) -> None:
    """A step of so long, in which each request gets a token, and these their last."""
    batch = scheduler.schedule(begun_s)
    assert batch is not None
    held = [*batch.running_ids, *(new.request_id for new in batch.new)]
    generations = [
        Generation(
            request_id,
            (SampledToken(1, -0.5),),
            FinishReason.EOS if request_id in ended_ids else None,
        )
        for request_id in held
    ]
    remaining = tuple(request_id for request_id in held if request_id not in ended_ids)
    scheduler.apply(StepResult(batch.step_id, tuple(generations), remaining), answered_s)


def test_tokens_and_time_are_counted_when_a_request_ends() -> None:
    scheduler = make_scheduler(block_size=4)
    scheduler.add(0, make_request((0, 1, 0), max_new_tokens=9, key=ONE), 0.0)
    step(scheduler, 10.0, 13.0)
    assert scheduler.key_uses() == {}
    step(scheduler, 13.0, 14.0, 0)

    # Two tokens of output, of which the last was not computed; a block for four tokens.
    expected = KeyUse(1, 3, 0, 2, Work(shard_s=4.0, block_s=4.0))
    assert scheduler.key_uses() == {"one": expected}


def test_a_steps_time_is_shared_by_tokens() -> None:
    scheduler = make_scheduler(block_size=4)
    scheduler.add(0, make_request((0, 1, 0), key=ONE), 0.0)
    scheduler.add(1, make_request((1,), key=TWO), 0.0)
    step(scheduler, 10.0, 14.0, 0, 1)

    uses = scheduler.key_uses()
    assert (uses["one"].work.shard_s, uses["two"].work.shard_s) == (3.0, 1.0)


def test_a_request_s_work_is_known_while_it_runs() -> None:
    scheduler = make_scheduler(block_size=4)
    work = scheduler.add(0, make_request((0, 1, 0), max_new_tokens=9), 0.0)
    assert work() == NO_WORK
    step(scheduler, 10.0, 13.0)
    assert work() == Work(shard_s=3.0, block_s=3.0)


def test_what_is_computed_again_is_wasted() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=1, prefix_caching=False)
    for request_id in (0, 1):
        scheduler.add(request_id, make_request((0,), max_new_tokens=4, key=ONE), 0.0)
    step(scheduler, 0.0, 1.0)
    step(scheduler, 1.0, 2.0)
    assert scheduler.stats().num_preemptions == 0
    step(scheduler, 2.0, 3.0)
    step(scheduler, 3.0, 4.0, 0)
    step(scheduler, 4.0, 5.0)
    step(scheduler, 5.0, 6.0, 1)

    use = scheduler.key_uses()["one"]
    assert scheduler.stats().num_preemptions == 1
    assert (use.num_sequences, use.num_generated_tokens, use.work.num_wasted) == (2, 8, 2)


def test_requests_without_a_key_are_not_counted() -> None:
    scheduler = make_scheduler()
    scheduler.add(0, make_request(), 0.0)
    step(scheduler, 0.0, 1.0, 0)

    assert scheduler.key_uses() == {}
