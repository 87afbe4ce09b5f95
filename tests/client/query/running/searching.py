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
from client.calls import GenerateCall
from client.errors import ConstraintRefused
from router.engine.beam_search import (
    Ask,
    AskResult,
    Beam,
    BeamGroup,
    BeamScoring,
    BeamSearch,
    CheckHole,
    DeadEnd,
    EndedHole,
    NextTokens,
    Search,
    SearchOutcome,
)
from router.engine.beam_search import (
    Hole as SearchHole,
)
from router.engine.beam_search import (
    Place as SearchPlace,
)
from router.request.errors import RouterError
from tests.router.rig import ANY_TEXT, asking

_UNBOUNDED = 99


class TokenModel(Protocol):
    """A model that a search asks token by token."""

    @property
    def end_token_id(self) -> int: ...

    def next_tokens(self, call: GenerateCall, output: tuple[int, ...]) -> dict[int, float]:
        """The log-probabilities of the legal tokens, the most probable first."""
        ...

    def text_of(self, output: Sequence[int]) -> str: ...


class _Texts:
    def __init__(self, model: TokenModel) -> None:
        self._model = model

    def text(self, hole: SearchHole, output_ids: tuple[int, ...]) -> str:
        return self._model.text_of(output_ids)

    def is_ended(self, hole: SearchHole, output_ids: tuple[int, ...]) -> bool:
        return False


class _Refusal(RouterError):
    def __init__(self, error: ConstraintRefused) -> None:
        super().__init__(str(error))
        self.error = error


async def searched(
    model: TokenModel, call: BeamsCall
) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
    """The answer of a server."""
    group = _group(call, frozenset((model.end_token_id,)))
    outcome = _carried_out(BeamSearch(group, _Texts(model)).run(), model, call)
    yield BeamsAnswer(
        finish_reason=outcome.reason.value,
        beams=_states(outcome.beams),
        candidates=None if outcome.candidates is None else _states(outcome.candidates),
        has_more=outcome.has_more,
        num_considered=group.num_considered,
        ended=_states([place for place, _ in outcome.ended]),
        dropped=_dropped(outcome),
    )


def _carried_out(
    search: Search[SearchOutcome], model: TokenModel, call: BeamsCall
) -> SearchOutcome:
    try:
        asks = next(search)
        while True:
            results = [_result(model, ask, call.holes[ask.beam.hole], call) for ask in asks]
            asks = search.send(results)
    except StopIteration as stop:
        outcome: SearchOutcome = stop.value
        return outcome


def _dropped(outcome: SearchOutcome) -> tuple[BeamDropped, ...]:
    return tuple(
        BeamDropped(_state(place), error.error if isinstance(error, _Refusal) else None)
        for place, error in outcome.dropped
    )


def _holes(call: BeamsCall) -> tuple[SearchHole, ...]:
    holes = []
    for hole in call.holes:
        constraint = None if hole.constraint is None else ANY_TEXT
        request = asking(max_new_tokens=hole.max_tokens or _UNBOUNDED, constraint=constraint)
        holes.append(SearchHole(request, hole.is_last))
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


def _result(model: TokenModel, ask: Ask, hole: BeamHole, call: BeamsCall) -> AskResult:
    if isinstance(ask, CheckHole):
        return EndedHole(model.text_of(ask.beam.output_ids))
    generate_call = GenerateCall(
        prompt=hole.prompt,
        sampling=replace(call.sampling, temperature=0.0),
        max_tokens=hole.max_tokens,
        constraint=hole.constraint,
        stop=hole.stop,
    )
    try:
        logprobs = model.next_tokens(generate_call, ask.beam.output_ids)
    except ConstraintRefused as error:
        return DeadEnd(_Refusal(error))
    tops = list(logprobs.items())[: 2 * call.width + 8]
    return NextTokens(tuple(tops), frozenset((model.end_token_id,)))


def _states(places: Sequence[SearchPlace]) -> tuple[BeamState, ...]:
    return tuple(_state(place) for place in places)


def _state(place: SearchPlace) -> BeamState:
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
