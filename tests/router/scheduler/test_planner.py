"""What a step is made of: who is preempted, equal beginnings, runs, late draws, drafts, images."""

from dataclasses import replace

import pytest

from proto.contract import (
    Batch,
    FinishReason,
    Generation,
    NewSequence,
    RunningUpdate,
    SampledToken,
)
from router.request.errors import ShardFailed
from router.request.request import ApiKey, GenerateRequest
from router.scheduler.scheduler import Scheduler
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
from tests.strategies import PLACEHOLDER, make_image, make_request


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


SHARED = tuple(range(10, 22))


def add(scheduler: Scheduler, request_id: int, *prompt_ids: int, **more: object) -> None:
    scheduler.add(request_id, make_request(prompt_ids, **more), 0.0)  # type: ignore[arg-type]


def new_of(batch: Batch) -> list[tuple[int, int]]:
    """Who entered, and how many tokens were there already."""
    return [(new.request_id, new.cached_len) for new in batch.new]


def test_the_first_computes_the_beginning_and_the_others_find_it() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    for request_id in range(4):
        add(scheduler, request_id, *SHARED, request_id)
    assert new_of(run(scheduler, token(0, 7))) == [(0, 0)]
    others = step(scheduler)
    assert new_of(others) == [(1, 12), (2, 12), (3, 12)]
    assert others.num_tokens == 4


def test_equal_prompts_are_computed_once() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    for request_id in range(3):
        add(scheduler, request_id, *SHARED)
    run(scheduler, token(0, 7))
    assert new_of(step(scheduler)) == [(1, 10), (2, 10)]


def test_a_beginning_of_several_steps_is_waited_for_to_its_end() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=5)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    assert new_of(run(scheduler)) == [(0, 0)]
    assert new_of(run(scheduler)) == []
    # What is left to wait for is worth less than a step.
    assert new_of(run(scheduler, token(0, 7))) == [(1, 10)]


@pytest.mark.parametrize(
    "prompt_ids",
    [(*SHARED[:6], 1, 2, 3, 4, 5, 6, 7), (*SHARED, *range(50, 70)), (1, *SHARED)],
    ids=["little is shared", "most is its own", "nothing is shared"],
)
def test_what_is_not_worth_a_step_is_not_waited_for(prompt_ids: tuple[int, ...]) -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *prompt_ids)
    assert new_of(step(scheduler)) == [(0, 0), (1, 0)]


def test_those_behind_are_not_held_up() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    add(scheduler, 2, 1, 2, 3)
    assert new_of(step(scheduler)) == [(0, 0), (2, 0)]


def test_a_prompt_that_is_scored_from_its_beginning_waits_for_nobody() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1, prompt_logprobs=True)
    add(scheduler, 2, *SHARED, 2, prompt_logprobs=True, prompt_from=12)
    assert new_of(step(scheduler)) == [(0, 0), (1, 0)]


def test_the_waiting_one_goes_on_alone_when_the_other_leaves() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=5)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    run(scheduler)
    scheduler.finish(0)
    assert new_of(step(scheduler)) == [(1, 4)]


def test_nobody_waits_where_nothing_is_shared() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64, prefix_caching=False)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    assert new_of(step(scheduler)) == [(0, 0), (1, 0)]


def test_a_step_in_flight_is_waited_for() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64, max_steps_in_flight=2)
    add(scheduler, 0, *SHARED, 0)
    add(scheduler, 1, *SHARED, 1)
    assert new_of(step(scheduler)) == [(0, 0)]
    ahead = step(scheduler)
    assert (new_of(ahead), ahead.num_tokens) == ([], 1)


def a_run(request_id: int, *token_ids: int, reason: FinishReason | None = None) -> Generation:
    tokens = tuple(SampledToken(token_id, -0.5) for token_id in token_ids)
    return Generation(request_id, tokens, reason, num_forced=len(tokens) - 1)


