"""OutputReader of beams of whose constraint masks enforce a part only."""

from dataclasses import replace

from constraints.spec import ConstraintSpec, Kind
from router.engine.beam_search.requests import OutputTexts
from router.engine.beam_search.search import BeamSearch
from router.engine.beam_search.types import (
    Beam,
    BeamGroup,
    EndedHole,
    Hole,
    JudgeText,
    NextTokens,
    SearchEnd,
)
from router.request.request import Constraint
from tests.byte_tokenizer import EOS_ID
from tests.router.rig import asking, byte_tokenizer

_LENIENT = Constraint(ConstraintSpec(Kind.JSON_SCHEMA, '{"contains": {}}', lenient=True))


def test_a_text_that_an_end_token_ended_is_judged_before_it_is_kept() -> None:
    hole = Hole(replace(asking(max_new_tokens=9), constraint=_LENIENT), is_last=True)
    end_token_ids = frozenset({EOS_ID})
    group = BeamGroup(width=1, holes=(hole,), beams=(Beam(hole=0),), end_token_ids=end_token_ids)
    search = BeamSearch(group, OutputTexts(byte_tokenizer(), 4))
    running = search.run()
    next(running)

    judged = running.send([NextTokens(((EOS_ID, -0.1), (EOS_ID + 5, -0.2)), end_token_ids)])
    running.send([EndedHole("", is_satisfied=False, violation="/: nothing is contained")])
    running.send([NextTokens(((EOS_ID + 5, -0.1),), end_token_ids)])

    assert [type(ask) for ask in judged] == [JudgeText]
    dropped = search.outcome(SearchEnd.CANCELLED).dropped
    assert [(place.closed and place.closed.violation, error) for place, error in dropped] == [
        ("/: nothing is contained", None)
    ]
