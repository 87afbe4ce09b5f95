"""Runs a job with a decoder.

A query called by a program's Python code gets its surroundings from a context variable: the
caller's model, and the caller's log, in which its requests are recorded, too.
"""

import time
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from client.calls import Answer, Model, Scores, Usage
from client.errors import TandemError
from client.query.running.decoders import Decoding
from client.query.running.decoding import Choice, TraceEnd
from client.query.running.execution import Job
from client.query.running.request_sender import OnState, RequestSender, ended
from client.query.running.results import CallerTrace, CallFile, Request, RequestLog, Result, total
from client.query.running.traces import Traces
from client.query.running.transcript import messages_of, spans_of, text_of

AnswerT = TypeVar("AnswerT", Answer, Scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSurroundings:
    """The surroundings of a job. `caller_trace`: in which its requests are recorded, too."""

    model: Model
    model_name: str | None = None
    calls: CallFile | None = None
    on_state: OnState | None = None
    caller_trace: CallerTrace | None = None


_SURROUNDINGS: ContextVar[RunSurroundings | None] = ContextVar("_SURROUNDINGS", default=None)


def surroundings() -> RunSurroundings | None:
    """Those of the calling program; None: outside of programs."""
    return _SURROUNDINGS.get()


async def booked(kind: str, call: object, answering: Awaitable[AnswerT]) -> AnswerT:
    """The answer to a call without a program; recorded with the calling program, if any."""
    around = surroundings()
    began_s = time.perf_counter()
    if around is None or around.caller_trace is None:
        return await answering
    try:
        answer = await answering
    except TandemError as error:
        _record(kind, began_s, call, error, around, around.caller_trace)
        raise
    _record(kind, began_s, call, answer, around, around.caller_trace)
    return answer


def _record(
    kind: str,
    began_s: float,
    call: object,
    answer: Answer | Scores | TandemError,
    around: RunSurroundings,
    caller_trace: CallerTrace,
) -> None:
    request = Request(
        kind=kind,
        query="",
        hole="",
        trace=caller_trace.trace,
        duration_s=time.perf_counter() - began_s,
        usage=Usage() if isinstance(answer, TandemError) else answer.usage,
        finish_reason=answer.finish_reason if isinstance(answer, Answer) else None,
        error=str(answer) if isinstance(answer, TandemError) else None,
    )
    caller_trace.request_log.record(caller_trace.trace, request)
    if around.calls is not None:
        around.calls.write(request, call, answer)


async def run_job(
    job: Job, decoding: Decoding, within: RunSurroundings
) -> tuple[Result[object], ...]:
    """All results of the decoder in its order."""
    request_log = RequestLog(within.caller_trace)
    sender = RequestSender(
        model=within.model,
        request_log=request_log,
        model_name=within.model_name,
        normalised=decoding.options.normalised,
        calls=within.calls,
        on_state=within.on_state,
    )
    traces = Traces(job, decoding.options, lambda index: _enter(within, request_log, index))
    try:
        made = await decoding.decoder.decode(traces.start, sender)
    finally:
        await traces.close()
    if within.on_state is not None:
        for trace in made:
            within.on_state(ended(trace.index, trace.prompt_parts))
    return tuple(_result(trace, request_log) for trace in made)


def _enter(within: RunSurroundings, request_log: RequestLog, trace: int) -> None:
    """Set the surroundings for queries called in this trace; they report no states."""
    _SURROUNDINGS.set(
        RunSurroundings(
            model=within.model,
            model_name=within.model_name,
            calls=within.calls,
            caller_trace=CallerTrace(request_log, trace),
        )
    )


def _result(trace: TraceEnd, request_log: RequestLog) -> Result[object]:
    requests = request_log.of_trace(trace.index)
    return Result(
        prompt=text_of(trace.prompt_parts),
        spans=spans_of(trace.prompt_parts),
        messages=() if _is_plain(trace) else messages_of(trace.prompt_parts),
        variables=trace.variables,
        value=trace.value,
        distributions=_distributions(trace),
        logprob=trace.logprob,
        usage=total(requests),
        requests=requests,
    )


def _is_plain(trace: TraceEnd) -> bool:
    return all(part.role is None for part in trace.prompt_parts)


def _distributions(trace: TraceEnd) -> Mapping[str, Choice]:
    return MappingProxyType(
        {hole.name: hole.answer.choice for hole in trace.finished if hole.answer.choice is not None}
    )
