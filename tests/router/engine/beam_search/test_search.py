"""Steps of a beam search: dead ends, texts that are judged at their ends, and memory."""

import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from constraints.spec import ConstraintSpec, Kind
from router.engine.beam_search import (
    Ask,
    AskResult,
    Beam,
    BeamGroup,
    BeamSearch,
    CheckHole,
    DeadEnd,
    EndedHole,
    Hole,
    NextTokens,
    OutputTexts,
    ProbeTokens,
    SearchOutcome,
)
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.router.rig import ANY_TEXT, asking, byte_tokenizer

NO_TEXT = ConstraintRefused("no completion is known to fit", "broken")
A, B, C, D = byte_ids("abcd")
# Behind any beam, the most probable first.
TOPS = ((A, -0.1), (B, -0.2), (C, -0.4), (D, -0.8))
ENDING_TOPS = ((A, -0.1), (EOS_ID, -0.15), (B, -0.2), (C, -0.4))


def searched(
    is_dead: Callable[[tuple[int, ...]], bool],
    width: int,
    *,
    is_last: bool = True,
    constraint: Constraint | None = ANY_TEXT,
    max_len: int = 2,
    num_candidates: int | None = None,
    tops: tuple[tuple[int, float], ...] = TOPS,
) -> tuple[SearchOutcome, list[Ask]]:
    """The search of a hole some of whose outputs are dead ends; and what it asked."""
    hole = Hole(asking(max_new_tokens=max_len, constraint=constraint), is_last)
    group = BeamGroup(
        width=width,
        holes=(hole,),
        beams=(Beam(hole=0),),
        end_token_ids=frozenset({EOS_ID}),
        num_candidates=num_candidates,
    )
    running = BeamSearch(group, OutputTexts(byte_tokenizer(), 4 * width)).run()
    asked: list[Ask] = []
    result: Sequence[AskResult] | None = None
    try:
        while True:
            asks = running.send(result)  # type: ignore[arg-type]
            asked += asks
            result = [answer(ask, is_dead, tops) for ask in asks]
    except StopIteration as stop:
        outcome: SearchOutcome = stop.value
    return outcome, asked


def answer(
    ask: Ask, is_dead: Callable[[tuple[int, ...]], bool], tops: tuple[tuple[int, float], ...]
) -> AskResult:
    if isinstance(ask, CheckHole):
        return EndedHole("")
    if is_dead(ask.beam.output_ids):
        return DeadEnd(NO_TEXT)
    return NextTokens(tops, frozenset({EOS_ID}))


def begin_with_a_or_b(output_ids: tuple[int, ...]) -> bool:
    return output_ids[:1] in ((A,), (B,))


@pytest.mark.parametrize("width", [1, 2])
def test_dead_ends_leave_their_places_to_what_is_less_probable(width: int) -> None:
    outcome, _ = searched(begin_with_a_or_b, width)

    assert [place.beam.output_ids for place, _ in outcome.ended] == [(C, A), (C, B)][:width]
    dropped = [(place.beam.output_ids, error) for place, error in outcome.dropped]
    assert dropped == [((A,), NO_TEXT), ((B,), NO_TEXT)]


def test_no_beam_is_asked_twice() -> None:
    _, asked = searched(begin_with_a_or_b, 2)
    probed = [ask.beam for ask in asked if isinstance(ask, ProbeTokens)]
    assert len(probed) == len(set(probed)) == 1 + 4


def test_candidates_are_as_many_without_dead_ends() -> None:
    def search(num_candidates: int) -> SearchOutcome:
        outcome, _ = searched(
            begin_with_a_or_b, 1, is_last=False, num_candidates=num_candidates, tops=ENDING_TOPS
        )
        return outcome

    few = search(1)
    more = search(2)
    assert candidate_outputs(few) == [((), True)]
    assert few.has_more
    assert candidate_outputs(more) == [((), True), ((C,), False)]
    assert not more.has_more


def candidate_outputs(outcome: SearchOutcome) -> list[tuple[tuple[int, ...], bool]]:
    assert outcome.candidates is not None
    return [(place.beam.output_ids, place.closed is not None) for place in outcome.candidates]


@pytest.mark.parametrize(
    "constraint",
    [None, Constraint(ConstraintSpec(Kind.WHERE, "len(X) < 9"), has_dead_ends=False)],
    ids=["free", "where"],
)
def test_nothing_is_asked_early_where_masks_see_all_dead_ends(
    constraint: Constraint | None,
) -> None:
    _, asked = searched(lambda output_ids: False, 2, constraint=constraint, max_len=3)
    num_probes = sum(isinstance(ask, ProbeTokens) for ask in asked)
    assert num_probes == 1 + 2 + 2


_WIDTH = 64
_NUM_TOPS = 136
_OUTPUT_LEN = 500


def test_a_step_copies_the_outputs_of_those_beams_alone_that_go_on() -> None:
    hole = Hole(asking(max_new_tokens=_OUTPUT_LEN + 9), is_last=True)
    beams = tuple(
        Beam(hole=0, output_ids=(7,) * _OUTPUT_LEN, logprob=-float(index), num_tokens=_OUTPUT_LEN)
        for index in range(_WIDTH)
    )
    group = BeamGroup(width=_WIDTH, holes=(hole,), beams=beams, end_token_ids=frozenset({EOS_ID}))
    search = BeamSearch(group, OutputTexts(byte_tokenizer(), 4))
    tops = tuple((token_id, -0.1 * token_id) for token_id in range(EOS_ID + 1, _NUM_TOPS))
    running = search.run()
    asks = next(running)

    tracemalloc.start()
    try:
        running.send([NextTokens(tops, frozenset({EOS_ID}))] * len(asks))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(search.live) == _WIDTH
    copied_bytes = _WIDTH * _NUM_TOPS * _OUTPUT_LEN * 8
    assert most_bytes < copied_bytes / 4
