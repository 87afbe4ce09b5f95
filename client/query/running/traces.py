"""Traces as values: a log, and the hole or the end behind it. See `decoding.py`.

A trace at a hole keeps the run that came there. Its first answer takes that run on; every further
one replays the log. So argmax runs a body once, and a fork costs one replay, which asks the model
nothing.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

from client.calls import GenerateCall, ScoreCall
from client.query.conditions.plan import HolePlan
from client.query.errors import BadProgram
from client.query.place import Source
from client.query.program import Hole
from client.query.running.call_context import CallContext
from client.query.running.concurrently import gather_or_cancel
from client.query.running.decoding import FinishedHole, HoleAnswer, Options, Trace, TraceEnd
from client.query.running.error_places import blaming
from client.query.running.execution import Entry, Execution, HoleReached, Job, other_prompt
from client.query.running.hole_requests import entry_of, generate_call, plan_of, score_call

Log = tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class SuspendedExecution:
    """A run that waits at a hole, and the frame of its program."""

    run: Execution
    frame: CallContext
    arrival: HoleReached


class Traces:
    """Starts and follows the traces of one job. Owner of the runs under way."""

    def __init__(self, job: Job, options: Options, enter: Callable[[int], None]) -> None:
        """`enter` is called with a trace's number in the task that runs its body."""
        self._job = job
        self._options = options
        self._enter = enter
        self._runs: set[Execution] = set()

    async def start(self, index: int) -> Trace:
        """A fresh run of the body."""
        run, frame = self._begin(index, ())
        async with self._ended_by_failure(run):
            return await self._next(run, frame, index, ())

    async def close(self) -> None:
        """End all runs."""
        await self.end(*self._runs)

    async def end(self, *runs: Execution) -> None:
        """End these, and wait until they have ended."""
        self._runs.difference_update(runs)
        await gather_or_cancel(run.close() for run in runs)

    async def again(self, index: int, log: Log, hole: Hole, source: Source) -> SuspendedExecution:
        """A new run, at the hole behind the log."""
        run, frame = self._begin(index, log)
        async with self._ended_by_failure(run):
            arrival = await self._arrival(run)
        if arrival is None or arrival.hole.name != hole.name:
            await self.end(run)
            what = f"the program is not pure: run again, it did not come to [{hole.name}]"
            raise BadProgram(what, hole.place, source)
        return SuspendedExecution(run, frame, arrival)

    async def on(self, stand: SuspendedExecution, entry: Entry, index: int, log: Log) -> Trace:
        """Where a run comes to, once its hole is filled."""
        async with self._ended_by_failure(stand.run):
            stand.run.give(entry)
            return await self._next(stand.run, stand.frame, index, (*log, entry))

    def at(
        self, arrival: HoleReached, index: int, log: Log, refused: tuple[str, ...]
    ) -> tuple[HolePlan, GenerateCall, ScoreCall | None]:
        """What a hole means and asks for."""
        plan = plan_of(arrival, self._options, refused)
        call = generate_call(arrival, plan, self._options, index, log)
        return plan, call, score_call(arrival, plan, refused)

    def _begin(self, index: int, log: Log) -> tuple[Execution, CallContext]:
        run = Execution(log)
        frame = CallContext(run, self._job.program)
        run.begin(self._body(index, frame))
        self._runs.add(run)
        return run, frame

    async def _body(self, index: int, frame: CallContext) -> object:
        self._enter(index)
        job = self._job
        return await job.program.body(frame, *job.arguments, **job.keywords)

    async def _next(self, run: Execution, frame: CallContext, index: int, log: Log) -> Trace:
        arrival = await self._arrival(run)
        if arrival is not None:
            stand = SuspendedExecution(run, frame, arrival)
            return WaitingTrace(self, index, log, arrival, (), [stand])
        self._runs.discard(run)
        variables = {name: value.value for name, value in frame.values.items()}
        return TraceEnd(
            index=index,
            finished=tuple(entry.finished for entry in log),
            value=run.returned,
            pieces=run.transcript.pieces,
            variables=MappingProxyType(variables),
        )

    @asynccontextmanager
    async def _ended_by_failure(self, run: Execution) -> AsyncGenerator[None, None]:
        """A run whose next place is not come to is in nobody's hands."""
        try:
            yield
        except BaseException:
            await self.end(run)
            raise

    async def _arrival(self, run: Execution) -> HoleReached | None:
        """The run's next hole; what the body raises points to its place."""
        with blaming(lambda error: run.culprit(error) or self._job.program):
            return await run.arrive()


class WaitingTrace:
    """A trace at a hole. `stands` holds the run that waits there, until an answer takes it on."""

    def __init__(
        self,
        traces: Traces,
        index: int,
        log: Log,
        arrival: HoleReached,
        refused: tuple[str, ...],
        stands: list[SuspendedExecution],
    ) -> None:
        self._traces = traces
        self._log = log
        self._arrival = arrival
        self._refused = refused
        self._stands = stands
        self.index = index
        self.hole = arrival.hole
        self.query = arrival.query
        self.source = arrival.source
        self.pieces = arrival.pieces
        self.owes = arrival.owes
        self.plan, self.call, self.score_call = traces.at(arrival, index, log, refused)
        # What a check refuses may yet be asked for again.
        self.is_last = arrival.is_last and not self.plan.checks

    @property
    def finished(self) -> Sequence[FinishedHole]:
        return tuple(entry.finished for entry in self._log)

    @property
    def logprob(self) -> float:
        return sum(entry.finished.answer.logprob for entry in self._log)

    def refusing(self, texts: Sequence[str]) -> "WaitingTrace":
        refused = (*self._refused, *texts)
        return WaitingTrace(
            self._traces, self.index, self._log, self._arrival, refused, self._stands
        )

    async def answered(self, answer: HoleAnswer) -> Trace:
        stand, plan = await self._stand()
        try:
            entry = entry_of(stand.arrival, plan, answer)
        except Exception:
            if self._stands:
                await self._traces.end(stand.run)
            else:
                self._stands.append(stand)
            raise
        return await self._traces.on(stand, entry, self.index, self._log)

    async def close(self) -> None:
        runs = [stand.run for stand in self._stands]
        self._stands.clear()
        await self._traces.end(*runs)

    async def _stand(self) -> tuple[SuspendedExecution, HolePlan]:
        """A run at this hole. A new one has Python's variables anew, so its plan is its own."""
        if self._stands:
            return self._stands.pop(), self.plan
        stand = await self._traces.again(self.index, self._log, self.hole, self.source)
        if stand.arrival.pieces != self.pieces:
            await self._traces.end(stand.run)
            raise other_prompt(self.hole, self.source)
        if not (self.plan.checks or self.plan.deferred):
            return stand, self.plan
        return stand, self._traces.at(stand.arrival, self.index, self._log, self._refused)[0]
