"""A state is read where it stands, written aside, and never begun from where it does not stand."""

from typing import Any

import pytest

from model_server.engine.states import SequenceStates, StateBook
from model_server.errors import InvalidStep
from model_server.step import StateStep
from proto.contract import KeptState, NewSequence, SamplingParams, StopParams


def new(request_id: int = 1, **changes: Any) -> NewSequence:
    fields: dict[str, Any] = {
        "token_ids": tuple(range(40)),
        "prompt_len": 40,
        "cached_len": 0,
        "chunk_len": 0,
        "block_ids": (),
        "state_ids": (5, 2),
        **changes,
    }
    return NewSequence(request_id, sampling=SamplingParams(), stop=StopParams(8), **fields)


def entered(book: StateBook, **changes: Any) -> SequenceStates:
    states = book.open(new(**changes))
    assert states is not None
    book.enter(states)
    return states


def run(book: StateBook, states: SequenceStates, start: int, chunk_len: int) -> StateStep:
    """A step from its plan to its end."""
    step = states.step(start, chunk_len, None, before_is_late=False)
    book.end(states, step, start + chunk_len)
    return step


def test_a_sequence_begins_with_zeros_and_reads_what_it_wrote_last() -> None:
    book = StateBook(8)
    states = entered(book)
    assert run(book, states, 0, 9) == StateStep(None, 5)
    assert run(book, states, 9, 1) == StateStep(5, 2)
    assert run(book, states, 10, 1) == StateStep(2, 5)


def test_the_last_token_alone_is_computed_again_from_the_state_before_it() -> None:
    book = StateBook(8)
    states = entered(book)
    run(book, states, 0, 9)
    once = run(book, states, 9, 1)
    assert run(book, states, 9, 1) == once
    assert states.can_repeat(once, 1)


def test_the_last_token_of_a_longer_chunk_is_not() -> None:
    book = StateBook(8)
    states = entered(book)
    step = run(book, states, 0, 9)
    assert not states.can_repeat(step, 9)
    with pytest.raises(InvalidStep, match="none of its states stands at 8"):
        run(book, states, 8, 1)
    assert states.can_repeat(StateStep(None, 5), 1)


def test_a_step_behind_one_in_flight_reads_what_that_one_writes() -> None:
    states = entered(StateBook(8))
    first = states.step(0, 9, None, before_is_late=False)
    second = states.step(9, 1, first, before_is_late=False)
    assert second == StateStep(5, 2)
    assert states.step(10, 1, second, before_is_late=False) == StateStep(2, 5)
    # Late, its token is computed once more.
    assert states.step(9, 1, second, before_is_late=True) == second


def test_accepted_drafts_are_computed_again_from_the_state_before_them() -> None:
    book = StateBook(8, can_keep=True)
    states = entered(book)
    run(book, states, 0, 9)
    drafting = states.step(9, 1, None, before_is_late=False, num_drafts=4)
    assert drafting == StateStep(5, 2, num_drafts=4)
    book.end(states, drafting, 10)
    # Three of them were right, or none.
    assert states.num_repeated(13) == 3
    assert states.num_repeated(10) == 0
    assert states.step(13, 1, None, before_is_late=False) == StateStep(2, 5)
    with pytest.raises(InvalidStep, match="none of its states stands at 15"):
        states.step(15, 1, None, before_is_late=False)


def test_a_request_that_comes_again_has_no_state_of_its_former_life() -> None:
    book = StateBook(8)
    run(book, entered(book), 0, 9)
    with pytest.raises(InvalidStep, match="request 2: none of its states stands at 9"):
        run(book, entered(book, request_id=2, cached_len=9), 9, 1)


def test_a_kept_state_is_begun_from_by_any_number_and_written_by_none() -> None:
    book = StateBook(8, can_keep=True)
    first = entered(book, kept_states=(KeptState(16, 7), KeptState(32, 3)))
    assert run(book, first, 0, 16) == StateStep(None, 5, (KeptState(16, 7),))
    assert run(book, first, 16, 15).kept == ()
    assert run(book, first, 31, 9).kept == (KeptState(32, 3),)
    for request_id, own in ((2, (0, 1)), (3, (4, 6))):
        states = entered(book, request_id=request_id, state_ids=own, from_state=7, cached_len=16)
        begun = run(book, states, 16, 1)
        assert begun == StateStep(7, own[0])
        # It may be another's before it could be read again.
        assert not states.can_repeat(begun, 1)
        assert run(book, states, 17, 1) == StateStep(own[0], own[1])


def test_what_is_written_anew_is_kept_no_more() -> None:
    book = StateBook(8, can_keep=True)
    run(book, entered(book, kept_states=(KeptState(16, 7),)), 0, 20)
    entered(book, request_id=2, state_ids=(7, 1))
    with pytest.raises(InvalidStep, match="state 7 does not stand at cached_len 16"):
        book.open(new(3, state_ids=(0, 6), from_state=7, cached_len=16))


def test_a_book_that_is_cleared_keeps_nothing() -> None:
    book = StateBook(8, can_keep=True)
    run(book, entered(book, kept_states=(KeptState(16, 7),)), 0, 20)
    book.clear()
    with pytest.raises(InvalidStep, match="state 7 does not stand"):
        book.open(new(3, state_ids=(0, 6), from_state=7, cached_len=16))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state_ids": ()}, r"state_ids \[\]: a request of this model has 2 different ones"),
        ({"state_ids": (3, 3)}, r"state_ids \[3, 3\]"),
        ({"state_ids": (3, 4, 5)}, r"state_ids \[3, 4, 5\]"),
        ({"state_ids": (3, 8)}, "state 8 is not one of 8"),
        ({"kept_states": (KeptState(16, 9),)}, "state 9 is not one of 8"),
        ({"from_state": 4, "cached_len": 16}, "state 4 does not stand at cached_len 16"),
    ],
)
def test_slots_that_break_the_contract_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidStep, match=f"request 1: {said}"):
        StateBook(8, can_keep=True).open(new(**changes))


@pytest.mark.parametrize(
    "changes", [{"from_state": 4, "cached_len": 16}, {"kept_states": (KeptState(16, 7),)}]
)
def test_a_model_that_keeps_no_states_is_asked_for_none(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidStep, match="request 1: this model keeps no states"):
        StateBook(8).open(new(**changes))


def test_a_model_without_states_is_given_none() -> None:
    book = StateBook()
    assert book.open(new(state_ids=())) is None
    with pytest.raises(InvalidStep, match=r"state_ids \[5, 2\]: a request of this model has 0"):
        book.open(new())
