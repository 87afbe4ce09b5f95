"""Numbered steps run in their order, and none after a failed one."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from model_server.errors import InvalidStep, StaleEpoch
from model_server.service.step_queue import Step, StepQueue


@pytest.fixture
def device_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def queue(device_thread: ThreadPoolExecutor) -> StepQueue:
    queue = StepQueue(device_thread)
    queue.begin_epoch(1)
    return queue


@dataclass
class Handle:
    """A step in flight, until it is ready or somebody finishes it."""

    value: int = 0
    is_ready: bool = True
    error: Exception | None = None

    def finish(self) -> int:
        self.is_ready = True
        if self.error is not None:
            raise self.error
        return self.value


def fails(begun: Callable[[], None]) -> Handle:
    raise MemoryError


def gives(value: int) -> Step[int]:
    """A step that has ended when it was begun."""
    return lambda begun: Handle(value)


async def test_steps_that_arrive_in_another_order_run_in_theirs(queue: StepQueue) -> None:
    ran: list[int] = []

    def noting(number: int) -> Step[int]:
        def step(begun: Callable[[], None]) -> Handle:
            ran.append(number)
            return Handle()

        return step

    async with asyncio.timeout(30):
        await asyncio.gather(*(queue.run(noting(number), number) for number in (3, 2, 4, 1, 5)))
    assert ran == [1, 2, 3, 4, 5]


async def test_a_step_is_with_the_thread_before_the_one_before_it_has_ended(
    queue: StepQueue, device_thread: ThreadPoolExecutor
) -> None:
    loop, released = asyncio.get_running_loop(), asyncio.Event()

    def hold(begun: Callable[[], None]) -> Handle:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(30)
        return Handle()

    first = asyncio.ensure_future(queue.run(hold, 1))
    second = asyncio.ensure_future(queue.run(gives(0), 2))
    await asyncio.sleep(0)
    assert device_thread._work_queue.qsize() == 1
    released.set()
    await asyncio.gather(first, second)


async def test_a_step_behind_one_that_failed_is_refused(queue: StepQueue) -> None:
    steps = [queue.run(fails, 1), queue.run(gives(0), 2)]
    first, second = await asyncio.gather(*steps, return_exceptions=True)
    assert isinstance(first, MemoryError)
    assert isinstance(second, InvalidStep)
    assert "step 2 follows step 1, which failed" in str(second)
    queue.begin_epoch(2)
    assert await queue.run(gives(7), 1) == 7


async def test_a_number_that_came_before_is_refused(queue: StepQueue) -> None:
    await queue.run(gives(0), 1)
    with pytest.raises(InvalidStep, match="step 1 came before; the next one is 2"):
        await queue.run(gives(0), 1)


async def test_a_step_that_waits_when_an_epoch_begins_never_runs(queue: StepQueue) -> None:
    early = asyncio.ensure_future(queue.run(fails, 2))
    await asyncio.sleep(0)
    queue.begin_epoch(2)
    with pytest.raises(StaleEpoch):
        await early
    assert await queue.run(gives(7), 1) == 7


async def test_a_caller_that_gives_up_waiting_leaves_its_number_free(queue: StepQueue) -> None:
    early = asyncio.ensure_future(queue.run(fails, 2))
    await asyncio.sleep(0)
    early.cancel()
    await queue.run(gives(0), 1)
    assert await queue.run(gives(7), 2) == 7


async def test_steps_without_a_number_run_as_they_come(queue: StepQueue) -> None:
    with pytest.raises(MemoryError):
        await queue.run(fails, None)
    assert await queue.run(gives(7), None) == 7


async def test_an_answer_waits_for_the_forward_of_the_next_step(queue: StepQueue) -> None:
    """The event loop has the interpreter's lock while the device computes, not before."""
    loop, seen = asyncio.get_running_loop(), list[bool]()
    both_given = threading.Event()

    def first(begun: Callable[[], None]) -> Handle:
        both_given.wait(30)
        return Handle()

    def second(begun: Callable[[], None]) -> Handle:
        async def look() -> None:
            seen.append(answer.done())

        asyncio.run_coroutine_threadsafe(look(), loop).result(30)
        begun()
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(answer, 30), loop).result(30)
        return Handle()

    answer = asyncio.ensure_future(queue.run(first, 1))
    following = asyncio.ensure_future(queue.run(second, 2))
    await asyncio.sleep(0)
    both_given.set()
    await following
    assert seen == [False]


async def test_an_answer_does_not_wait_for_a_step_that_never_computes(queue: StepQueue) -> None:
    steps = [queue.run(gives(number), number) for number in (1, 2, 3)]
    async with asyncio.timeout(30):
        assert await asyncio.gather(*steps) == [1, 2, 3]


async def test_a_step_in_flight_is_finished_when_the_next_one_begins(queue: StepQueue) -> None:
    first, is_begun = Handle(1, is_ready=False), threading.Event()
    seen: list[bool] = []

    def begin_first(begun: Callable[[], None]) -> Handle:
        is_begun.set()
        return first

    def begin_second(begun: Callable[[], None]) -> Handle:
        seen.append(first.is_ready)
        begun()
        seen.append(first.is_ready)
        return Handle(2)

    answers = [asyncio.ensure_future(queue.run(begin_first, 1))]
    await asyncio.to_thread(is_begun.wait, 30)
    answers.append(asyncio.ensure_future(queue.run(begin_second, 2)))
    async with asyncio.timeout(30):
        assert await asyncio.gather(*answers) == [1, 2]
    assert seen == [False, True]


async def test_a_step_that_nothing_follows_is_finished_when_it_is_ready(queue: StepQueue) -> None:
    handle = Handle(1, is_ready=False)
    answer = asyncio.ensure_future(queue.run(lambda begun: handle, 1))
    await asyncio.sleep(0.02)
    assert not answer.done()
    handle.is_ready = True
    async with asyncio.timeout(30):
        assert await answer == 1


async def test_a_step_behind_one_that_fails_in_flight_is_refused(queue: StepQueue) -> None:
    handle = Handle(is_ready=False, error=MemoryError())

    def second(begun: Callable[[], None]) -> Handle:
        begun()
        return Handle(2)

    steps = [queue.run(lambda begun: handle, 1), queue.run(second, 2), queue.run(gives(3), 3)]
    answers = await asyncio.gather(*steps, return_exceptions=True)
    assert isinstance(answers[0], MemoryError)
    assert all("follows step 1, which failed" in str(answer) for answer in answers[1:])