def add_constrained(scheduler: Scheduler, request_id: int, max_new_tokens: int = 8) -> None:
    request = make_request((request_id, 1, 2), max_new_tokens, is_constrained=True)
    scheduler.add(request_id, request, 0.0)


def test_the_next_step_computes_the_whole_run_in_blocks_of_its_own() -> None:
    scheduler = make_scheduler(block_size=2)
    add_constrained(scheduler, 0)
    run(scheduler, a_run(0, 7, 8, 9, 10))
    batch = step(scheduler)
    (update,) = batch.updates
    assert (update.chunk_len, len(update.block_ids)) == (4, 2)
    assert (batch.num_tokens, batch.num_decode_tokens) == (4, 4)
    assert answer(scheduler, batch, token(0, 11)) == (token(0, 11),)
    assert step(scheduler).updates == (), "a single token needs no word"


def test_a_run_that_does_not_fit_a_step_is_computed_in_parts_and_draws_after_the_last() -> None:
    scheduler = make_scheduler(max_step_tokens=3)
    add_constrained(scheduler, 0)
    run(scheduler, a_run(0, 7, 8, 9, 10))
    first = run(scheduler)
    second = run(scheduler, a_run(0, 11, 12))
    assert chunks(first)[0] == 3
    assert (second.num_tokens, chunks(second)[0]) == (1, None)
    assert chunks(step(scheduler))[0] == 2


def test_a_run_leaves_everyone_behind_it_a_token() -> None:
    scheduler = make_scheduler(max_step_tokens=6)
    add_constrained(scheduler, 0)
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
    add_constrained(scheduler, 0)
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
    add_constrained(scheduler, 0)
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
    add_constrained(scheduler, 1, max_new_tokens=2)
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
    add_constrained(scheduler, 0, max_new_tokens=3)
    with pytest.raises(ShardFailed, match=fault):
        answer(scheduler, step(scheduler), generation)


def test_a_run_may_fill_the_limit_and_end_there() -> None:
    scheduler = make_scheduler()
    add_constrained(scheduler, 0, max_new_tokens=3)
    last = a_run(0, 7, 8, 9, reason=FinishReason.LENGTH)
    assert answer(scheduler, step(scheduler), last) == (last,)
    assert not scheduler.has_work


def test_an_empty_text_ends_without_a_token() -> None:
    scheduler = make_scheduler()
    add_constrained(scheduler, 0)
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


def late(request_id: int, *prompt_logprobs: float) -> Generation:
    return Generation(request_id, prompt_logprobs=prompt_logprobs, is_late=True)


def add_late(scheduler: Scheduler, max_new_tokens: int = 8) -> None:
    scheduler.add(0, make_request((5, 1, 2), max_new_tokens, is_constrained=True), 0.0)


def test_a_later_step_computes_the_last_token_again_and_draws() -> None:
    scheduler = make_scheduler()
    add_late(scheduler)
    run(scheduler, late(0))
    again = step(scheduler)
    assert (again.num_tokens, again.num_decode_tokens, again.updates) == (1, 1, ())
    assert answer(scheduler, again, token(0, 7)) == (token(0, 7),)
    assert step(scheduler).num_tokens == 1


def test_a_late_sample_is_not_reported() -> None:
    scheduler = make_scheduler()
    add_late(scheduler)
    assert answer(scheduler, step(scheduler), late(0)) == ()


def test_a_draw_may_be_late_again_and_again_while_the_others_go_on() -> None:
    scheduler = make_scheduler()
    add_late(scheduler)
    scheduler.add(1, make_request((1, 3), 8), 0.0)
    for token_id in range(4):
        run(scheduler, late(0), token(1, token_id))
    assert step(scheduler).num_tokens == 2


