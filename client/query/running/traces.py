r"""Traces as values: a log, and the hole or the end behind it; and the runs that make them.

    start(0) -> AtHole -> answered(text) -> AtHole -> answered(text) -> TraceEnd
                   \-> answered(other text) -> ...

So a trace may be stored, answered twice (a fork) or answered again after a failure (backtracking).

An Execution is one run: it replays a log, then waits at the first hole that is not in it.

    log: X Y      body: ...[X] ...[Y] ...[Z]
                            |      |      `-- reached: the caller plans Z and fills it
                            `------`--------- known, no request

Each run converts texts to new values, so that modifying one in place does not affect other runs.

A trace at a hole keeps its suspended run. The first answer resumes that run; every further one
replays the log. So argmax runs a body once, and a fork costs one replay without requests.

A run that is closed while it waits ends by a CancelledError. One that then asks for a hole is
broken off.

A CallContext is the Context of a body: one call of a program within a run. A nested query gets one
of its own in the same run: its holes continue the prompt, its variables and conditions are
separate.

HoleReached -> HolePlan -> GenerateCall, or ScoreCall of a distribution
HoleAnswer -> LogEntry, or Rejected
"""

import asyncio
import inspect
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from client.calls import GenerateCall, ScoreCall
from client.query.conditions.bounds import conjuncts_of, names_of
from client.query.conditions.evaluate import Finished, evaluate
from client.query.conditions.planner import HolePlan, StopMode, plan
from client.query.conditions.terms import Term, Value, written
from client.query.errors import BadProgram, Place, ProgramFailed, QueryError, Source, Unsatisfiable
from client.query.program import Decorator, Hole, Program, Subquery
from client.query.reading.program_errors import locate, located_errors, shortened
from client.query.running.decoding import (
    FinishedHole,
    HoleAnswer,
    Options,
    PromptParts,
    Rejected,
    TraceEnd,
    Transcript,
    gather_or_cancel,
    prompt_of,
    text_of,
)
from client.sampling import MAX_SEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program and its arguments."""

    program: Program
    arguments: tuple[object, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A finished hole in a log, with everything that a replay needs.

    prompt_before:   the prompt at the hole
    value:           as in HolePlan
    deferred_checks: the call's conditions for later holes
    """

    finished: FinishedHole
    prompt_before: PromptParts
    value: Callable[[str], object]
    deferred_checks: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HoleReached:
    """A run waits at a hole.

    query:      the name of the hole's program
    terms:      the hole's conditions, with the present values of Python's variables
    values:     the finished holes of the same call
    prompt_parts: the prompt so far
    has_outer_conditions: conditions mention the hole that this nested query fills
    is_last:    no other hole follows
    """

    hole: Hole
    query: str
    source: Source
    terms: tuple[Term, ...]
    values: Mapping[str, object]
    deferred_checks: tuple[Term, ...]
    prompt_parts: PromptParts
    has_outer_conditions: bool = False
    is_last: bool = False


