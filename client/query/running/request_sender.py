"""Sends the requests of a run's traces, records them, and reports states."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from client.calls import (
    Answer,
    BeamDropped,
    BeamModel,
    BeamsAnswer,
    BeamsCall,
    GenerateCall,
    Model,
    ScoreCall,
    Scores,
)
from client.errors import ConstraintRefused, Refused, ServerFailed, TandemError
from client.query.conditions.terms import rename_subject
from client.query.errors import BadCondition, NotSatisfied, QueryError, Unsatisfiable
from client.query.running.decoding import (
    HoleAnswer,
    PromptPart,
    PromptParts,
    chosen,
    spans_of,
    text_of,
)
from client.query.running.results import (
    AnswerT,
    Call,
    Recorder,
    RequestSubject,
    Result,
    State,
)
from client.query.running.traces import AtHole

OnState = Callable[[State], None]

# Refusals of invalid constraints; other refusals mean that a constraint is unsatisfiable.
_MEANINGLESS = ("malformed", "not_enforced")
_BROKEN_OFF = ("deadline", "cancelled")
# The interval of reports while holes are being filled.
_VIEW_S = 0.1
_HOLE = re.compile(r"holes\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSender:
    """Sends all requests of a run; a refused constraint is raised as Unsatisfiable at its hole.

    `model_name`: sent with every call; `on_state`: called for every token.
    """

    model: Model
    recorder: Recorder
    model_name: str | None = None
    normalised: bool = False
    on_state: OnState | None = None

    async def fill(self, at: AtHole) -> HoleAnswer:
        """Send the hole's request. Raises NotSatisfied if its constraint was violated."""
        if at.score_call is not None:
            return await self._choose(at, at.score_call)
        answer = await self.generate(at, at.call)
        if answer.constraint_satisfied is False:
            why = answer.violation or f"it ended by {answer.finish_reason}"
            what = f"the conditions of [{at.hole.name}] are not kept: {why}"
            raise NotSatisfied(what, answer.text, at.hole.place, at.source)
        return HoleAnswer(
            text=answer.text,
            logprob=answer.logprob,
            num_tokens=sum(not token.is_end for token in answer.tokens),
        )

    async def generate(self, at: AtHole, call: GenerateCall) -> Answer:
        """One request; recorded when it has ended."""
        call = replace(call, model=self.model_name)
        return await self._recorded([at], call, self._answer(at, call))

    async def search(
        self, ats: Sequence[AtHole], call: BeamsCall
    ) -> tuple[BeamsAnswer, Sequence[QueryError]]:
        """One request, recorded under the first hole. Raises BadCondition at once."""
        report_s = _VIEW_S if self.on_state is not None else call.report_s
        call = replace(call, model=self.model_name, report_s=report_s)
        self._show(ats[0], "")
        answer = await self._recorded(ats, call, self._searched(ats, call))
        return answer, [_fault_of(dropped, ats) for dropped in answer.dropped]

    async def score(self, at: AtHole, call: ScoreCall) -> Scores:
        call = replace(call, model=self.model_name)
        self._show(at, "")
        return await self._recorded([at], call, self.model.score(call))

    async def _recorded(
        self, ats: Sequence[AtHole], call: Call, answering: Awaitable[AnswerT]
    ) -> AnswerT:
        first = ats[0]
        about = RequestSubject(first.index, first.query, first.hole.name)
        try:
            answer = await self.recorder.recorded(about, call, answering)
        except TandemError as error:
            _point(ats[_hole_of(error)], error)
            raise
        return answer

    async def _searched(self, ats: Sequence[AtHole], call: BeamsCall) -> BeamsAnswer:
        if not isinstance(self.model, BeamModel):
            what = f"beam() needs a model that searches; {type(self.model).__name__} does not"
            raise Refused(what, "unserved")
        async with aclosing(self.model.search(call)) as parts:
            async for part in parts:
                if isinstance(part, BeamsAnswer):
                    return _whole(part)
                if part.beams:
                    self._show(ats[part.beams[0].hole], part.beams[0].text)
        raise ServerFailed("the stream has no end", "protocol")

    async def _choose(self, at: AtHole, call: ScoreCall) -> HoleAnswer:
        scores = await self.score(at, call)
        values = [value for value in call.values if isinstance(value, str)]
        return chosen(values, scores.values, normalised=self.normalised)

    async def _answer(self, at: AtHole, call: GenerateCall) -> Answer:
        if self.on_state is None:
            return _whole(await self.model.generate(call))
        self._show(at, "")
        text = ""
        async with aclosing(self.model.stream(call)) as stream:
            async for part in stream:
                if isinstance(part, Answer):
                    return _whole(part)
                text += part.text
                self._show(at, text)
        raise ServerFailed("the stream has no end", "protocol")

    def _show(self, at: AtHole, text: str) -> None:
        if self.on_state is None:
            return
        prompt_parts = (*at.prompt_parts, PromptPart(text, hole=at.hole.name))
        self.on_state(
            State(
                trace=at.index,
                prompt=text_of(prompt_parts),
                spans=spans_of(prompt_parts),
                hole=at.hole.name,
                constraint=at.call.constraint,
                stop=at.call.stop,
            )
        )


