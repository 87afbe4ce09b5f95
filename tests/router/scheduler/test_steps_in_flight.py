import pytest

from proto.contract import FinishReason, Generation, SampledToken, StepResult
from router.request.errors import ShardFailed
from router.scheduler.queues import StepInFlight
from router.scheduler.sequence import ScheduledChunk, Sequence, SequenceState
from tests.strategies import make_request

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


def answer(*generations: Generation, remaining: tuple[int, ...] = ()) -> StepResult:
    return StepResult(7, generations, remaining)


def test_a_good_answer_is_read_by_request() -> None:
    good = Generation(0, (TOKEN,))
    result = answer(good, remaining=(0, 1))
    assert step(decoding(0), prefilling(1)).read(result) == {0: good}


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
    assert step(decoding(0, max_new_tokens=1), decoding(1)).read(result) == {0: last, 1: failed}


def test_nothing_is_asked_of_a_request_that_ended_meanwhile() -> None:
    row = decoding(0)
    row.sequence.move(SequenceState.CANCELLED)
    assert step(row).read(answer()) == {}