class Execution:
    """Owner of one task of a body. `next_hole` and `fill` alternate."""

    def __init__(self, log: Sequence[LogEntry]) -> None:
        loop = asyncio.get_running_loop()
        self.transcript = Transcript()
        self._known = deque(log)
        self._reached: asyncio.Future[HoleReached] = loop.create_future()
        self._given: asyncio.Future[LogEntry] = loop.create_future()
        self._task: asyncio.Task[object] | None = None
        self._raised: tuple[Exception, Program] | None = None
        # An error that occurred while waiting at a hole.
        self._fault: BadProgram | None = None
        self._is_closed = False
        # Set where a closed run asks for a hole.
        self._goes_on: asyncio.Future[None] = loop.create_future()

    def begin(self, body: Coroutine[Any, Any, object]) -> None:
        """Start the body, which calls `next_entry` at each hole."""
        self._task = asyncio.create_task(_without_exits(body))

    # For the caller of the program

    async def next_hole(self) -> HoleReached | None:
        """The next hole that is not in the log, None at the end of the body.

        Raises the body's exception, or the error of `abort`.
        """
        assert self._task is not None
        either: set[asyncio.Future[Any]] = {self._task, self._reached}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._reached.done():
            return self._reached.result()
        try:
            self._task.result()
        except asyncio.CancelledError as error:
            what = RuntimeError("what the program awaits was cancelled")
            raise what.with_traceback(error.__traceback__) from error
        return None

    @property
    def returned(self) -> object:
        """The body's return value; only after its end."""
        assert self._task is not None
        return self._task.result()

    def failed_program(self, error: Exception) -> Program | None:
        """The nested program that raised an error of the body, if any."""
        return self._raised[1] if self._raised and self._raised[0] is error else None

    def fill(self, entry: LogEntry) -> None:
        """Fill the hole that was reached.

        Raises BadProgram if the program no longer waits for it, for example after a timeout of its
        own: that depends on the clock, so a replay could not reproduce it.
        """
        given = self._given
        loop = asyncio.get_running_loop()
        if self._fault is not None:
            raise self._fault
        if given.cancelled():
            left = self._reached.result()
            what = f"the program stopped waiting for [{left.hole.name}]; put timeouts around runs"
            raise BadProgram(what, left.hole.place, left.source)
        self._reached = loop.create_future()
        self._given = loop.create_future()
        given.set_result(entry)

    async def close(self) -> None:
        """End the body, and wait for its end; its exceptions are ignored."""
        assert self._task is not None
        self._is_closed = True
        await end(self._task, goes_on=self._goes_on)

    # For the program

    async def next_entry(
        self, hole: Hole, source: Source, reached: Callable[[], HoleReached]
    ) -> LogEntry:
        """The entry of the hole: from the log, or from `fill`."""
        if self._is_closed:
            if not self._goes_on.done():
                self._goes_on.set_result(None)
            await self._wait_forever()
        if self._known:
            entry = self._known.popleft()
            if entry.finished.name != hole.name:
                what = f"the program is not pure: run again, it came to [{hole.name}] where it"
                await self.abort(
                    BadProgram(f"{what} had come to [{entry.finished.name}]", hole.place, source)
                )
            if entry.prompt_before != self.transcript.prompt_parts:
                await self.abort(other_prompt(hole, source))
            return entry
        if self._reached.done():
            what = f"[{hole.name}] is asked for while another hole is; a prompt has one at a time"
            if not self._given.cancelled():
                self._fault = BadProgram(what, hole.place, source)
            await self._wait_forever()
        self._reached.set_result(reached())
        return await self._given

    def note(self, error: Exception, program: Program) -> None:
        """Record that a nested program raised this error; the innermost one counts."""
        if self._raised is None or self._raised[0] is not error:
            self._raised = (error, program)

    async def abort(self, error: Exception) -> NoReturn:
        """Report an error to the caller of the program; the program cannot catch it."""
        if not self._reached.done():
            self._reached.set_exception(error)
        await self._wait_forever()

    async def _wait_forever(self) -> NoReturn:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody wakes an aborted run")


async def _without_exits(body: Coroutine[Any, Any, object]) -> object:
    """Convert SystemExit, which would end the event loop and everything else in it."""
    try:
        return await body
    except SystemExit as error:
        what = RuntimeError(f"the program asks for an exit: {error!r}")
        raise what.with_traceback(error.__traceback__) from error


CLOSING_S = 10.0
_BROKEN_OFF_S = 0.1


