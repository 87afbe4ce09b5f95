"""The server's beam search over a Model in memory that can be asked token by token."""

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from client.beams import (
    BeamDropped,
    BeamHole,
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    BeamState,
    BestCall,
    SearchCall,
)
from client.errors import ConstraintRefused
from client.words import Answer, GenerateCall, Sampling, Usage
from router.engine.beam_search.best_first import BestFirstSearch
from router.engine.beam_search.best_words import BestGroup, BestOutcome, Ending, Node, Open
from router.engine.beam_search.search import BeamSearch
from router.engine.beam_search.steps import Asking
from router.engine.beam_search.types import (
    Ask,
    Beam,
    Close,
    Closed,
    Dead,
    Group,
    Hole,
    Outcome,
    Place,
    Probe,
    Probed,
    Scoring,
    Told,
)
from router.request.errors import RouterError
from tests.router.rig import ANY_TEXT, asking

OutcomeT = TypeVar("OutcomeT")
_UNBOUNDED = 99
_NUM_LANES = 3


class Generates(Protocol):
    """What a search needs of a model. `text_of` is the text of an output."""

    async def generate(self, call: GenerateCall) -> Answer: ...

    def text_of(self, output: Sequence[int]) -> str: ...


class _Texts:
    def __init__(self, model: Generates) -> None:
        self._model = model

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        return self._model.text_of(output_ids)

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        return False


class _Refusal(RouterError):
    def __init__(self, error: ConstraintRefused) -> None:
        super().__init__(str(error))
        self.error = error


async def searched(
    model: Generates, call: SearchCall, end_token_id: int
) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
    """What a server would answer."""
    ends = frozenset((end_token_id,))
    if isinstance(call, BestCall):
        search = BestFirstSearch(_best_group(call, ends), _Texts(model))
        best, num_asked = await _carried_out(search.run(), model, call)
        yield _best_answer(best, num_asked)
        return
    group = _group(call, ends)
    outcome, _ = await _carried_out(BeamSearch(group, _Texts(model)).run(), model, call)
    yield BeamsAnswer(
        finish_reason=outcome.reason.value,
        beams=_states(outcome.beams),
        candidates=None if outcome.candidates is None else _states(outcome.candidates),
        has_more=outcome.has_more,
        num_considered=group.num_considered,
        ended=_states([place for place, _ in outcome.ended]),
        dropped=_dropped(outcome),
    )


async def _carried_out(
    asking: Asking[OutcomeT], model: Generates, call: SearchCall
) -> tuple[OutcomeT, int]:
    """What came of it, and how often a next token was asked for."""
    num_asked = 0
    try:
        asks = next(asking)
        while True:
            num_asked += sum(isinstance(ask, Probe) for ask in asks)
            told = [await _told(model, ask, call.holes[ask.beam.hole], call) for ask in asks]
            asks = asking.send(told)
    except StopIteration as stop:
        return stop.value, num_asked


def _best_answer(outcome: BestOutcome, num_asked: int) -> BeamsAnswer:
    return BeamsAnswer(
        finish_reason=outcome.reason.value,
        beams=tuple(_left(each) for each in outcome.left),
        ended=_states(outcome.ended),
        dropped=_dropped(outcome),
        usage=Usage(num_output_tokens=num_asked),
    )


def _left(each: Node | Place) -> BeamState:
    if isinstance(each, Place):
        return _state(each)
    state = _state(Place(each.beam))
    if isinstance(each, Ending):
        return replace(state, ended_by="token" if each.by_token else "length")
    return replace(state, known=each.known, most=each.most) if each.known else state


def _dropped(outcome: Outcome | BestOutcome) -> tuple[BeamDropped, ...]:
    return tuple(
        BeamDropped(_state(place), error.error if isinstance(error, _Refusal) else None)
        for place, error in outcome.dropped
    )


def _holes(call: SearchCall) -> tuple[Hole, ...]:
    holes = []
    for hole in call.holes:
        constraint = None if hole.constraint is None else ANY_TEXT
        request = asking(max_new_tokens=hole.max_tokens or _UNBOUNDED, constraint=constraint)
        holes.append(Hole(request, hole.is_last))
    return tuple(holes)


def _beam(beam: BeamState) -> Beam:
    return Beam(
        hole=beam.hole,
        output_ids=beam.output,
        logprob=beam.logprob,
        num_tokens=beam.num_tokens,
        output_logprob=beam.output_logprob,
    )


def _group(call: BeamsCall, end_token_ids: frozenset[int]) -> Group:
    return Group(
        width=call.width,
        holes=_holes(call),
        beams=tuple(map(_beam, call.beams)),
        end_token_ids=end_token_ids,
        scoring=Scoring(
            length_penalty=call.length_penalty,
            early_stopping=call.early_stopping,
            max_len=call.max_len,
        ),
        ended=call.ended,
        num_candidates=call.num_candidates,
    )


def _best_group(call: BestCall, end_token_ids: frozenset[int]) -> BestGroup:
    return BestGroup(
        k=call.k,
        width=_NUM_LANES,
        num_tops=call.num_alternatives,
        budget=call.budget,
        holes=_holes(call),
        nodes=tuple(map(_node, call.beams)),
        end_token_ids=end_token_ids,
        ended=call.ended,
        bound=-math.inf if call.bound is None else call.bound,
    )


def _node(state: BeamState) -> Node:
    if state.ended_by is not None:
        return Ending(_beam(state), by_token=state.ended_by == "token")
    return Open(_beam(state), state.known, math.inf if state.most is None else state.most)


async def _told(model: Generates, ask: Ask, hole: BeamHole, call: SearchCall) -> Told:
    asked = GenerateCall(
        prompt=hole.prompt,
        sampling=replace(call.sampling, temperature=0.0),
        max_tokens=hole.max_tokens,
        constraint=hole.constraint,
        stop=hole.stop,
        output=ask.beam.output_ids,
        num_steps=1,
        top_logprobs=_num_tops(ask, call),
    )
    if isinstance(ask, Close):
        *before, last = ask.beam.output_ids
        sampling = Sampling(logit_bias={last: 100.0})
        asked = replace(asked, output=tuple(before), sampling=sampling, top_logprobs=0)
    try:
        answer = await model.generate(asked)
    except ConstraintRefused as error:
        return Dead(_Refusal(error))
    if isinstance(ask, Close):
        text = answer.standing.text + answer.text
        return Closed(text, answer.constraint_satisfied is not False)
    ranked = sorted(answer.tokens[0].top_logprobs.items(), key=lambda pair: -pair[1])
    return Probed(tuple(ranked), answer.standing.end_token_ids)


def _num_tops(ask: Ask, call: SearchCall) -> int:
    if isinstance(ask, Probe) and ask.num_tops is not None:
        return ask.num_tops
    return 2 * call.width + 8 if isinstance(call, BeamsCall) else 0


def _states(places: Sequence[Place]) -> tuple[BeamState, ...]:
    return tuple(_state(place) for place in places)


def _state(place: Place) -> BeamState:
    beam = place.beam
    return BeamState(
        hole=beam.hole,
        output=beam.output_ids,
        logprob=beam.logprob,
        num_tokens=beam.num_tokens,
        output_logprob=beam.output_logprob,
        text="" if place.closed is None else place.closed.text,
        is_ended=place.closed is not None,
    )