def test_behind_a_late_run_only_its_last_token_is_computed_again() -> None:
    scheduler = make_scheduler()
    add_late(scheduler)
    run(scheduler, Generation(0, token(0, 7).tokens + token(0, 8).tokens, num_forced=1))
    assert chunks(run(scheduler, late(0)))[0] == 2
    assert step(scheduler).num_tokens == 1


def test_the_last_token_may_be_late() -> None:
    scheduler = make_scheduler()
    add_late(scheduler, max_new_tokens=1)
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
    add_late(scheduler)
    scheduler.add(1, make_request((1, 3)), 0.0)
    others = [
        each for each in (token(0, 7), token(1, 7)) if each.request_id != generation.request_id
    ]
    with pytest.raises(ShardFailed, match="it cannot be late"):
        answer(scheduler, step(scheduler), generation, *others)


def test_a_prompt_chunk_is_not_late() -> None:
    scheduler = make_scheduler(max_step_tokens=2)
    add_late(scheduler)
    with pytest.raises(ShardFailed, match="it cannot be late"):
        answer(scheduler, step(scheduler), late(0))


def test_a_late_answer_brings_the_log_probabilities_of_its_part_of_the_prompt() -> None:
    scheduler = make_scheduler()
    request = make_request((5, 1, 2), prompt_logprobs=True, is_constrained=True)
    scheduler.add(0, request, 0.0)
    with pytest.raises(ShardFailed, match="1 prompt log-probabilities came instead of 2"):
        answer(scheduler, step(scheduler), late(0, -1.0))


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


def test_under_a_constraint_drafts_come_behind_what_it_forced() -> None:
    scheduler = make_scheduler(num_blocks=64, max_drafts=3)
    scheduler.add(0, make_request((1, 2), 40, is_constrained=True), 0.0)
    first = step(scheduler)
    assert first.new[0].max_drafts == 3
    answer(scheduler, first, Generation(0, tokens=token(0, 7).tokens * 2, num_forced=1))
    assert step(scheduler).num_tokens == 2 + 3


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


def kept_of(new: NewSequence) -> list[int]:
    """Where states of its prompt are to be kept."""
    return [kept.position for kept in new.kept_states]


def end(request_id: int, token_id: int = 7) -> Generation:
    return token(request_id, token_id, FinishReason.LENGTH)


def test_of_a_model_without_states_nobody_has_slots() -> None:
    scheduler = make_scheduler()
    add(scheduler, 0, *SHARED)
    (new,) = run(scheduler, token(0, 7)).new
    assert (new.state_ids, new.from_state, new.kept_states) == ((), None, ())
    assert scheduler.stats().num_states_total == 0


def test_who_lacks_slots_waits_and_nobody_is_preempted() -> None:
    scheduler = make_scheduler(num_blocks=40, num_states=5, prefix_caching=False)
    for request_id in range(3):
        add(scheduler, request_id, request_id, 1, 2)
    first = run(scheduler, end(0), token(1, 7))
    slots = [new.state_ids for new in first.new]
    assert [new.request_id for new in first.new] == [0, 1]
    assert [len(each) for each in slots] == [2, 2]
    assert not set(slots[0]) & set(slots[1])
    second = run(scheduler, token(1, 7), token(2, 7))
    assert [(new.request_id, set(new.state_ids)) for new in second.new] == [(2, {*slots[0]})]
    assert (scheduler.stats().num_preemptions, scheduler.stats().num_states_used) == (0, 4)


def test_slots_come_back_with_the_answer_of_the_last_step_that_may_write_them() -> None:
    scheduler = make_scheduler(num_states=2, max_steps_in_flight=2, prefix_caching=False)
    add(scheduler, 0, 1, 2, 3)
    add(scheduler, 1, 4, 5, 6)
    first = step(scheduler)
    second = step(scheduler)
    scheduler.finish(0)
    answer(scheduler, first, token(0, 7))
    assert scheduler.stats().num_states_used == 2
    assert scheduler.schedule(0.0) is None
    answer(scheduler, second)
    assert scheduler.stats().num_states_used == 0
    assert new_of(step(scheduler)) == [(1, 0)]


