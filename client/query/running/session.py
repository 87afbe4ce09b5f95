"""A job run with a decoder, to its results.

A query that a program's Python calls finds what it runs in by a context variable: the model of its
caller, and the ledger in which its requests are booked, too.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from client.model import Model
from client.query.running.asking import Books, OnState, ended
from client.query.running.body_run import Job
from client.query.running.decoders import Decoding
from client.query.running.decoding import Choice, Ended
from client.query.running.ledger import Account, CallFile, Ledger, total
from client.query.running.results import Result
from client.query.running.traces import Traces
from client.query.running.transcript import messages_of, spans_of, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a job runs in. `account`: where its requests are booked besides its own ledger."""

    model: Model
    model_name: str | None = None
    calls: CallFile | None = None
    on_state: OnState | None = None
    account: Account | None = None


_SURROUNDINGS: ContextVar[Surroundings | None] = ContextVar("_SURROUNDINGS", default=None)


def surroundings() -> Surroundings | None:
    """Those of the program that calls, None outside of programs."""
    return _SURROUNDINGS.get()


async def run_job(job: Job, decoding: Decoding, within: Surroundings) -> tuple[Result[object], ...]:
    """All results of the decoder, in its order."""
    ledger = Ledger(within.account)
    books = Books(
        model=within.model,
        query=job.program.name,
        ledger=ledger,
        model_name=within.model_name,
        normalised=decoding.options.normalised,
        calls=within.calls,
        on_state=within.on_state,
    )
    traces = Traces(job, decoding.options, lambda index: _enter(within, ledger, index))
    try:
        made = await decoding.decoder.decode(traces.start, books)
    finally:
        traces.close()
    if within.on_state is not None:
        for trace in made:
            within.on_state(ended(trace.index, trace.pieces))
    return tuple(_result(trace, ledger) for trace in made)


def _enter(within: Surroundings, ledger: Ledger, trace: int) -> None:
    """What queries find that are called in a body of this trace; they show no states."""
    _SURROUNDINGS.set(
        Surroundings(
            model=within.model,
            model_name=within.model_name,
            calls=within.calls,
            account=Account(ledger, trace),
        )
    )


def _result(trace: Ended, ledger: Ledger) -> Result[object]:
    requests = ledger.of_trace(trace.index)
    return Result(
        prompt=text_of(trace.pieces),
        spans=spans_of(trace.pieces),
        messages=() if _is_plain(trace) else messages_of(trace.pieces),
        variables=trace.variables,
        value=trace.value,
        distributions=_distributions(trace),
        logprob=trace.logprob,
        usage=total(requests),
        requests=requests,
    )


def _is_plain(trace: Ended) -> bool:
    return all(piece.role is None for piece in trace.pieces)


def _distributions(trace: Ended) -> Mapping[str, Choice]:
    return MappingProxyType(
        {hole.name: hole.answer.choice for hole in trace.finished if hole.answer.choice is not None}
    )