async def end(
    task: asyncio.Task[Any],
    within_s: float = CLOSING_S,
    goes_on: "asyncio.Future[None] | None" = None,
) -> None:
    """Cancel a task and wait for its end; its exceptions are ignored.

    If it takes too long or `goes_on`, or if the wait itself is cancelled, the task is broken off:
    code that cleans up runs as far as it awaits nothing.
    """
    task.cancel()
    try:
        awaited: set[asyncio.Future[Any]] = {task} if goes_on is None else {task, goes_on}
        await asyncio.wait(awaited, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            what = "a program goes on after its run was cancelled, and is broken off"
            warnings.warn(
                f"{what}: something swallows CancelledError", RuntimeWarning, stacklevel=2
            )
    finally:
        if not task.done():
            # GeneratorExit is raised in its coroutine, and the task woken up, which then ends.
            coroutine: Any = task.get_coro()
            with suppress(Exception, asyncio.CancelledError):
                coroutine.close()
            task.cancel()
    # What swallows even this stays behind, at a hole that nobody fills.
    await asyncio.wait({task}, timeout=_BROKEN_OFF_S)
    if task.done() and not task.cancelled():
        task.exception()  # else Python would log it


def other_prompt(hole: Hole, source: Source) -> BadProgram:
    """The error if a replay has a different prompt."""
    what = f"run again, its prompt in front of [{hole.name}] is another"
    return BadProgram(f"the program is not pure: {what}", hole.place, source)


def plan_of(reached: HoleReached, options: Options, refused: tuple[str, ...]) -> HolePlan:
    """The plan of the hole's request. Raises Unsatisfiable, BadCondition."""
    try:
        made = plan(
            _terms(reached),
            reached.hole.name,
            reached.hole.kind,
            reached.values,
            StopMode(options.stops),
            refused,
        )
        # The values of a distribution are judged one by one, without a mask.
        is_choice = reached.hole.support is not None
        return HolePlan(deferred=made.deferred, value=made.value) if is_choice else made
    except QueryError as error:
        locate(error, reached.hole.place, reached.source)
        raise


def _terms(reached: HoleReached) -> tuple[Term, ...]:
    """The hole's own conditions, and the checks deferred to it."""
    name = reached.hole.name
    deferred = (term for term in reached.deferred_checks if name in names_of(term))
    return (*reached.terms, *(term for term in deferred if term not in reached.terms))


def generate_call(
    reached: HoleReached, plan: HolePlan, options: Options, index: int, log: Sequence[LogEntry]
) -> GenerateCall:
    """The request of a hole. Raises Unsatisfiable if `max_len` leaves no tokens."""
    seed = options.sampling.seed
    return GenerateCall(
        prompt=prompt_of(reached.prompt_parts),
        sampling=replace(
            options.sampling, seed=None if seed is None else (seed + index) & MAX_SEED
        ),
        max_tokens=_budget(reached, plan, options, log),
        constraint=plan.constraint,
        stop=plan.stop,
        keeps_stop=plan.keeps_stop,
    )


def _budget(
    reached: HoleReached, plan: HolePlan, options: Options, log: Sequence[LogEntry]
) -> int | None:
    bounds = [bound for bound in (plan.max_tokens, options.max_tokens) if bound is not None]
    if options.max_len is not None:
        left = options.max_len - sum(entry.finished.answer.num_tokens for entry in log)
        if left < 1 and reached.hole.support is None:
            what = f"max_len={options.max_len} tokens are spent before [{reached.hole.name}]"
            raise Unsatisfiable(what, reached.hole.place, reached.source)
        bounds.append(left)
    return min(bounds, default=None)


def score_call(reached: HoleReached, plan: HolePlan, refused: tuple[str, ...]) -> ScoreCall | None:
    """The request of a distribution: the values of its support that the hole's type and the
    conditions allow."""
    support = reached.hole.support
    if support is None:
        return None
    left = [text for text in dict.fromkeys(support) if text not in refused]
    values = tuple(text for text in left if _is_allowed(reached, plan, text))
    if not values:
        what = f"no value of the distribution over [{reached.hole.name}] is allowed"
        if not support:
            what = f"the distribution over [{reached.hole.name}] has no values"
        raise Unsatisfiable(what, reached.hole.place, reached.source)
    return ScoreCall(prompt=prompt_of(reached.prompt_parts), values=values)


def _is_allowed(reached: HoleReached, plan: HolePlan, text: str) -> bool:
    try:
        value = _read(reached, plan, text)
    except Rejected:
        return False
    made = Finished(value, text, has_tokens=False)
    values = {**reached.values, reached.hole.name: made}
    parts = (part for term in _terms(reached) for part in conjuncts_of(term))
    try:
        return all(evaluate(part, values) for part in parts if names_of(part) <= values.keys())
    except QueryError as error:
        locate(error, reached.hole.place, reached.source)
        raise


def entry_of(reached: HoleReached, plan: HolePlan, answer: HoleAnswer) -> LogEntry:
    """The log entry of the answer. Raises Rejected if a check fails."""
    hole = reached.hole
    source = reached.source
    value = _read(reached, plan, answer.text)
    made = Finished(value, answer.text, answer.num_tokens)
    values = {**reached.values, hole.name: made}
    for check in plan.checks:
        _judge(check, values, hole, source)
    return LogEntry(
        finished=FinishedHole(name=hole.name, answer=answer, value=value),
        prompt_before=reached.prompt_parts,
        value=plan.value,
        deferred_checks=_left(reached, plan),
    )


def _judge(check: Term, values: Mapping[str, object], hole: Hole, source: Source) -> None:
    """Raises Rejected if the check fails."""
    try:
        is_kept = evaluate(check, values)
    except QueryError as error:
        locate(error, hole.place, source)
        raise
    if not is_kept:
        made = values[hole.name]
        assert isinstance(made, Finished)
        what = f"`{written(check)}` does not hold: [{hole.name}] is {shortened(made.value)}"
        raise Rejected(what, made.value, hole.place, source)


def _left(reached: HoleReached, plan: HolePlan) -> tuple[Term, ...]:
    """The checks deferred to holes behind this one."""
    others = (
        check for check in reached.deferred_checks if reached.hole.name not in names_of(check)
    )
    return (*others, *plan.deferred)


def _read(reached: HoleReached, plan: HolePlan, text: str) -> object:
    """The value. A ValueError of the type rejects the text; other errors are bugs of the type."""
    hole = reached.hole
    source = reached.source
    what = f"[{hole.name}] cannot be read from {shortened(text)}"
    try:
        return plan.value(text)
    except ValueError as error:
        raise Rejected(f"{what}: {error}", text, hole.place, source) from error
    except Exception as error:
        said = f": {error}" if str(error) else ""
        message = f"{what}: {type(error).__name__}{said}"
        raise ProgramFailed(message, hole.place, source) from error


class CallContext:
    """Owner of the values of one call's holes, and of the checks deferred to later holes.

    Programs may use it as `context`.
    """

    def __init__(
        self,
        run: Execution,
        program: Program,
        *,
        has_outer_conditions: bool = False,
        is_nested: bool = False,
    ) -> None:
        """`has_outer_conditions`: conditions mention the hole that this call fills."""
        self._run = run
        self._query = program.name
        self._source = program.source
        self._has_outer_conditions = has_outer_conditions
        self._is_nested = is_nested
        self.values: dict[str, Finished] = {}
        self._deferred_checks: tuple[Term, ...] = ()

    @property
    def prompt(self) -> str:
        """The prompt up to here."""
        return text_of(self._run.transcript.prompt_parts)

    def say(self, text: str) -> None:
        """Append text to the prompt, with recalled values."""
        self._run.transcript.say(text)

    def role(self, name: str, place: Place) -> None:
        """`{:name}`: begin a turn."""
        transcript = self._run.transcript
        if transcript.is_plain and transcript.has_holes:
            what = f"{{:{name}}} comes too late: holes before it were asked as plain text"
            raise BadProgram(what, place, self._source)
        transcript.turn(name)

    async def hole(self, hole: Hole) -> Any:
        """Fill a hole; returns the value of its variable."""
        if isinstance(hole.kind, Subquery):
            return await self._nested(hole, hole.kind)
        self._run.transcript.answer_now()
        terms = await self._terms(hole)
        entry = await self._run.next_entry(hole, self._source, lambda: self._reached(hole, terms))
        answer = entry.finished.answer
        text = answer.text
        self._run.transcript.fill(hole.name, text)
        self._deferred_checks = entry.deferred_checks
        made = Finished(entry.value(text), text, answer.num_tokens)
        return await self._bind(hole, made)

    def _reached(self, hole: Hole, terms: tuple[Term, ...]) -> HoleReached:
        return HoleReached(
            hole=hole,
            query=self._query,
            source=self._source,
            terms=terms,
            values={name: value for name, value in self.values.items() if name != hole.name},
            deferred_checks=self._deferred_checks,
            prompt_parts=self._run.transcript.prompt_parts,
            has_outer_conditions=self._has_outer_conditions,
            is_last=hole.is_last and not self._is_nested,
        )

    def _has_conditions_on(self, hole: Hole, terms: tuple[Term, ...]) -> bool:
        """Whether a condition depends on this hole."""
        return any(hole.name in names_of(term) for term in (*terms, *self._deferred_checks))

    async def _terms(self, hole: Hole) -> tuple[Term, ...]:
        """Evaluate the conditions' terms; the body cannot catch their errors."""
        try:
            return tuple(condition() for condition in hole.conditions)
        except QueryError as error:
            await self._abort(error, hole)

    async def _nested(self, hole: Hole, sub: Subquery) -> Any:
        if hole.support is not None:
            what = (
                f"a distribution is over a hole that the model writes; [{hole.name}] is filled by"
                f" the query `{sub.program.name}`: say it of a hole in that one"
            )
            await self._abort(BadProgram(what, hole.place, self._source), hole)
        transcript = self._run.transcript
        mark = transcript.mark()
        terms = await self._terms(hole)
        await self._refuse_false(hole, terms)
        has_outer_conditions = self._has_outer_conditions or self._has_conditions_on(hole, terms)
        inner = CallContext(
            self._run, sub.program, has_outer_conditions=has_outer_conditions, is_nested=True
        )
        try:
            body = sub.program.body(inner, *sub.arguments, **sub.keywords)
        except TypeError as error:
            # Wrong arguments are an error of the caller.
            raise ProgramFailed(f"TypeError: {error}", hole.place, self._source) from error
        try:
            value = await body
        except Exception as error:
            self._run.note(error, sub.program)
            raise
        if sub.program.returns:
            transcript.truncate(mark)
            text = "" if value is None else str(value)
            transcript.fill(hole.name, text)
        else:
            own = transcript.prompt_parts[mark:]
            text = text_of([part for part in own if part.role is None])
            value = text
        await self._check(hole, terms, value, text)
        return await self._bind(hole, Finished(value, text, has_tokens=False))

    async def _refuse_false(self, hole: Hole, terms: tuple[Term, ...]) -> None:
        """Check the parts without holes before the nested query sends requests."""
        try:
            for term in terms:
                if not names_of(term) and evaluate(term, {}) is False:
                    place = None if isinstance(term, Value) else term.place
                    raise Unsatisfiable(f"`{written(term)}` does not hold", place)
        except QueryError as error:
            await self._abort(error, hole)

    async def _check(self, hole: Hole, terms: tuple[Term, ...], value: object, text: str) -> None:
        """Check the conditions on a nested query's value, which no mask enforces."""
        values = {**self.values, hole.name: Finished(value, text, has_tokens=False)}
        left = []
        every = (*self._deferred_checks, *terms)
        for check in (part for each in every for part in conjuncts_of(each)):
            if not names_of(check) <= values.keys():
                left.append(check)
                continue
            try:
                _judge(check, values, hole, self._source)
            except QueryError as error:
                await self._abort(error, hole)
        self._deferred_checks = tuple(left)

    async def _bind(self, hole: Hole, made: Finished) -> object:
        value = made.value
        for decorator in reversed(hole.decorators):
            value = await _decorated(decorator, value, made.text)
        self.values[hole.name] = replace(made, value=value)
        return value

    async def _abort(self, error: QueryError, hole: Hole) -> NoReturn:
        locate(error, hole.place, self._source)
        await self._run.abort(error)


async def _decorated(decorator: Decorator, value: object, text: str) -> object:
    """The decorator's result. A parameter `text` gets the hole's text, too."""
    function = decorator.function
    given = {"text": text} if _takes_text(function) else {}
    made = function(value, **given)
    return await made if inspect.isawaitable(made) else made


def _takes_text(function: Callable[..., object]) -> bool:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return "text" in names[1:]


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

    async def start(self, index: int) -> "Trace":
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
    ) -> "Trace":
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

    async def _next(self, run: Execution, context: CallContext, index: int, log: Log) -> "Trace":
        reached = await self._reached(run)
        if reached is not None:
            suspended = SuspendedExecution(run, context, reached)
            return AtHole(self, index, log, reached, (), [suspended])
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