def test_a_preempted_one_gives_its_slots_back_and_gets_others() -> None:
    scheduler = make_scheduler(num_blocks=4, block_size=1, num_states=4, prefix_caching=False)
    add(scheduler, 0, 1)
    add(scheduler, 1, 2)
    run(scheduler, token(0, 7), token(1, 7))
    run(scheduler, token(0, 7), token(1, 7))
    assert run(scheduler, token(0, 7)).dropped_ids == (1,)
    assert scheduler.stats().num_states_used == 2
    run(scheduler, end(0))
    (new,) = step(scheduler).new
    assert (new.token_ids, new.cached_len, len(new.state_ids)) == ((2, 7, 7), 0, 2)


def test_the_next_turn_goes_on_where_the_state_of_the_prompt_was_kept() -> None:
    scheduler = make_scheduler(num_blocks=40, num_states=12)
    add(scheduler, 0, *SHARED, max_new_tokens=3)
    (first,) = run(scheduler, token(0, 7)).new
    # The last four tokens may ask for the answer.
    assert kept_of(first) == [8]
    run(scheduler, token(0, 8))
    run(scheduler, end(0, 9))
    assert scheduler.stats().num_states_kept == 1
    add(scheduler, 1, *SHARED, 7, 8, 9, *range(50, 60))
    (second,) = step(scheduler).new
    assert (second.cached_len, second.from_state) == (8, first.kept_states[0].state_id)
    # Keys of the answer were found, too: where it goes on is known now.
    assert kept_of(second) == [14, 20]
    scheduler.check_invariants()


def test_the_same_prompt_again_computes_its_last_block_alone() -> None:
    scheduler = make_scheduler(num_blocks=40, num_states=12)
    for request_id in range(2):
        add(scheduler, request_id, *SHARED, max_new_tokens=1)
        (new,) = run(scheduler, end(request_id)).new
        assert new.cached_len == 8 * request_id
    assert (kept_of(new), scheduler.stats().num_states_kept) == ([], 1)


def test_an_output_that_goes_on_is_begun_near_its_end() -> None:
    scheduler = make_scheduler(num_blocks=60, num_states=20, max_step_tokens=64)
    output_ids = tuple(range(50, 60))
    found = []
    for request_id in range(3):
        made = output_ids[: 8 + request_id]
        add(scheduler, request_id, *SHARED, output_ids=made, max_new_tokens=len(made) + 1)
        (new,) = run(scheduler, end(request_id)).new
        found.append((new.cached_len, kept_of(new)))
    assert found == [(0, [8, 16]), (16, []), (16, [18])]


def test_where_prompts_part_is_known_with_the_second_and_hit_by_the_third() -> None:
    scheduler = make_scheduler(num_blocks=60, num_states=20, max_step_tokens=64)
    found = []
    for request_id in range(3):
        add(scheduler, request_id, *SHARED, request_id, *range(50, 56), max_new_tokens=1)
        (new,) = run(scheduler, end(request_id)).new
        found.append((new.cached_len, kept_of(new)))
    assert found == [(0, [14]), (0, [12, 14]), (12, [14])]


def test_a_state_is_found_once_its_step_was_answered() -> None:
    scheduler = make_scheduler(num_blocks=40, num_states=20, max_steps_in_flight=3)
    add(scheduler, 0, *range(1, 9))
    first = step(scheduler)
    add(scheduler, 1, *range(1, 9))
    second = step(scheduler)
    # The other one keeps what both have.
    assert [(new.cached_len, kept_of(new)) for new in second.new] == [(0, [])]
    answer(scheduler, first, token(0, 7))
    add(scheduler, 2, *range(1, 9))
    (third,) = step(scheduler).new
    assert (third.cached_len, third.from_state) == (4, first.new[0].kept_states[0].state_id)


