"""The queue of steps before the device's thread: numbered steps run in the order of their numbers.

    given:   step 3         step 2
                |  waits ---> |
    thread:     | step 1 runs ........| step 2 ..........| step 3 ..........

A step that is in flight is left unfinished when the next one has come: that one finishes it when
it begins. Without a next one it is finished once it is ready.

Steps come from calls, by the event loop, and from a step socket, which the thread reads itself;
each may pass others on its way.

An answer waits until the next step, if there is one, has begun and is about to be launched: so the
device does not wait for it. The thread and the event loop share the interpreter's lock, and the
event loop has it to itself while a forward is computed.
"""

import asyncio
import ctypes
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from model_server.engine.first_rank import StepInFlight
from model_server.engine.runner import Runner
from model_server.errors import InvalidStep, StaleEpoch
from model_server.service.device_thread import DeviceThread
from model_server.service.tracing import NO_TRACES, StepCall, StepTracer
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


@dataclass(slots=True, eq=False)
class GivenStep:
    """A step to be run, and what is done with its result, on the device's thread.

    number: None: it runs when it comes
    is_given_up: nobody waits for it; if it has not begun, its number is free
    """

    call: StepCall
    number: int | None
    answer: Callable[[StepOutput], None]
    fail: Callable[[BaseException], None]
    is_given_up: bool = False
    given_ns: int = field(default_factory=time.perf_counter_ns)


class StepQueue:
    """What the device's thread does in its turns. `run` is for the event loop, the rest its own."""

    def __init__(
        self, runner: Runner, device_thread: DeviceThread, tracer: StepTracer = NO_TRACES
    ) -> None:
        self._runner = runner
        self._device_thread = device_thread
        self._tracer = tracer
        self._caller: LoopCaller | None = None
        self._next = 1
        self._given: dict[int, GivenStep] = {}
        self._unnumbered: deque[GivenStep] = deque()
        self._failed: int | None = None
        # The step that has run, or is in flight, and whose answer is still to be given.
        self._unanswered: tuple[GivenStep, StepInFlight] | None = None
        device_thread.turn = self.turn

    async def run(self, call: StepCall, number: int | None) -> StepOutput:
        """Runs a step once those of smaller numbers have run; without a number, when it comes.

        Raises what the step raises, InvalidStep for a number that came before or behind a numbered
        step that failed, and StaleEpoch when another epoch begins first.
        """
        if self._caller is None:
            self._caller = LoopCaller()
        caller = self._caller
        answer: asyncio.Future[StepOutput] = asyncio.get_running_loop().create_future()
        step = GivenStep(
            call,
            number,
            lambda output: caller.call(partial(_set_result, answer, output)),
            lambda error: caller.call(partial(_set_exception, answer, error)),
        )
        self._device_thread.submit(self.give, step)
        try:
            return await answer
        finally:
            step.is_given_up = True

    def begin_epoch(self, number: int) -> None:
        """The next step is number 1; steps that wait for one before them raise StaleEpoch."""
        self._answer()
        waiting = [*self._given.values(), *self._unnumbered]
        self._given.clear()
        self._unnumbered.clear()
        for step in waiting:
            step.fail(StaleEpoch(f"epoch {number} has begun"))
        self._next = 1
        self._failed = None

    def give(self, step: GivenStep) -> None:
        """The step is run in its turn."""
        number = step.number
        if number is None:
            self._unnumbered.append(step)
            return
        waiting = self._given.get(number)
        if number < self._next or (waiting is not None and not waiting.is_given_up):
            came_before = f"step {number} came before; the next one is {self._next}"
            step.fail(InvalidStep(came_before))
            return
        self._given[number] = step

    def turn(self) -> bool:
        """Runs the next step, or answers the last one; False: there is nothing to do."""
        step = self._next_step()
        if step is not None:
            self._run(step)
            return True
        if self._unanswered is None:
            return False
        _, running = self._unanswered
        if _may_be_finished(running):
            self._answer()
        else:
            time.sleep(_POLL_INTERVAL_S)
        return True

    def _next_step(self) -> GivenStep | None:
        if self._unnumbered:
            return self._unnumbered.popleft()
        step = self._given.pop(self._next, None)
        if step is None or step.is_given_up:
            return None
        self._next += 1
        return step

    def _run(self, step: GivenStep) -> None:
        """One behind a failure is refused: it relies on what never was."""
        call = step.call
        try:
            self._require_none_failed(step)
            running = self._runner.begin(call.new, call.updates, call.dropped_ids)
            self._answer()
            self._require_none_failed(step)
            self._runner.launch(running)
            if running.is_ready:
                self._runner.finish(running)
        except BaseException as error:  # noqa: BLE001 -- it is the answer
            self._answer()
            self._fail(step, error)
            return
        self._unanswered = (step, running)

    def _require_none_failed(self, step: GivenStep) -> None:
        if self._failed is not None and step.number is not None:
            raise InvalidStep(
                f"step {step.number} follows step {self._failed}, which failed: its epoch is over"
            )

    def _answer(self) -> None:
        """Finish the step that is not answered, if there is one, and answer it."""
        if self._unanswered is None:
            return
        step, running = self._unanswered
        self._unanswered = None
        try:
            output = self._runner.finish(running)
            step.answer(output)
            self._tracer.stepped(step.call, output)
            if not self._runner.is_prepared:
                self._device_thread.submit(self._runner.prepare)
        except BaseException as error:  # noqa: BLE001 -- it is the answer
            self._fail(step, error)

    def _fail(self, step: GivenStep, error: BaseException) -> None:
        self._failed = self._failed or step.number
        self._tracer.failed(step.call, time.perf_counter_ns() - step.given_ns, error)
        step.fail(error)


def _may_be_finished(running: StepInFlight) -> bool:
    # A device that has failed may raise here; finishing the step says why, to other ranks as well.
    try:
        return running.is_ready
    except Exception:  # noqa: BLE001 -- the end of the step raises it again
        return True


def _set_result(answer: asyncio.Future[StepOutput], output: StepOutput) -> None:
    if not answer.done():
        answer.set_result(output)


def _set_exception(answer: asyncio.Future[StepOutput], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
