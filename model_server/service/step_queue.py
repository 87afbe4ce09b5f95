"""The queue of steps before the device's thread: numbered steps run in the order of their numbers.

    handlers:  step 3 arrives   step 2 arrives
                    |  waits ------> |
    thread:    | step 1 runs ........| step 2 ..........| step 3 ..........

A step that is in flight is left unfinished when the next one has come: that one finishes it when
it begins. Without a next one it is finished once it is ready.

Calls of one connection arrive in order, but each is handled by a task of its own, so that tasks may
pass each other. A step is given to the thread as soon as the one before it was, not when that has
ended: the thread goes from one to the next without waiting for the event loop.

The thread and the event loop share the interpreter's lock, so an answer waits until the next step,
if there is one, has begun and is about to be launched: its forward leaves the interpreter, and the
event loop has the lock to itself from there on, and the device does not wait for it.
"""

import asyncio
import ctypes
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial

from model_server.engine.first_rank import StepInFlight
from model_server.engine.runner import Runner
from model_server.errors import InvalidStep, StaleEpoch
from model_server.service.tracing import StepCall
from model_server.step import StepOutput

# Foreign functions of a PyDLL are called with the lock held.
_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_write.restype = ctypes.c_ssize_t


class LoopCaller:
    """Calls on the event loop's thread from another one, which keeps the interpreter's lock.

    `call_soon_threadsafe` lets go of the lock to wake the loop, and the caller may wait long until
    it has it again. Here the loop wakes up, and gets the lock when the caller lets go of it anyway.
    Made on the thread of a running loop, and lives no longer than that.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        reading, self._writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(self._writing, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(reading, _run, reading, self._calls)
        weakref.finalize(self, _end, loop, reading, self._writing)

    def call(self, function: Callable[[], None]) -> None:
        """From any thread."""
        self._calls.append(function)
        # A full pipe will wake the loop as well.
        _write(self._writing, b"\0", 1)


def _run(reading: int, calls: deque[Callable[[], None]]) -> None:
    os.read(reading, 4096)
    while calls:
        calls.popleft()()


def _end(loop: asyncio.AbstractEventLoop, reading: int, writing: int) -> None:
    """On whatever thread lets go of the caller last."""
    if loop.is_closed():
        _close(reading, writing)
    else:
        loop.call_soon_threadsafe(_forget, loop, reading, writing)


def _forget(loop: asyncio.AbstractEventLoop, reading: int, writing: int) -> None:
    # A loop that goes on takes another file of this number for the same one, and never looks at it.
    loop.remove_reader(reading)
    _close(reading, writing)


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


_POLL_INTERVAL_S = 50e-6


class StepQueue:
    """Used by the event loop's thread alone. `device_thread` has one worker."""

    def __init__(self, runner: Runner, device_thread: Executor) -> None:
        self._runner = runner
        self._device_thread = device_thread
        self._next = 1
        self._early: dict[int, asyncio.Future[None]] = {}
        self._epoch = _Epoch(runner, 0)
        self._caller: LoopCaller | None = None

    def begin_epoch(self, number: int) -> None:
        """The next step is number 1; steps that wait for one before them raise StaleEpoch."""
        for waiting in self._early.values():
            if not waiting.done():
                waiting.set_exception(StaleEpoch(f"epoch {number} has begun"))
        self._early.clear()
        self._next = 1
        self._epoch = _Epoch(self._runner, number)

    async def run(self, call: StepCall, number: int | None) -> StepOutput:
        """Runs a step once those of smaller numbers have run; without a number, when it comes.

        Raises what the step raises, InvalidStep for a number that came before or behind a numbered
        step that failed, and StaleEpoch when another epoch begins first.
        """
        loop = asyncio.get_running_loop()
        if number is None:
            return await loop.run_in_executor(
                self._device_thread, self._runner.step, call.new, call.updates, call.dropped_ids
            )
        if number != self._next:
            await self._turn(number)
        if self._caller is None:
            self._caller = LoopCaller()
        running: asyncio.Future[StepOutput] = loop.create_future()
        self._epoch.num_given += 1
        work = self._device_thread.submit(self._epoch.run, call, number)
        work.add_done_callback(partial(self._epoch.ended, running, self._caller, number))
        self._next = number + 1
        following = self._early.pop(self._next, None)
        if following is not None and not following.done():
            following.set_result(None)
        return await running

    async def _turn(self, number: int) -> None:
        if number < self._next or number in self._early:
            raise InvalidStep(f"step {number} came before; the next one is {self._next}")
        waiting = asyncio.get_running_loop().create_future()
        self._early[number] = waiting
        await waiting


@dataclass(frozen=True, slots=True, eq=False)
class _Unanswered:
    """A step that has run, or failed to, and whose answer is still to be given."""

    answer: asyncio.Future[StepOutput]
    caller: LoopCaller
    number: int
    step: Future[StepInFlight]


class _Epoch:
    """What the device's thread knows of an epoch. `num_given` is the event loop's."""

    def __init__(self, runner: Runner, number: int) -> None:
        self.num_given = 0
        self._runner = runner
        self._num_run = 0
        self._number = number
        self._failed: int | None = None
        self._unanswered: _Unanswered | None = None

    def run(self, call: StepCall, number: int) -> StepInFlight:
        """A step that was sent before the failure of one before it relies on what never was."""
        self._require_none_failed(number)
        try:
            step = self._runner.begin(call.new, call.updates, call.dropped_ids)
            self._answer()
            self._require_none_failed(number)
            self._runner.launch(step)
            while not step.is_ready and self._num_run + 1 == self.num_given:
                time.sleep(_POLL_INTERVAL_S)
            if step.is_ready:
                self._runner.finish(step)
        except BaseException:
            self._failed = self._failed or number
            raise
        return step

    def ended(
        self,
        answer: asyncio.Future[StepOutput],
        caller: LoopCaller,
        number: int,
        step: Future[StepInFlight],
    ) -> None:
        """The answer is given when the next step is launched, or now."""
        self._answer()
        self._unanswered = _Unanswered(answer, caller, number, step)
        self._num_run += 1
        if self._num_run == self.num_given:
            self._answer()

    def _require_none_failed(self, number: int) -> None:
        if self._failed is not None:
            raise InvalidStep(
                f"step {number} follows step {self._failed}, which failed: epoch {self._number} is"
                " over"
            )

    def _answer(self) -> None:
        """Finish the step that is not answered, if nobody has; its result is the event loop's."""
        one = self._unanswered
        self._unanswered = None
        if one is None:
            return
        try:
            output = self._runner.finish(one.step.result())
        except BaseException as error:  # noqa: BLE001 -- it is the answer
            self._failed = self._failed or one.number
            one.caller.call(partial(_set_exception, one.answer, error))
            return
        one.caller.call(partial(_set_result, one.answer, output))


def _set_result(answer: asyncio.Future[StepOutput], output: StepOutput) -> None:
    if not answer.done():
        answer.set_result(output)


def _set_exception(answer: asyncio.Future[StepOutput], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