def test_equal_beginnings_are_waited_for_where_their_state_is_kept() -> None:
    scheduler = make_scheduler(num_blocks=60, block_size=1, num_states=20, max_step_tokens=64)
    add(scheduler, 0, *SHARED)
    add(scheduler, 1, *SHARED)
    # Of the first no state is kept where this one leaves it; it keeps one for the next.
    add(scheduler, 2, *SHARED[:7], 1, 2, 3, 4, 5)
    add(scheduler, 3, *SHARED[:7], 5, 4, 3, 2, 1)
    first = run(scheduler, token(0, 7), token(2, 7))
    assert [(new.request_id, kept_of(new)) for new in first.new] == [(0, [8]), (2, [7, 8])]
    assert new_of(step(scheduler)) == [(1, 8), (3, 7)]


def with_a_kept_state(num_states: int, max_steps_in_flight: int = 1) -> Scheduler:
    """Of the first four tokens of (1, 2, 3, 4, ...)."""
    scheduler = make_scheduler(
        num_blocks=60, num_states=num_states, max_steps_in_flight=max_steps_in_flight
    )
    add(scheduler, 0, *range(1, 9), max_new_tokens=1)
    run(scheduler, end(0))
    assert scheduler.stats().num_states_kept == 1
    return scheduler


def test_a_kept_state_makes_room_for_one_who_would_have_begun_there() -> None:
    scheduler = with_a_kept_state(num_states=6)
    add(scheduler, 1, 8, 9)
    add(scheduler, 2, 9, 8)
    add(scheduler, 3, 1, 2, 3, 4, 5)
    batch = run(scheduler, token(1, 7), token(2, 7), token(3, 7))
    assert new_of(batch) == [(1, 0), (2, 0), (3, 0)]
    assert scheduler.stats().num_states_kept == 0


def test_a_state_is_not_evicted_before_the_step_that_reads_it_was_answered() -> None:
    scheduler = with_a_kept_state(num_states=6, max_steps_in_flight=2)
    add(scheduler, 1, 1, 2, 3, 4, 6)
    add(scheduler, 2, 8, 9)
    add(scheduler, 3, 9, 8)
    first = step(scheduler)
    second = step(scheduler)
    assert (new_of(first), new_of(second)) == ([(1, 4), (2, 0)], [])
    answer(scheduler, first, token(1, 7), token(2, 7))
    assert new_of(step(scheduler)) == [(3, 0)]
    assert scheduler.stats().num_states_kept == 0
    scheduler.check_invariants()


def test_a_state_stays_for_a_first_step_that_drew_nothing() -> None:
    scheduler = with_a_kept_state(num_states=6)
    add(scheduler, 1, 1, 2, 3, 4, 6, is_constrained=True)
    add(scheduler, 2, 8, 9)
    add(scheduler, 3, 9, 8)
    assert new_of(run(scheduler, late(1), token(2, 7))) == [(1, 4), (2, 0)]
    assert new_of(run(scheduler, token(1, 7), token(2, 7))) == []
    assert new_of(step(scheduler)) == [(3, 0)]


def test_nothing_is_kept_where_others_would_wait_for_the_slots() -> None:
    scheduler = make_scheduler(num_blocks=60, num_states=8, max_step_tokens=64)
    for request_id in range(3):
        add(scheduler, request_id, request_id, *range(50, 57))
    batch = run(scheduler, token(0, 7), token(1, 7), token(2, 7))
    assert [kept_of(new) for new in batch.new] == [[], [], []]
    add(scheduler, 3, 3, *range(50, 57))
    scheduler.finish(0)
    scheduler.finish(1)
    # Slots for one who comes are left now.
    assert [kept_of(new) for new in step(scheduler).new] == [[4]]


def test_without_prefix_caching_no_state_is_kept() -> None:
    scheduler = make_scheduler(num_blocks=60, num_states=12, prefix_caching=False)
    add(scheduler, 0, *SHARED)
    (new,) = run(scheduler, token(0, 7)).new
    assert (len(new.state_ids), kept_of(new)) == (2, [])


