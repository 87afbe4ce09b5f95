"""Traces as values: a log, and the hole or the end behind it. See `decoding.py`.

A trace at a hole keeps its suspended run. The first answer resumes that run; every further one
replays the log. So argmax runs a body once, and a fork costs one replay without requests.
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
from client.query.running.error_places import located_errors
from client.query.running.execution import Execution, HoleReached, Job, LogEntry, other_prompt
from client.query.running.hole_requests import entry_of, generate_call, plan_of, score_call

Log = tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class SuspendedExecution:
    """A run that waits at a hole, and the context of its program."""

    run: Execution
    context: CallContext
    reached: HoleReached


class Traces:
    """Starts and resumes the traces of one job. Owner of its runs."""

    def __init__(self, job: Job, options: Options, enter: Callable[[int], None]) -> None:
        """`enter`: called with the number of a trace in the task of its body."""
        self._job = job
        self._options = options
        self._enter = enter
        self._runs: set[Execution] = set()

    async def start(self, index: int) -> Trace:
        """Start a new run of the body."""
        run, context = self._begin(index, ())
        async with self._closed_on_failure(run):
            return await self._next(run, context, index, ())

    async def close(self) -> None:
        """End all runs."""
        await self.end(*self._runs)

    async def end(self, *runs: Execution) -> None:
        """End these runs, and wait for their ends."""
        self._runs.difference_update(runs)
        await gather_or_cancel(run.close() for run in runs)

    async def replay(self, index: int, log: Log, hole: Hole, source: Source) -> SuspendedExecution:
        """A new run at the hole behind the log."""
        run, context = self._begin(index, log)
        async with self._closed_on_failure(run):
            reached = await self._reached(run)
        if reached is None or reached.hole.name != hole.name:
            await self.end(run)
            what = f"the program is not pure: run again, it did not come to [{hole.name}]"
            raise BadProgram(what, hole.place, source)
        return SuspendedExecution(run, context, reached)

    async def resume(
        self, suspended: SuspendedExecution, entry: LogEntry, index: int, log: Log
    ) -> Trace:
        """Fill the hole of a run; returns the trace behind it."""
        async with self._closed_on_failure(suspended.run):
            suspended.run.fill(entry)
            return await self._next(suspended.run, suspended.context, index, (*log, entry))

    def at(
        self, reached: HoleReached, index: int, log: Log, refused: tuple[str, ...]
    ) -> tuple[HolePlan, GenerateCall, ScoreCall | None]:
        """The plan and the requests of a hole."""
        plan = plan_of(reached, self._options, refused)
        call = generate_call(reached, plan, self._options, index, log)
        return plan, call, score_call(reached, plan, refused)

    def _begin(self, index: int, log: Log) -> tuple[Execution, CallContext]:
        run = Execution(log)
        context = CallContext(run, self._job.program)
        run.begin(self._body(index, context))
        self._runs.add(run)
        return run, context

    async def _body(self, index: int, context: CallContext) -> object:
        self._enter(index)
        job = self._job
        return await job.program.body(context, *job.arguments, **job.keywords)

    async def _next(self, run: Execution, context: CallContext, index: int, log: Log) -> Trace:
        reached = await self._reached(run)
        if reached is not None:
            suspended = SuspendedExecution(run, context, reached)
            return WaitingTrace(self, index, log, reached, (), [suspended])
        self._runs.discard(run)
        variables = {name: value.value for name, value in context.values.items()}
        return TraceEnd(
            index=index,
            finished=tuple(entry.finished for entry in log),
            value=run.returned,
            prompt_parts=run.transcript.prompt_parts,
            variables=MappingProxyType(variables),
        )

    @asynccontextmanager
    async def _closed_on_failure(self, run: Execution) -> AsyncGenerator[None, None]:
        """Context: end the run if it fails before its next hole."""
        try:
            yield
        except BaseException:
            await self.end(run)
            raise

    async def _reached(self, run: Execution) -> HoleReached | None:
        """The run's next hole; errors of the body get their places."""
        with located_errors(lambda error: run.failed_program(error) or self._job.program):
            return await run.next_hole()


class WaitingTrace:
    """A trace at a hole. `suspended_runs`: the run that waits there, until an answer resumes it."""

    def __init__(
        self,
        traces: Traces,
        index: int,
        log: Log,
        reached: HoleReached,
        refused: tuple[str, ...],
        suspended_runs: list[SuspendedExecution],
    ) -> None:
        self._traces = traces
        self._log = log
        self._reached = reached
        self._refused = refused
        self._suspended_runs = suspended_runs
        self.index = index
        self.hole = reached.hole
        self.query = reached.query
        self.source = reached.source
        self.prompt_parts = reached.prompt_parts
        self.has_outer_conditions = reached.has_outer_conditions
        self.plan, self.call, self.score_call = traces.at(reached, index, log, refused)
        # If a check fails, the hole may be requested again.
        self.is_last = reached.is_last and not self.plan.checks

    @property
    def finished(self) -> Sequence[FinishedHole]:
        return tuple(entry.finished for entry in self._log)

    @property
    def logprob(self) -> float:
        return sum(entry.finished.answer.logprob for entry in self._log)

    def refusing(self, texts: Sequence[str]) -> "WaitingTrace":
        refused = (*self._refused, *texts)
        return WaitingTrace(
            self._traces, self.index, self._log, self._reached, refused, self._suspended_runs
        )

    async def answered(self, answer: HoleAnswer) -> Trace:
        suspended, plan = await self._suspended_here()
        try:
            entry = entry_of(suspended.reached, plan, answer)
        except Exception:
            if self._suspended_runs:
                await self._traces.end(suspended.run)
            else:
                self._suspended_runs.append(suspended)
            raise
        return await self._traces.resume(suspended, entry, self.index, self._log)

    async def close(self) -> None:
        runs = [suspended.run for suspended in self._suspended_runs]
        self._suspended_runs.clear()
        await self._traces.end(*runs)

    async def _suspended_here(self) -> tuple[SuspendedExecution, HolePlan]:
        """A run at this hole. A new run has new Python variables, so it needs its own plan."""
        if self._suspended_runs:
            return self._suspended_runs.pop(), self.plan
        suspended = await self._traces.replay(self.index, self._log, self.hole, self.source)
        if suspended.reached.prompt_parts != self.prompt_parts:
            await self._traces.end(suspended.run)
            raise other_prompt(self.hole, self.source)
        if not (self.plan.checks or self.plan.deferred):
            return suspended, self.plan
        return suspended, self._traces.at(suspended.reached, self.index, self._log, self._refused)[
            0
        ]