class AtHole:
    """A trace that waits for the text of a hole.

    index:       the number under which the trace was started
    call:        the one request that fills the hole; not for a distribution
    score_call:  for a distribution, the one request that scores its support; else None
    is_last:     every text that its call allows ends the trace
    """

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
        constraint = self.call.constraint
        is_json = constraint is not None and constraint.type == "json"
        # If a check fails, or a type's own code, the hole may be requested again.
        self.is_last = reached.is_last and not self.plan.checks and not is_json

    def refusing(self, texts: Sequence[str]) -> "AtHole":
        """The same hole without these texts. Raises Unsatisfiable if no text is left."""
        refused = (*self._refused, *texts)
        return AtHole(
            self._traces, self.index, self._log, self._reached, refused, self._suspended_runs
        )

    async def answered(self, answer: HoleAnswer) -> "Trace":
        """The trace behind this hole: at the next one, or at its end.

        Raises Rejected if a check fails on the text, Unsatisfiable if the next hole's `where` is
        impossible behind it, ProgramFailed if the program's own code raises. May be called again
        with another answer.
        """
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
        """End the body's run, and wait for its end; the trace is replayed when needed."""
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


Trace: TypeAlias = AtHole | TraceEnd
# Starts trace i with a new run of the body.
Start: TypeAlias = Callable[[int], Coroutine[Any, Any, Trace]]
