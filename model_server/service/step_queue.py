"""The queue of steps before the device's thread: numbered steps run in the order of their numbers.

    handlers:  step 3 arrives   step 2 arrives
                    |  waits ------> |
    thread:    | step 1 runs ........| step 2 ..........| step 3 ..........

Calls of one connection arrive in order, but each is handled by a task of its own, so that tasks may
pass each other. A step is given to the thread as soon as the one before it was, not when that has
ended: the thread goes from one to the next without waiting for the event loop.

The thread and the event loop share the interpreter's lock, so an answer waits until the next step
leaves the interpreter for its forward, if there is a next step: the event loop has the lock to
itself from there on, and the device does not wait for it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeAlias, TypeVar

from model_server.errors import InvalidStep, StaleEpoch
from model_server.service.loop_caller import LoopCaller

T = TypeVar("T")

# Runs on the device's thread; calls what it is given when its forward begins, if it gets there.
Step: TypeAlias = Callable[[Callable[[], None]], T]


class StepQueue:
    """Used by the event loop's thread alone. `device_thread` has one worker."""

    def __init__(self, device_thread: Executor) -> None:
        self._device_thread = device_thread
        self._next = 1
        self._early: dict[int, asyncio.Future[None]] = {}
        self._epoch = _Epoch(0)
        self._caller: LoopCaller | None = None

    def begin_epoch(self, number: int) -> None:
        """The next step is number 1; steps that wait for one before them raise StaleEpoch."""
        for waiting in self._early.values():
            if not waiting.done():
                waiting.set_exception(StaleEpoch(f"epoch {number} has begun"))
        self._early.clear()
        self._next = 1
        self._epoch = _Epoch(number)

    async def run(self, step: Step[T], number: int | None) -> T:
        """Runs a step once those of smaller numbers have run; without a number, when it comes.

        Raises what the step raises, InvalidStep for a number that came before or behind a numbered
        step that failed, and StaleEpoch when another epoch begins first.
        """
        loop = asyncio.get_running_loop()
        if number is None:
            return await loop.run_in_executor(self._device_thread, step, _begun)
        if number != self._next:
            await self._turn(number)
        if self._caller is None:
            self._caller = LoopCaller()
        running: asyncio.Future[T] = loop.create_future()
        self._epoch.num_given += 1
        work = self._device_thread.submit(self._epoch.run, step, number)
        work.add_done_callback(partial(self._epoch.ended, running, self._caller))
        self._next = number + 1
        following = self._early.pop(self._next, None)
        if following is not None and not following.done():
            following.set_result(None)
        return await running

    async def _turn(self, number: int) -> None:
        if number < self._next or number in self._early:
            raise InvalidStep(f"step {number} came before; the next one is {self._next}")
        waiting = self._early[number] = asyncio.get_running_loop().create_future()
        await waiting


def _begun() -> None:
    """A step that nothing follows: no answer waits for it."""


class _Epoch:
    """What the device's thread knows of an epoch. `num_given` is the event loop's."""

    def __init__(self, number: int) -> None:
        self.num_given = 0
        self._num_run = 0
        self._number = number
        self._failed: int | None = None
        self._unanswered: Callable[[], None] | None = None

    def run(self, step: Step[T], number: int) -> T:
        """A step that was sent before the failure of one before it relies on what never was."""
        if self._failed is not None:
            raise InvalidStep(
                f"step {number} follows step {self._failed}, which failed: epoch {self._number} is"
                " over"
            )
        try:
            return step(self._answer)
        except BaseException:
            self._failed = number
            raise

    def ended(self, answer: asyncio.Future[T], caller: LoopCaller, step: Future[T]) -> None:
        """The answer is given when the next step's forward begins, or now."""
        self._answer()
        self._unanswered = partial(caller.call, partial(_give, answer, step))
        self._num_run += 1
        if self._num_run == self.num_given:
            self._answer()

    def _answer(self) -> None:
        if self._unanswered is not None:
            self._unanswered()
        self._unanswered = None


def _give(answer: asyncio.Future[T], step: Future[T]) -> None:
    if answer.done():
        return
    if error := step.exception():
        answer.set_exception(error)
    else:
        answer.set_result(step.result())