def test_no_state_is_left_when_the_shards_lost_theirs() -> None:
    scheduler = make_scheduler(num_blocks=60, num_states=12)
    add(scheduler, 0, *SHARED)
    run(scheduler, token(0, 7))
    assert scheduler.stats().num_states_kept == 1
    scheduler.fail()
    stats = scheduler.stats()
    assert (stats.num_states_used, stats.num_states_kept) == (0, 0)
    (new,) = step(scheduler).new
    assert (new.cached_len, new.from_state, kept_of(new)) == (0, None, [8])
    scheduler.check_invariants()


def image_prompt(num_before: int, span_len: int, shown: int, num_behind: int) -> GenerateRequest:
    prompt_ids = (1,) * num_before + (PLACEHOLDER,) * span_len + (2,) * num_behind
    return make_request(prompt_ids, images=(make_image(num_before, span_len, shown),))


def test_kv_is_shared_by_what_an_image_shows_and_not_by_the_ids_in_its_place() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=64)
    scheduler.add(0, image_prompt(4, 8, 1, 2), 0.0)
    run(scheduler, token(0, 7, FinishReason.LENGTH))
    scheduler.add(1, image_prompt(4, 8, 2, 2), 0.0)
    assert new_of(run(scheduler, token(1, 7, FinishReason.LENGTH))) == [(1, 4)]
    scheduler.add(2, image_prompt(4, 8, 1, 2), 0.0)
    (new,) = run(scheduler, token(2, 7)).new
    assert new.cached_len == 12
    assert new.token_ids == (1,) * 4 + (PLACEHOLDER,) * 8 + (2,) * 2


def test_nobody_waits_for_the_kv_of_another_image() -> None:
    scheduler = make_scheduler(num_blocks=40, max_step_tokens=12)
    scheduler.add(0, image_prompt(2, 8, 1, 6), 0.0)
    assert new_of(run(scheduler)) == [(0, 0)]
    scheduler.add(1, image_prompt(2, 8, 2, 6), 0.0)
    assert new_of(step(scheduler)) == [(1, 2)]


class TestImagesThatSeeAhead:
    def test_no_chunk_ends_inside_of_one(self) -> None:
        scheduler = make_scheduler(num_blocks=40, max_step_tokens=16, images_see_ahead=True)
        scheduler.add(0, image_prompt(10, 8, 1, 9), 0.0)
        assert [chunks(run(scheduler)) for _ in range(2)] == [{0: 10}, {0: 16}]

    def test_one_that_does_not_fit_a_step_beside_others_is_not_passed(self) -> None:
        scheduler = make_scheduler(num_blocks=40, max_step_tokens=16, images_see_ahead=True)
        scheduler.add(0, make_request((1,) * 9), 0.0)
        scheduler.add(1, image_prompt(0, 8, 1, 9), 0.0)
        scheduler.add(2, make_request((3,) * 4), 0.0)
        assert new_of(run(scheduler, token(0, 7))) == [(0, 0)]
        assert new_of(step(scheduler)) == [(1, 0)]

    def test_of_a_key_that_had_more_than_its_share_one_comes_whole(self) -> None:
        scheduler = make_scheduler(
            num_blocks=400, max_step_tokens=1100, images_see_ahead=True, max_steps_in_flight=1
        )
        greedy, modest = ApiKey("greedy"), ApiKey("modest")
        scheduler.add(0, make_request((1,) * 90, key=modest), 0.0)
        scheduler.add(1, make_request((2,) * 600, key=greedy), 0.0)
        run(scheduler, token(0, 7), token(1, 7, FinishReason.LENGTH))
        scheduler.add(2, replace(image_prompt(0, 80, 1, 9), key=greedy), 0.0)
        assert chunks(step(scheduler))[2] == 80
