"""Requests of which a shard may compute draft tokens."""

import pytest

from proto.contract import Generation, SampledToken
from router.request.errors import ShardFailed
from router.scheduler.scheduler import Scheduler
from tests.router.scheduler.steps import answer, chunks, make_scheduler, run, step, token
from tests.strategies import make_request


def accepted(request_id: int, *token_ids: int, num_drafts: int) -> Generation:
    """All tokens but the last were guessed."""
    tokens = tuple(SampledToken(token_id, -0.5) for token_id in token_ids)
    return Generation(request_id, tokens, num_drafts=num_drafts, num_accepted=len(tokens) - 1)


def decoding(num_requests: int, num_blocks: int = 256, max_new_tokens: int = 40) -> Scheduler:
    """Each has one token of output; of each up to three drafts are computed in a step."""
    scheduler = make_scheduler(num_blocks, max_step_tokens=64, max_batch_size=40, max_drafts=3)
    for request_id in range(num_requests):
        scheduler.add(request_id, make_request((request_id % 2, 1), max_new_tokens), 0.0)
    run(scheduler, *(token(request_id, 7) for request_id in range(num_requests)))
    return scheduler


def test_a_step_has_blocks_and_room_for_drafts() -> None:
    batch = step(decoding(1))
    (update,) = batch.updates
    assert (update.chunk_len, len(update.block_ids)) == (4, 2)
    assert (batch.num_tokens, batch.num_decode_tokens) == (4, 4)


@pytest.mark.parametrize(
    ("num_requests", "chunk_len"), [(2, 4), (8, 4), (9, 3), (16, 2), (17, None), (30, None)]
)
def test_the_more_decode_the_fewer_drafts_each_has(num_requests: int, chunk_len: int) -> None:
    batch = step(decoding(num_requests))
    assert set(chunks(batch).values()) <= {chunk_len}
    assert batch.num_tokens == num_requests * (chunk_len or 1)


def test_what_was_accepted_is_computed_and_the_next_step_goes_on_behind_it() -> None:
    scheduler = decoding(1)
    first = step(scheduler)
    answer(scheduler, first, accepted(0, 8, 9, 10, num_drafts=3))
    second = step(scheduler)
    # Six tokens are known and five computed; the next four end in the fifth block of two.
    (update,) = second.updates
    assert (update.chunk_len, len(update.block_ids)) == (4, 2)
    scheduler.check_invariants()


def test_without_blocks_for_drafts_there_are_none_and_nobody_is_preempted() -> None:
    scheduler = decoding(2, num_blocks=5, max_new_tokens=6)
    first, second = step(scheduler).updates
    assert (first.chunk_len, len(first.block_ids)) == (4, 2)
    assert (second.chunk_len, len(second.block_ids)) == (None, 1)
    assert scheduler.stats().num_preemptions == 0


def test_a_request_with_a_constraint_has_no_drafts() -> None:
    scheduler = make_scheduler(max_drafts=3)
    scheduler.add(0, make_request((1, 2), is_constrained=True), 0.0)
    run(scheduler, token(0, 7))
    assert step(scheduler).num_tokens == 1


def test_wasted_drafts_are_the_requests_own_work() -> None:
    scheduler = make_scheduler(num_blocks=64, max_drafts=3)
    work = scheduler.add(0, make_request((1, 2), 40), 0.0)
    run(scheduler, token(0, 7))
    run(scheduler, accepted(0, 8, 9, num_drafts=3))
    assert work().num_wasted == 2


@pytest.mark.parametrize(
    ("generation", "fault"),
    [
        (accepted(0, 8, num_drafts=3)._replace(num_accepted=1), "1 accepted drafts came with 1"),
        (token(0, 8)._replace(num_accepted=2), "2 accepted drafts came with 1"),
    ],
)
def test_more_accepted_drafts_than_tokens_are_the_shards_fault(
    generation: Generation, fault: str
) -> None:
    scheduler = decoding(1)
    with pytest.raises(ShardFailed, match=fault):
        answer(scheduler, step(scheduler), generation)
