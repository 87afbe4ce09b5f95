"""One run of a program's body: it replays a log, then waits at the first hole that is not in it.

    log: X Y      body: ...[X] ...[Y] ...[Z]
                            |      |      `-- arrives: who runs it plans Z and gives an entry
                            `------`--------- known, no request

Values are made of their texts anew in each run, so that a program which changes one in place does
not change it for other runs.

A run that is closed while it waits ends by a CancelledError. Programs may catch that and go on, as
if a hole had failed; so it is raised again where a body catches it, begins a loop once more or asks
for a hole (see `reading/closing.py`).
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

from client.query.conditions.plan import Check
from client.query.conditions.terms import Term
from client.query.errors import BadProgram
from client.query.place import Source
from client.query.program import Hole, Program
from client.query.running.cancellation import end
from client.query.running.decoding import FinishedHole
from client.query.running.transcript import PromptParts, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program and what it is called with."""

    program: Program
    arguments: tuple[object, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A finished hole in a log: all that a run needs to go past it.

    `behind` is the prompt that it was asked behind; `value` makes the variable's value of the text,
    `is_mixed` says of which sort (HolePlan); `promises` are the frame's checks that later holes
    have to keep.
    """

    finished: FinishedHole
    prompt_before: PromptParts
    prompt_text: str
    value: Callable[[str], object]
    is_mixed: bool = False
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
    """Owner of one task of a body. `arrive` and `give` alternate."""

    def __init__(self, log: Sequence[LogEntry]) -> None:
        loop = asyncio.get_running_loop()
        self.transcript = Transcript()
        self._known = deque(log)
        self._reached: asyncio.Future[HoleReached] = loop.create_future()
        self._given: asyncio.Future[LogEntry] = loop.create_future()
        self._task: asyncio.Task[object] | None = None
        self._raised: tuple[Exception, Program] | None = None
        # What was wrong while a hole was waited for.
        self._fault: BadProgram | None = None
        self._is_closed = False
        self._hole_after_close = False

    def begin(self, body: Coroutine[Any, Any, object]) -> None:
        """The body, which calls `next_entry` at each hole."""
        self._task = asyncio.create_task(_without_exits(body))

    # Who runs the program

    async def next_hole(self) -> HoleReached | None:
        """The next hole that is not in the log, None at the end of the body.

        Raises what the body raised, or what it was stuck with.
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
        """What the body returned; only at its end."""
        assert self._task is not None
        return self._task.result()

    def failed_program(self, error: Exception) -> Program | None:
        """The nested program that an error of the body comes from."""
        return self._raised[1] if self._raised and self._raised[0] is error else None

    def fill(self, entry: LogEntry) -> None:
        """What fills the hole that was arrived at.

        Raises BadProgram if nobody waits for it: a timeout of the program's own, say. When that
        ends a hole depends on the clock, so no log can record it.
        """
        given, loop = self._given, asyncio.get_running_loop()
        if self._fault is not None:
            raise self._fault
        if given.cancelled():
            left = self._reached.result()
            what = f"the program stopped waiting for [{left.hole.name}]; put timeouts around runs"
            raise BadProgram(what, left.hole.place, left.source)
        self._reached, self._given = loop.create_future(), loop.create_future()
        given.set_result(entry)

    async def close(self) -> None:
        """End the body, and wait until it has ended; what it raises meanwhile is nobody's."""
        assert self._task is not None
        self._is_closed = True
        await end(self._task)

    # The program

    async def next_entry(
        self, hole: Hole, source: Source, reached: Callable[[], HoleReached]
    ) -> LogEntry:
        """What fills the hole: from the log, or when it is given."""
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
        """A nested program raises this; the innermost one is where it comes from."""
        if self._raised is None or self._raised[0] is not error:
            self._raised = (error, program)

    async def abort(self, error: Exception) -> NoReturn:
        """Tell who runs the program that it cannot go on; the program itself does not see it."""
        self._leave_if_closed()
        if not self._reached.done():
            self._reached.set_exception(error)
        await self._wait_forever()

    # The program, once it is closed

    def on_hole(self) -> None:
        """Raises CancelledError where there is nobody left to fill it."""
        self._hole_after_close = self._is_closed
        self._leave_if_closed()

    def on_caught(self) -> None:
        """In a handler: raises what ends a closed run again."""
        error = sys.exc_info()[1]
        if self._is_closed and error is not None and not isinstance(error, Exception):
            raise error

    def on_loop(self, *, cleans_up: bool) -> None:
        """Raises CancelledError where a loop would go on in a closed run.

        One that cleans up may, as long as nobody has asked for a hole since.
        """
        if self._hole_after_close or not cleans_up:
            self._leave_if_closed()

    def _leave_if_closed(self) -> None:
        if self._is_closed:
            raise asyncio.CancelledError("its run was closed")

    async def _wait_forever(self) -> NoReturn:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody wakes a run that is stuck")


async def _without_exits(body: Coroutine[Any, Any, object]) -> object:
    """A task that ends by SystemExit takes the event loop along, and all that runs beside it."""
    try:
        return await body
    except SystemExit as error:
        what = RuntimeError(f"the program asks for an exit: {error!r}")
        raise what.with_traceback(error.__traceback__) from error


def other_prompt(hole: Hole, source: Source) -> BadProgram:
    """The error of a program that has another prompt when it runs again."""
    what = f"run again, its prompt in front of [{hole.name}] is another"
    return BadProgram(f"the program is not pure: {what}", hole.place, source)
