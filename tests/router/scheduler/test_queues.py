"""Who waits in which place, and what steps in flight say of their answers."""

from collections.abc import Iterable

import pytest

from proto.contract import FinishReason, Generation, SampledToken, StepResult
from router.request.errors import ShardFailed
from router.scheduler.allocator import Allocator
from router.scheduler.fair_shares import FairShares
from router.scheduler.queues import AnsweredChunk, StepInFlight, WaitingQueue
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.scheduler.sequence import ScheduledChunk, Sequence, SequenceState
from tests.router.rig import asking
from tests.strategies import make_request


def sequences(count: int) -> list[Sequence]:
    return [Sequence(order, make_request(), order) for order in range(count)]


def queue_of(waiting: list[Sequence]) -> WaitingQueue:
    queue = WaitingQueue(FairShares())
    for sequence in waiting:
        queue.add(sequence)
    return queue


def test_offers_come_in_order_of_arrival_whoever_returns() -> None:
    old, middle, young = sequences(3)
    queue = queue_of([young, old, middle])
    assert queue.offers() == [old, middle, young]
    queue.remove(old)
    assert queue.offers() == [middle, young]
    queue.add(old)
    assert queue.offers() == [old, middle, young]


def test_a_held_entry_is_offered_once_it_is_released() -> None:
    old, young = sequences(2)
    queue = queue_of([young])
    queue.hold(old)
    assert (queue.offers(), len(queue), set(queue)) == ([young], 2, {old, young})
    queue.release(old)
    assert queue.offers() == [old, young]


def test_a_cancelled_entry_is_not_offered() -> None:
    first, second, held = sequences(3)
    queue = queue_of([first, second])
    queue.hold(held)
    queue.remove(first)
    queue.remove(held)
    assert queue.offers() == [second]
    assert len(queue) == 1


def scheduler() -> Scheduler:
    return Scheduler(SchedulerLimits(max_step_tokens=16, max_batch_size=1), Allocator(16, 4, True))


def test_places_count_from_the_next_one_and_end_with_the_first_step() -> None:
    waiting = scheduler()
    for request_id in (1, 2, 3):
        waiting.add(request_id, asking("abcd"), 0.0)
    assert [waiting.place(request_id) for request_id in (1, 2, 3)] == [1, 2, 3]

    waiting.schedule(0.0)
    assert [waiting.place(request_id) for request_id in (1, 2, 3)] == [None, 1, 2]

    waiting.finish(2)
    assert [waiting.place(request_id) for request_id in (2, 3, 99)] == [None, 1, None]


def test_a_held_sequence_has_the_place_that_it_would_have() -> None:
    waiting = scheduler()
    waiting.add(1, asking("abcd"), 0.0)
    waiting.add(2, asking("efgh"), 0.0, is_ready=False)
    waiting.add(3, asking("ijkl"), 0.0)

    assert [waiting.place(request_id) for request_id in (1, 2, 3)] == [1, 2, 2]


TOKEN = SampledToken(1, -0.5)


def decoding(request_id: int, max_new_tokens: int = 9) -> ScheduledChunk:
    sequence = Sequence(request_id, make_request((0, 1), max_new_tokens), order=request_id)
    sequence.state = SequenceState.DECODING
    sequence.computed_len = 1
    return ScheduledChunk(sequence, 1, samples=True)


def prefilling(request_id: int, *, prompt_logprobs: bool = False) -> ScheduledChunk:
    request = make_request((0, 1, 0, 1), prompt_logprobs=prompt_logprobs)
    sequence = Sequence(request_id, request, order=request_id)
    sequence.state = SequenceState.PREFILLING
    return ScheduledChunk(sequence, 3, samples=False)


def step(*rows: ScheduledChunk) -> StepInFlight:
    return StepInFlight(7, {row.sequence.request_id: row for row in rows})


def generations_of(answered: Iterable[AnsweredChunk]) -> list[Generation | None]:
    return [each.generation for each in answered]


def answer(*generations: Generation, remaining: tuple[int, ...] = ()) -> StepResult:
    return StepResult(7, generations, remaining)


def test_a_good_answer_is_read_by_request() -> None:
    good = Generation(0, (TOKEN,))
    result = answer(good, remaining=(0, 1))
    plain, answered = step(decoding(0), prefilling(1)).read(result)
    assert plain == []
    assert generations_of(answered) == [good, None]
    assert [each.num_computed for each in answered] == [1, 3]


