"""Numbered steps run in their order, and none after a failed one."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

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


def fails(begun: Callable[[], None]) -> int:
    raise MemoryError


async def test_steps_that_arrive_in_another_order_run_in_theirs(queue: StepQueue) -> None:
    ran: list[int] = []

    def noting(number: int) -> Step[None]:
        return lambda begun: ran.append(number)

    async with asyncio.timeout(30):
        await asyncio.gather(*(queue.run(noting(number), number) for number in (3, 2, 4, 1, 5)))
    assert ran == [1, 2, 3, 4, 5]


async def test_a_step_is_with_the_thread_before_the_one_before_it_has_ended(
    queue: StepQueue, device_thread: ThreadPoolExecutor
) -> None:
    loop, released = asyncio.get_running_loop(), asyncio.Event()

    def hold(begun: Callable[[], None]) -> None:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(30)

    first = asyncio.ensure_future(queue.run(hold, 1))
    second = asyncio.ensure_future(queue.run(lambda begun: None, 2))
    await asyncio.sleep(0)
    assert device_thread._work_queue.qsize() == 1
    released.set()
    await asyncio.gather(first, second)


async def test_a_step_behind_one_that_failed_is_refused(queue: StepQueue) -> None:
    steps = [queue.run(fails, 1), queue.run(lambda begun: 0, 2)]
    first, second = await asyncio.gather(*steps, return_exceptions=True)
    assert isinstance(first, MemoryError)
    assert isinstance(second, InvalidStep)
    assert "step 2 follows step 1, which failed" in str(second)
    queue.begin_epoch(2)
    assert await queue.run(lambda begun: 7, 1) == 7


async def test_a_number_that_came_before_is_refused(queue: StepQueue) -> None:
    await queue.run(lambda begun: None, 1)
    with pytest.raises(InvalidStep, match="step 1 came before; the next one is 2"):
        await queue.run(lambda begun: None, 1)


async def test_a_step_that_waits_when_an_epoch_begins_never_runs(queue: StepQueue) -> None:
    early = asyncio.ensure_future(queue.run(fails, 2))
    await asyncio.sleep(0)
    queue.begin_epoch(2)
    with pytest.raises(StaleEpoch):
        await early
    assert await queue.run(lambda begun: 7, 1) == 7


async def test_a_caller_that_gives_up_waiting_leaves_its_number_free(queue: StepQueue) -> None:
    early = asyncio.ensure_future(queue.run(fails, 2))
    await asyncio.sleep(0)
    early.cancel()
    await queue.run(lambda begun: None, 1)
    assert await queue.run(lambda begun: 7, 2) == 7


async def test_steps_without_a_number_run_as_they_come(queue: StepQueue) -> None:
    with pytest.raises(MemoryError):
        await queue.run(fails, None)
    assert await queue.run(lambda begun: 7, None) == 7


async def test_an_answer_waits_for_the_forward_of_the_next_step(queue: StepQueue) -> None:
    """The event loop has the interpreter's lock while the device computes, not before."""
    loop, seen = asyncio.get_running_loop(), list[bool]()
    both_given = threading.Event()

    def first(begun: Callable[[], None]) -> None:
        both_given.wait(30)

    def second(begun: Callable[[], None]) -> None:
        async def look() -> None:
            seen.append(answer.done())

        asyncio.run_coroutine_threadsafe(look(), loop).result(30)
        begun()
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(answer, 30), loop).result(30)

    answer = asyncio.ensure_future(queue.run(first, 1))
    following = asyncio.ensure_future(queue.run(second, 2))
    await asyncio.sleep(0)
    both_given.set()
    await following
    assert seen == [False]


async def test_an_answer_does_not_wait_for_a_step_that_never_computes(queue: StepQueue) -> None:
    def numbered(number: int) -> Step[int]:
        return lambda begun: number

    steps = [queue.run(numbered(number), number) for number in (1, 2, 3)]
    async with asyncio.timeout(30):
        assert await asyncio.gather(*steps) == [1, 2, 3]
