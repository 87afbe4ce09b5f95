"""Numbered steps run in their order, and none after a failed one."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from model_server.engine.first_rank import StepInFlight
from model_server.engine.runner import Runner
from model_server.errors import InvalidStep, StaleEpoch
from model_server.service.device_thread import DeviceThread
from model_server.service.step_queue import GivenStep, LoopCaller, StepQueue
from model_server.service.tracing import StepCall
from model_server.step import StepOutput
from proto.contract import NewSequence, RunningUpdate

WAIT_S = 30


class Step(StepInFlight):
    """A step that takes no device: it is ready when its test says so.

    value:            its output, as the time that it took
    on_begin, error:  what it does when it begins, and what it raises when it is finished
    """

    def __init__(
        self,
        value: int = 0,
        *,
        is_ready: bool = True,
        on_begin: Callable[[], None] = lambda: None,
        error: Exception | None = None,
    ) -> None:
        super().__init__([], None, 0)
        self.output = StepOutput((), (), 0, 0, value)
        self.error = error
        self.on_begin = on_begin
        self.on_launch: Callable[[], None] = lambda: None
        self.may_be_read = is_ready

    @property
    def is_ready(self) -> bool:
        return self.may_be_read


class LostStep(Step):
    """The device fails after it was launched: asking for it raises, and so does finishing it."""

    num_asked = 0

    @property
    def is_ready(self) -> bool:
        self.num_asked += 1
        if self.num_asked > 1:
            raise RuntimeError("the device fell off")
        return False


def fails() -> None:
    raise MemoryError


@dataclass
class Steps(Runner):
    """A runner whose steps are those of the test, by the request that their calls drop."""

    steps: dict[int, StepInFlight]
    is_prepared = True

    def begin(
        self,
        new: Sequence[NewSequence] = (),
        updates: Sequence[RunningUpdate] = (),
        dropped_ids: Sequence[int] = (),
    ) -> StepInFlight:
        step = self.steps[dropped_ids[0]]
        assert isinstance(step, Step)
        step.on_begin()
        return step

    def launch(self, step: StepInFlight) -> None:
        assert isinstance(step, Step)
        step.on_launch()

    def finish(self, step: StepInFlight) -> StepOutput:
        assert isinstance(step, Step)
        step.may_be_read = True
        if step.error is not None:
            raise step.error
        assert step.output is not None
        return step.output


class Queue:
    """The queue under test, with steps that the test makes."""

    def __init__(self, device_thread: DeviceThread) -> None:
        self._runner = Steps({})
        self._device_thread = device_thread
        self._queue = StepQueue(self._runner, device_thread)

    def begin_epoch(self, number: int) -> None:
        """Once the thread has done what came before."""
        self._device_thread.submit(self._queue.begin_epoch, number).result(WAIT_S)

    async def run(self, step: Step, number: int | None) -> int:
        """What the step gives."""
        key = len(self._runner.steps)
        self._runner.steps[key] = step
        return (await self._queue.run(StepCall(dropped_ids=(key,)), number)).total_ns


@pytest.fixture
def queue() -> Iterator[Queue]:
    with DeviceThread() as thread:
        yield Queue(thread)


async def test_steps_that_arrive_in_another_order_run_in_theirs(queue: Queue) -> None:
    ran: list[int] = []
    steps = {n: Step(n, on_begin=lambda n=n: ran.append(n)) for n in (3, 2, 4, 1, 5)}  # type: ignore[misc]
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(queue.run(step, number) for number, step in steps.items()))
    assert ran == [1, 2, 3, 4, 5]


async def test_a_step_behind_one_that_failed_is_refused(queue: Queue) -> None:
    steps = [queue.run(Step(on_begin=fails), 1), queue.run(Step(), 2)]
    first, second = await asyncio.gather(*steps, return_exceptions=True)
    assert isinstance(first, MemoryError)
    assert isinstance(second, InvalidStep)
    assert "step 2 follows step 1, which failed" in str(second)
    queue.begin_epoch(2)
    assert await queue.run(Step(7), 1) == 7


async def test_a_number_that_came_before_is_refused(queue: Queue) -> None:
    await queue.run(Step(), 1)
    with pytest.raises(InvalidStep, match="step 1 came before; the next one is 2"):
        await queue.run(Step(), 1)


async def test_a_step_that_waits_when_an_epoch_begins_never_runs(queue: Queue) -> None:
    early = asyncio.ensure_future(queue.run(Step(on_begin=fails), 2))
    await asyncio.sleep(0)
    queue.begin_epoch(2)
    with pytest.raises(StaleEpoch):
        await early
    assert await queue.run(Step(7), 1) == 7


async def test_a_caller_that_gives_up_waiting_leaves_its_number_free(queue: Queue) -> None:
    early = asyncio.ensure_future(queue.run(Step(on_begin=fails), 2))
    await asyncio.sleep(0)
    early.cancel()
    await asyncio.wait([early])
    await queue.run(Step(), 1)
    assert await queue.run(Step(7), 2) == 7


async def test_steps_without_a_number_run_as_they_come(queue: Queue) -> None:
    with pytest.raises(MemoryError):
        await queue.run(Step(on_begin=fails), None)
    assert await queue.run(Step(7), None) == 7


async def test_an_answer_waits_until_the_next_step_is_launched(queue: Queue) -> None:
    """The event loop has the interpreter's lock while the device computes, not before."""
    loop = asyncio.get_running_loop()
    seen: list[bool] = []
    both_given = threading.Event()
    first = Step(on_begin=lambda: _wait(both_given))
    second = Step()

    async def look() -> None:
        seen.append(answer.done())

    second.on_begin = lambda: asyncio.run_coroutine_threadsafe(look(), loop).result(WAIT_S)
    second.on_launch = lambda: _result_of(asyncio.wait_for(answer, WAIT_S), loop)
    answer = asyncio.ensure_future(queue.run(first, 1))
    following = asyncio.ensure_future(queue.run(second, 2))
    await asyncio.sleep(0)
    both_given.set()
    await following
    assert seen == [False]