def test_a_plain_row_stays_one_where_the_sequence_awaits_one_token_and_goes_on() -> None:
    """The second one's prompt was computed just now; the third one's reader has left."""
    going_on, first_token, gone = decoding(0), decoding(1), decoding(2)
    for row in (going_on, gone):
        row.sequence.append((1,))
        row.sequence.computed_len += 1
    gone.sequence.move(SequenceState.CANCELLED)
    rows = [(2, 7, -0.5), (1, 8, -0.5), (0, 9, -0.5)]
    result = StepResult(7, (), (0, 1, 2), plain=rows)
    plain, answered = step(going_on, first_token, gone).read(result)
    assert plain == [(0, 9, -0.5)]
    assert generations_of(answered) == [
        Generation(1, (SampledToken(8, -0.5),)),
        Generation(2, (SampledToken(7, -0.5),)),
    ]


@pytest.mark.parametrize(
    ("row", "result", "fault"),
    [
        pytest.param(
            decoding(0), StepResult(8, (), ()), "step 7 was answered as step 8", id="other step"
        ),
        pytest.param(
            decoding(0),
            answer(Generation(0, (TOKEN,)), Generation(0, (TOKEN,)), remaining=(0,)),
            "two generations",
            id="twice",
        ),
        pytest.param(
            decoding(0),
            answer(Generation(0, (TOKEN,)), Generation(5, (TOKEN,)), remaining=(0, 5)),
            r"\[5\], which took no part",
            id="stranger",
        ),
        pytest.param(
            decoding(0),
            StepResult(7, (Generation(0, (TOKEN,)),), (0,), plain=[(0, 1, -0.5)]),
            "two generations",
            id="twice, once plain",
        ),
        pytest.param(
            decoding(0),
            StepResult(7, (), (0, 5), plain=[(0, 1, -0.5), (5, 1, -0.5)]),
            r"\[5\], which took no part",
            id="plain stranger",
        ),
        pytest.param(
            decoding(0), StepResult(7, (), (), plain=[(0, 1, -0.5)]), "lost it", id="plain, lost"
        ),
        pytest.param(
            decoding(0, max_new_tokens=1),
            StepResult(7, (), (0,), plain=[(0, 1, -0.5)]),
            "goes on after its last token, number 1",
            id="plain, past its limit",
        ),
        pytest.param(decoding(0), answer(remaining=(0,)), "none came", id="no token"),
        pytest.param(decoding(0), answer(Generation(0, (TOKEN,))), "lost it", id="lost"),
        pytest.param(
            decoding(0),
            answer(Generation(0, (TOKEN, TOKEN)), remaining=(0,)),
            "2 tokens came where 1",
            id="too many",
        ),
        pytest.param(
            prefilling(0),
            answer(Generation(0, (TOKEN,)), remaining=(0,)),
            "1 tokens came where 0",
            id="too early",
        ),
        pytest.param(
            decoding(0, max_new_tokens=1),
            answer(Generation(0, (TOKEN,)), remaining=(0,)),
            "goes on after its last token, number 1",
            id="past its limit",
        ),
        pytest.param(
            prefilling(0, prompt_logprobs=True),
            answer(Generation(0, prompt_logprobs=(-1.0,)), remaining=(0,)),
            "1 prompt log-probabilities came instead of 2",
            id="unscored",
        ),
    ],
)
def test_an_answer_that_contradicts_the_schedule_is_refused(
    row: ScheduledChunk, result: StepResult, fault: str
) -> None:
    with pytest.raises(ShardFailed, match=fault):
        step(row).read(result)


def test_a_row_that_ends_need_not_remain() -> None:
    last = Generation(0, (TOKEN,), FinishReason.LENGTH)
    failed = Generation(1, error="not a number")
    result = answer(last, failed)
    _, answered = step(decoding(0, max_new_tokens=1), decoding(1)).read(result)
    assert generations_of(answered) == [last, failed]


def test_nothing_is_asked_of_a_request_that_ended_meanwhile() -> None:
    row = decoding(0)
    row.sequence.move(SequenceState.CANCELLED)
    _, answered = step(row).read(answer())
    assert generations_of(answered) == [None]