def _whole(answer: AnswerT) -> AnswerT:
    """Raises ServerFailed for an answer that was broken off."""
    if not isinstance(answer, Scores) and answer.finish_reason in _BROKEN_OFF:
        raise ServerFailed(f"the request ended by {answer.finish_reason}", "broken_off")
    return answer


def ended(trace: int, prompt_parts: PromptParts) -> State:
    """The last state of a trace."""
    return State(trace=trace, prompt=text_of(prompt_parts), spans=spans_of(prompt_parts))


def _point(at: AtHole, error: TandemError) -> None:
    """Convert a refused constraint to an error of the hole's conditions.

    Other errors get a note with the hole.
    """
    if not isinstance(error, ConstraintRefused):
        error.add_note(str(QueryError(f"asked for [{at.hole.name}]", at.hole.place, at.source)))
        return
    raise _refusal(at, error) from error


def _refusal(at: AtHole, error: ConstraintRefused) -> QueryError:
    reason = error.details.get("reason", error.error_type)
    kind: type[QueryError] = BadCondition if reason in _MEANINGLESS else Unsatisfiable
    constraint = at.call.constraint
    is_of_x = constraint is not None and constraint.type == "where"
    said = str(error).removeprefix(f"`{error.field}`: ")
    message = rename_subject(said, at.hole.name) if is_of_x else said
    return kind(f"[{at.hole.name}]: {message}", at.hole.place, at.source)


def _fault_of(dropped: BeamDropped, ats: Sequence[AtHole]) -> QueryError:
    """The error of a dropped beam. Raises errors that do not concern the beam."""
    at = ats[dropped.beam.hole]
    error = dropped.error
    if isinstance(error, ConstraintRefused):
        return _refusal(at, error)
    if error is not None:
        raise error
    what = f"the conditions of [{at.hole.name}] are not kept within its tokens"
    if dropped.violation is not None:
        what += f": {dropped.violation}"
    return NotSatisfied(what, dropped.beam.text, at.hole.place, at.source)


def _hole_of(error: TandemError) -> int:
    """The index of the hole in a search's error; 0 if it names none."""
    field = error.field if isinstance(error, Refused) else None
    match = _HOLE.match(field or "")
    return 0 if match is None else int(match[1])


Run = Callable[[OnState], Awaitable[tuple[Result[object], ...]]]


async def watched(run: Run) -> AsyncGenerator[State | Result[object], None]:
    """The states of all traces, then the results.

    A slow reader misses intermediate states, but never the last one of a trace. Closing the
    generator cancels the run.
    """
    latest: dict[int, State] = {}
    has_news = asyncio.Event()

    def take(state: State) -> None:
        latest[state.trace] = state
        has_news.set()

    task = asyncio.ensure_future(run(take))
    task.add_done_callback(lambda _: has_news.set())
    try:
        while not (task.done() and not latest):
            await has_news.wait()
            has_news.clear()
            states = tuple(latest.values())
            latest.clear()
            for state in states:
                yield state
            if task.done():
                has_news.set()
        for result in task.result():
            yield result
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
