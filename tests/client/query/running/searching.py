"""The server's beam search over a Model in memory that can be asked token by token."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Protocol

from client.beams import (
    BeamDropped,
    BeamHole,
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    BeamState,
)
from client.calls import Answer, GenerateCall
from client.errors import ConstraintRefused
from client.sampling import Sampling
from router.engine.beam_search.search import BeamSearch, Search
from router.engine.beam_search.types import (
    Ask,
    AskResult,
    Beam,
    BeamGroup,
    BeamScoring,
    CheckHole,
    DeadEnd,
    EndedHole,
    Hole,
    NextTokens,
    Place,
    SearchOutcome,
)
from router.request.errors import RouterError
from tests.router.rig import ANY_TEXT, asking

_UNBOUNDED = 99


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
    model: Generates, call: BeamsCall, end_token_id: int
) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
    """What a server would answer."""
    ends = frozenset((end_token_id,))
    group = _group(call, ends)
    outcome = await _carried_out(BeamSearch(group, _Texts(model)).run(), model, call)
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
    asking: Search[SearchOutcome], model: Generates, call: BeamsCall
) -> SearchOutcome:
    """What came of it."""
    try:
        asks = next(asking)
        while True:
            result = [await _results(model, ask, call.holes[ask.beam.hole], call) for ask in asks]
            asks = asking.send(result)
    except StopIteration as stop:
        outcome: SearchOutcome = stop.value
        return outcome


def _dropped(outcome: SearchOutcome) -> tuple[BeamDropped, ...]:
    return tuple(
        BeamDropped(_state(place), error.error if isinstance(error, _Refusal) else None)
        for place, error in outcome.dropped
    )


def _holes(call: BeamsCall) -> tuple[Hole, ...]:
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


def _group(call: BeamsCall, end_token_ids: frozenset[int]) -> BeamGroup:
    return BeamGroup(
        width=call.width,
        holes=_holes(call),
        beams=tuple(map(_beam, call.beams)),
        end_token_ids=end_token_ids,
        scoring=BeamScoring(
            length_penalty=call.length_penalty,
            early_stopping=call.early_stopping,
            max_len=call.max_len,
        ),
        ended=call.ended,
        num_candidates=call.num_candidates,
    )


async def _results(model: Generates, ask: Ask, hole: BeamHole, call: BeamsCall) -> AskResult:
    asked = GenerateCall(
        prompt=hole.prompt,
        sampling=replace(call.sampling, temperature=0.0),
        max_tokens=hole.max_tokens,
        constraint=hole.constraint,
        stop=hole.stop,
        output=ask.beam.output_ids,
        num_steps=1,
        top_logprobs=2 * call.width + 8,
    )
    if isinstance(ask, CheckHole):
        *before, last = ask.beam.output_ids
        sampling = Sampling(logit_bias={last: 100.0})
        asked = replace(asked, output=tuple(before), sampling=sampling, top_logprobs=0)
    try:
        answer = await model.generate(asked)
    except ConstraintRefused as error:
        return DeadEnd(_Refusal(error))
    if isinstance(ask, CheckHole):
        text = answer.standing.text + answer.text
        return EndedHole(text, answer.constraint_satisfied is not False)
    ranked = sorted(answer.tokens[0].top_logprobs.items(), key=lambda pair: -pair[1])
    return NextTokens(tuple(ranked), answer.standing.end_token_ids)


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
