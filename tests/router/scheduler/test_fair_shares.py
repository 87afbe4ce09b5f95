"""Several API keys on one server: who is served by share, and what their requests took."""

from collections import Counter

import pytest

from proto.contract import FinishReason, Generation, SampledToken, StepResult
from router.request.request import NO_WORK, ApiKey, Work
from router.scheduler.fair_shares import FairShares, KeyUse
from router.scheduler.scheduler import Scheduler
from tests.router.scheduler.steps import answer, make_scheduler, run, step, token
from tests.strategies import make_request

HOG = ApiKey("hog")
LIGHT = ApiKey("light")
HEAVY = ApiKey("heavy", weight=3.0)


def add(
    scheduler: Scheduler, request_id: int, key: ApiKey, prompt_len: int = 1, new: int = 9
) -> None:
    prompt_ids = tuple([request_id % 2] * prompt_len)
    scheduler.add(request_id, make_request(prompt_ids, new, key=key), 0.0)


def new_ids(scheduler: Scheduler) -> list[int]:
    batch = step(scheduler)
    answer(scheduler, batch, *(token(each.request_id, 1) for each in batch.new))
    return [new.request_id for new in batch.new]


def serve(scheduler: Scheduler, num_steps: int) -> list[int]:
    """So many steps, a token for each request that runs; who got them."""
    got: list[int] = []
    for _ in range(num_steps):
        batch = step(scheduler)
        running = [*batch.running_ids, *(new.request_id for new in batch.new)]
        answer(scheduler, batch, *(token(request_id, 1) for request_id in running))
        got += running
    return got


def test_one_that_comes_last_enters_before_the_rest_of_another_key() -> None:
    scheduler = make_scheduler(num_blocks=64, max_batch_size=8, max_step_tokens=8)
    for request_id in range(8):
        add(scheduler, request_id, HOG, prompt_len=4)
    add(scheduler, 8, LIGHT, prompt_len=4)

    assert [new.request_id for new in step(scheduler).new] == [0, 8]


def test_the_keys_alternate() -> None:
    scheduler = make_scheduler(num_blocks=64, max_batch_size=8, max_step_tokens=8)
    for request_id, key in enumerate([HOG] * 4 + [LIGHT] * 4):
        add(scheduler, request_id, key)

    assert [new.request_id for new in step(scheduler).new] == [0, 4, 1, 5, 2, 6, 3, 7]


def test_a_key_pays_for_what_was_computed_and_not_for_the_room_that_it_had() -> None:
    scheduler = make_scheduler(num_blocks=64, max_step_tokens=64, max_drafts=7)
    # A step has room for drafts of one without a constraint; nothing is guessed.
    add(scheduler, 0, LIGHT)
    prompt_ids = (1,) * 4
    scheduler.add(1, make_request(prompt_ids, 9, key=HOG, is_constrained=True), 0.0)
    serve(scheduler, 3)
    add(scheduler, 2, HOG)
    add(scheduler, 3, LIGHT)

    assert [new.request_id for new in step(scheduler).new] == [3, 2]


def test_a_full_batch_gives_up_its_youngest_for_a_key_that_runs_nothing() -> None:
    scheduler = make_scheduler(num_blocks=64, max_batch_size=4)
    for request_id in range(4):
        add(scheduler, request_id, HOG)
    serve(scheduler, 1)
    add(scheduler, 4, LIGHT)

    batch = step(scheduler)

    assert (batch.running_ids, batch.dropped_ids) == ((0, 1, 2), (3,))
    assert [new.request_id for new in batch.new] == [4]


def test_the_exchange_ends_when_each_has_its_share() -> None:
    scheduler = make_scheduler(num_blocks=99, max_batch_size=4)
    for request_id, key in enumerate([HOG] * 6 + [LIGHT] * 6):
        add(scheduler, request_id, key, new=30)
    serve(scheduler, 1)
    num_preemptions = scheduler.stats().num_preemptions

    got = Counter(request_id < 6 for request_id in serve(scheduler, 10))

    assert got[True] == got[False] == 20
    assert scheduler.stats().num_preemptions == num_preemptions


def test_a_heavier_key_runs_more() -> None:
    scheduler = make_scheduler(num_blocks=99, max_batch_size=4)
    for request_id, key in enumerate([HOG] * 6 + [HEAVY] * 6):
        add(scheduler, request_id, key, new=30)

    got = Counter(request_id < 6 for request_id in serve(scheduler, 10))

    assert (got[True], got[False]) == (10, 30)


def test_a_pool_full_of_another_key_is_shared() -> None:
    scheduler = make_scheduler(num_blocks=14, block_size=1, prefix_caching=False)
    for request_id in (0, 1):
        add(scheduler, request_id, HOG, prompt_len=5, new=7)
    serve(scheduler, 2)
    add(scheduler, 2, LIGHT, prompt_len=4, new=2)

    got = serve(scheduler, 2)

    assert got == [0, 1, 0, 2]
    assert scheduler.stats().num_preemptions == 1


def test_the_key_that_runs_most_makes_room_for_what_grows() -> None:
    scheduler = make_scheduler(num_blocks=16, block_size=1, prefix_caching=False)
    for request_id in (0, 1, 2):
        add(scheduler, request_id, HOG, prompt_len=1, new=9)
    serve(scheduler, 2)
    add(scheduler, 3, LIGHT, prompt_len=1, new=9)
    assert serve(scheduler, 2)[-4:] == [0, 1, 2, 3]

    got = serve(scheduler, 1)

    # Of 16 blocks 14 were taken, and each one wants another; that of the light key is the youngest.
    assert got == [0, 1, 3]


