import pytest

from proto.contract import Generation
from router.scheduler.allocator import Allocator, BlockAllocation
from router.scheduler.sequence import LEGAL_MOVES, IllegalMove, Sequence, SequenceState
from tests.strategies import make_request


def sequence(
    prompt_len: int = 5, max_new_tokens: int = 3, *, is_constrained: bool = False
) -> Sequence:
    prompt_ids = tuple(range(prompt_len))
    request = make_request(prompt_ids, max_new_tokens, is_constrained=is_constrained)
    return Sequence(0, request, order=0)


def admitted(
    prompt_len: int = 5, max_new_tokens: int = 3, *, is_constrained: bool = False
) -> Sequence:
    one = sequence(prompt_len, max_new_tokens, is_constrained=is_constrained)
    allocation = Allocator(8, 2).allocate(one.token_ids())
    assert isinstance(allocation, BlockAllocation)
    one.admit(allocation, now_s=1.0)
    return one


@pytest.mark.parametrize("here", SequenceState)
@pytest.mark.parametrize("there", SequenceState)
def test_an_entry_moves_along_the_table_and_nowhere_else(
    here: SequenceState, there: SequenceState
) -> None:
    one = sequence()
    one.state = here
    if there in LEGAL_MOVES[here]:
        one.move(there)
        assert one.state is there
    else:
        with pytest.raises(IllegalMove, match=f"from {here.name} to {there.name}"):
            one.move(there)
        assert one.state is here


def test_nothing_leads_out_of_an_end() -> None:
    ends = {state for state in SequenceState if not LEGAL_MOVES[state]}
    assert ends == {SequenceState.FINISHED, SequenceState.CANCELLED, SequenceState.FAILED}


def test_it_decodes_once_its_prompt_is_scheduled_to_the_end() -> None:
    one = admitted(prompt_len=5)
    seen = []
    for count in (3, 2):
        row = one.schedule_tokens(count)
        seen.append((one.scheduled_len, row.samples, one.state))
    assert seen == [(3, False, SequenceState.PREFILLING), (5, True, SequenceState.DECODING)]
    assert (one.num_pending, one.num_steps_in_flight) == (1, 2)


def test_it_is_spent_when_its_last_token_is_pending() -> None:
    one = admitted(prompt_len=2, max_new_tokens=2)
    one.schedule_tokens(2)
    assert not one.is_fully_scheduled
    one.schedule_tokens(1)
    assert one.is_fully_scheduled


def test_a_run_of_tokens_is_computed_to_its_end_before_the_next_draw() -> None:
    one = admitted(prompt_len=2, max_new_tokens=5, is_constrained=True)
    one.schedule_tokens(2)
    assert one.awaits_tokens
    one.num_pending = 0
    one.output_ids += [7, 8, 9]
    assert (one.awaits_tokens, one.num_unscheduled) == (False, 3)
    draws = [one.schedule_tokens(count).samples for count in (2, 1)]
    assert draws == [False, True]
    assert one.awaits_tokens


def test_a_preempted_entry_is_computed_anew_with_its_output() -> None:
    one = admitted(prompt_len=3)
    one.schedule_tokens(3)
    one.output_ids.append(9)
    one.num_pending = 0
    one.preempt()
    assert one.state is SequenceState.WAITING
    allocation = Allocator(8, 2).allocate(one.token_ids())
    assert isinstance(allocation, BlockAllocation)
    assert not one.admit(allocation, now_s=2.0)
    assert (one.num_unscheduled, one.scheduled_len) == (4, 0)
    assert one.first_scheduled_s == 1.0


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, None, (0, 1, 2, 7, 8)),
        (1, 3, (1, 2)),
        (2, 4, (2, 7)),
        (3, 5, (7, 8)),
        (4, 5, (8,)),
        (5, 5, ()),
    ],
)
def test_its_tokens_run_from_prompt_into_output(
    start: int, stop: int | None, expected: tuple[int, ...]
) -> None:
    one = sequence(prompt_len=3)
    one.output_ids += [7, 8]
    assert one.token_ids(start, stop) == expected


def test_prompt_logprobs_are_reported_once_though_the_prompt_is_computed_twice() -> None:
    one = sequence(prompt_len=5)
    reported = []
    for start_len, logprobs in ((0, (1.0, 2.0)), (0, (1.0, 2.0, 3.0)), (4, (4.0,)), (0, (1.0,))):
        cut = one.drop_reported_logprobs(Generation(0, prompt_logprobs=logprobs), start_len)
        reported.append(cut.prompt_logprobs)
    assert reported == [(1.0, 2.0), (3.0,), (4.0,), ()]


def test_output_made_before_a_preemption_is_no_prompt() -> None:
    one = sequence(prompt_len=2)
    cut = one.drop_reported_logprobs(Generation(0, prompt_logprobs=(1.0, 2.0, 3.0)), 0)
    assert cut.prompt_logprobs == (1.0,)
