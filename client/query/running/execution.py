"""One run of a program's body: replays a log, then waits at the first hole that is not in it.

    log: X Y      body: ...[X] ...[Y] ...[Z]
                            |      |      `-- reached: the caller plans Z and fills it
                            `------`--------- known, no request

Each run converts texts to new values, so that modifying one in place does not affect other runs.

A run that is closed while it waits ends by a CancelledError. One that catches it and asks for a
hole again is broken off.
"""

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

from client.query.conditions.planner import Check
from client.query.conditions.terms import Term
from client.query.errors import BadProgram, Source
from client.query.program import Hole, Program
from client.query.running.decoding import FinishedHole
from client.query.running.transcript import PromptParts, Transcript


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
    deferred_checks: the call's checks for later holes
    """

    finished: FinishedHole
    prompt_before: PromptParts
    value: Callable[[str], object]
    deferred_checks: tuple[Check, ...] = ()


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
    deferred_checks: tuple[Check, ...]
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
        self._has_left = False
        # Set where a closed run asks for a hole again.
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

    # For the program, after it was closed

    async def on_hole(self) -> None:
        """Raises CancelledError at the first hole of a closed run. A program that asks for another
        one has swallowed it, and is broken off there."""
        if not self._is_closed:
            return
        if self._has_left:
            if not self._goes_on.done():
                self._goes_on.set_result(None)
            await self._wait_forever()
        self._has_left = True
        raise asyncio.CancelledError("its run was closed")

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


class CancellationSwallowed(RuntimeWarning):
    """Code that a program awaits continues after the program's run was cancelled."""


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
            what = "code goes on after its run was cancelled, and is broken off; who swallows"
            where = _frames_of(task.get_coro())
            message = f"a program's {what} CancelledError? It stands in {where}"
            warnings.warn(message, CancellationSwallowed, stacklevel=2)
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


def _frames_of(awaiting: Any) -> str:
    """Where a coroutine waits: it, and the coroutines that it awaits."""
    frames = []
    while (frame := getattr(awaiting, "cr_frame", None)) is not None:
        frames.append(f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})")
        awaiting = awaiting.cr_await
    return " > ".join(frames)


def other_prompt(hole: Hole, source: Source) -> BadProgram:
    """The error if a replay has a different prompt."""
    what = f"run again, its prompt in front of [{hole.name}] is another"
    return BadProgram(f"the program is not pure: {what}", hole.place, source)