def test_a_prompt_comes_before_the_rest_of_another_keys_long_one() -> None:
    scheduler = make_scheduler(num_blocks=64, max_step_tokens=8)
    add(scheduler, 0, HOG, prompt_len=40)
    run(scheduler)
    add(scheduler, 1, LIGHT, prompt_len=6)

    batch = step(scheduler)

    assert [(new.request_id, new.chunk_len) for new in batch.new] == [(1, 6)]
    assert [(each.request_id, each.chunk_len) for each in batch.updates] == [(0, 2)]


def test_a_key_that_had_nothing_to_do_has_saved_nothing_up() -> None:
    scheduler = make_scheduler(num_blocks=99, max_batch_size=1, max_step_tokens=1)
    add(scheduler, 0, LIGHT, new=1)
    run(scheduler, token(0, 1, FinishReason.LENGTH))
    for request_id in (1, 2, 3):
        add(scheduler, request_id, HOG, new=1)
    run(scheduler, token(1, 1, FinishReason.LENGTH))
    for request_id in (4, 5, 6):
        add(scheduler, request_id, LIGHT, new=1)

    entered = []
    for _ in range(5):
        (new,) = (batch := step(scheduler)).new
        answer(scheduler, batch, token(new.request_id, 1, FinishReason.LENGTH))
        entered.append("hog" if new.request_id < 4 else "light")

    assert sorted(entered[:2]) == sorted(entered[2:4]) == ["hog", "light"]


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_counters_are_of_those_that_have_something_to_do(names: tuple[str, ...]) -> None:
    shares = FairShares()
    for name in names:
        shares.arrive(ApiKey(name), 0.0)
    assert shares.is_shared == (len(names) > 1)
    for name in names:
        shares.leave(ApiKey(name))
    assert not shares.is_shared


def test_an_overserved_keys_prompts_leave_room_while_another_key_may_come_back() -> None:
    scheduler = make_scheduler(num_blocks=4096, max_step_tokens=1024, prefix_caching=False)
    chunk_lens = []
    for request_id, key in enumerate([LIGHT, HOG]):
        add(scheduler, request_id, key, prompt_len=300 + 600 * request_id, new=1)
        batch = run(scheduler, token(request_id, 1, FinishReason.LENGTH))
        chunk_lens += [new.chunk_len for new in batch.new]
    add(scheduler, 2, HOG, prompt_len=900)
    chunk_lens += [new.chunk_len for new in step(scheduler).new]

    assert chunk_lens == [300, 900, 64]


def test_an_overserved_keys_prompt_stands_still_while_another_keys_is_computed() -> None:
    scheduler = make_scheduler(num_blocks=4096, max_step_tokens=1024, prefix_caching=False)
    for request_id, key in enumerate([LIGHT, HOG]):
        add(scheduler, request_id, key, prompt_len=300 + 600 * request_id, new=1)
        run(scheduler, token(request_id, 1, FinishReason.LENGTH))
    add(scheduler, 2, HOG, prompt_len=100)
    run(scheduler)
    add(scheduler, 3, LIGHT, prompt_len=50)
    together = run(scheduler, token(3, 1))
    after = run(scheduler, token(2, 1), token(3, 2))

    assert [new.request_id for new in together.new] == [3]
    assert together.updates == ()
    assert [update.chunk_len for update in after.updates if update.request_id == 2] == [36]


ONE = ApiKey("one")
TWO = ApiKey("two")


def timed_step(scheduler: Scheduler, begun_s: float, answered_s: float, *ended_ids: int) -> None:
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
    timed_step(scheduler, 10.0, 13.0)
    assert scheduler.key_uses() == {}
    timed_step(scheduler, 13.0, 14.0, 0)

    # Two tokens of output, of which the last was not computed; a block for four tokens.
    expected = KeyUse(1, 3, 0, 2, Work(shard_s=4.0, block_s=4.0))
    assert scheduler.key_uses() == {"one": expected}


def test_a_steps_time_is_shared_by_tokens() -> None:
    scheduler = make_scheduler(block_size=4)
    scheduler.add(0, make_request((0, 1, 0), key=ONE), 0.0)
    scheduler.add(1, make_request((1,), key=TWO), 0.0)
    timed_step(scheduler, 10.0, 14.0, 0, 1)

    uses = scheduler.key_uses()
    assert (uses["one"].work.shard_s, uses["two"].work.shard_s) == (3.0, 1.0)


def test_a_request_s_work_is_known_while_it_runs() -> None:
    scheduler = make_scheduler(block_size=4)
    work = scheduler.add(0, make_request((0, 1, 0), max_new_tokens=9), 0.0)
    assert work() == NO_WORK
    timed_step(scheduler, 10.0, 13.0)
    assert work() == Work(shard_s=3.0, block_s=3.0)


def test_what_is_computed_again_is_wasted() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=1, prefix_caching=False)
    for request_id in (0, 1):
        scheduler.add(request_id, make_request((0,), max_new_tokens=4, key=ONE), 0.0)
    timed_step(scheduler, 0.0, 1.0)
    timed_step(scheduler, 1.0, 2.0)
    assert scheduler.stats().num_preemptions == 0
    timed_step(scheduler, 2.0, 3.0)
    timed_step(scheduler, 3.0, 4.0, 0)
    timed_step(scheduler, 4.0, 5.0)
    timed_step(scheduler, 5.0, 6.0, 1)

    use = scheduler.key_uses()["one"]
    assert scheduler.stats().num_preemptions == 1
    assert (use.num_sequences, use.num_generated_tokens, use.work.num_wasted) == (2, 8, 2)


def test_requests_without_a_key_are_not_counted() -> None:
    scheduler = make_scheduler()
    scheduler.add(0, make_request(), 0.0)
    timed_step(scheduler, 0.0, 1.0, 0)

    assert scheduler.key_uses() == {}