async def test_an_answer_does_not_wait_for_a_step_that_never_computes(queue: Queue) -> None:
    steps = [queue.run(Step(number), number) for number in (1, 2, 3)]
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.gather(*steps) == [1, 2, 3]


async def test_a_step_in_flight_is_finished_before_the_next_one_is_launched(queue: Queue) -> None:
    is_begun = threading.Event()
    seen: list[bool] = []
    first = Step(1, is_ready=False, on_begin=is_begun.set)
    second = Step(2, on_begin=lambda: seen.append(first.is_ready))
    second.on_launch = lambda: seen.append(first.is_ready)
    answers = [asyncio.ensure_future(queue.run(first, 1))]
    await asyncio.to_thread(is_begun.wait, WAIT_S)
    answers.append(asyncio.ensure_future(queue.run(second, 2)))
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.gather(*answers) == [1, 2]
    assert seen == [False, True]


async def test_a_step_that_nothing_follows_is_finished_when_it_is_ready(queue: Queue) -> None:
    step = Step(1, is_ready=False)
    answer = asyncio.ensure_future(queue.run(step, 1))
    await asyncio.sleep(0.02)
    assert not answer.done()
    step.may_be_read = True
    async with asyncio.timeout(WAIT_S):
        assert await answer == 1


async def test_a_step_behind_one_that_fails_in_flight_is_refused(queue: Queue) -> None:
    first = Step(is_ready=False, error=MemoryError())
    steps = [queue.run(first, 1), queue.run(Step(2), 2), queue.run(Step(3), 3)]
    answers = await asyncio.gather(*steps, return_exceptions=True)
    assert isinstance(answers[0], MemoryError)
    assert all("follows step 1, which failed" in str(answer) for answer in answers[1:])


async def test_a_device_that_fails_while_a_step_is_in_flight_fails_that_step(queue: Queue) -> None:
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(MemoryError):
            await queue.run(LostStep(error=MemoryError()), 1)
    queue.begin_epoch(2)
    assert await queue.run(Step(7), 1) == 7


async def test_a_step_whose_answer_cannot_be_given_fails_and_the_thread_goes_on() -> None:
    with DeviceThread() as thread:
        steps = StepQueue(Steps({0: Step(1), 1: Step(2)}), thread)
        failed: Future[BaseException] = Future()
        answered: Future[StepOutput] = Future()
        first = StepCall(dropped_ids=(0,))
        thread.submit(steps.give, GivenStep(first, None, _cannot_answer, failed.set_result))
        assert isinstance(failed.result(WAIT_S), OverflowError)
        second = StepCall(dropped_ids=(1,))
        thread.submit(
            steps.give, GivenStep(second, None, answered.set_result, answered.set_exception)
        )
        assert answered.result(WAIT_S).total_ns == 2


async def _called(caller: LoopCaller) -> bool:
    """Whether a call from another thread arrives."""
    arrived = asyncio.Event()
    thread = threading.Thread(target=caller.call, args=(arrived.set,))
    thread.start()
    thread.join()
    try:
        await asyncio.wait_for(arrived.wait(), 5.0)
    except TimeoutError:
        return False
    return True


async def test_a_caller_that_follows_another_on_the_same_loop_is_heard() -> None:
    """The files of the first are closed, and their numbers are those of the second."""
    for _ in range(3):
        caller = LoopCaller()
        assert await _called(caller)
        del caller
        gc.collect()
        await asyncio.sleep(0)


def _cannot_answer(output: StepOutput) -> None:
    raise OverflowError


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


def _result_of(waiting: object, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(waiting, loop).result(WAIT_S)  # type: ignore[arg-type]
