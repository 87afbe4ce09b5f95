"""The model for programs without an event loop."""

import asyncio
import gc
import itertools
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any

import pytest

from client.calls import Answer, GenerateCall
from client.errors import ConnectionLost
from client.lmtp import blocking
from client.lmtp.blocking import BlockingModel, LoopThread
from tests.client.lmtp.aside import performing_aside
from tests.client.lmtp.peer import Peer


async def echo(peer: Peer) -> None:
    await peer.greet()
    while True:
        kind, body = await peer.read()
        if kind == "GENERATE":
            for index in range(3):
                await peer.token(body["stream_id"], index)
            await peer.done(body["stream_id"], body["text"])


async def endless(peer: Peer) -> None:
    await peer.greet()
    body = await peer.expect("GENERATE")
    await peer.token(body["stream_id"], 0)
    await peer.until_closed()


def test_answers_and_streams_come_without_a_loop() -> None:
    with performing_aside(echo) as scene, BlockingModel(scene.url) as model:
        assert model.server().server == "scripted 1.0"
        assert model.generate(GenerateCall(prompt="abc")).text == "abc"
        parts = list(model.stream(GenerateCall(prompt="abc")))
    assert [part.text for part in parts] == ["a", "b", "c", "abc"]
    assert isinstance(parts[-1], Answer)


def test_threads_share_a_connection() -> None:
    calls = [GenerateCall(prompt=f"prompt {index}") for index in range(20)]
    with performing_aside(echo) as scene, BlockingModel(scene.url) as model:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(model.generate, calls))
        assert len(scene.peers) == 1
    assert [answer.text for answer in answers] == [call.prompt for call in calls]


def test_a_stream_that_is_left_is_cancelled() -> None:
    with performing_aside(endless) as scene, BlockingModel(scene.url) as model:
        for _ in model.stream(GenerateCall(prompt="abc")):
            break
        wait_until(lambda: scene.peers[0].received[-1][0] == "CANCEL")


def test_a_closed_model_has_no_thread_and_answers_nothing() -> None:
    before = threading.active_count()
    with performing_aside(echo) as scene:
        model = BlockingModel(scene.url)
        model.generate(GenerateCall(prompt="abc"))
        model.close()
        model.close()
        with pytest.raises(ConnectionLost, match="closed"):
            model.generate(GenerateCall(prompt="abc"))
    assert threading.active_count() == before


def test_what_waits_in_another_thread_ends_when_the_model_is_closed() -> None:
    with performing_aside(endless) as scene, ThreadPoolExecutor(1) as pool:
        model = BlockingModel(scene.url)
        stream = model.stream(GenerateCall(prompt="abc"))
        next(stream)
        waiting = pool.submit(lambda: next(stream))
        model.close()
        with pytest.raises(ConnectionLost):
            waiting.result(5)


def test_whoever_asks_while_it_is_closed_is_answered() -> None:
    for _ in range(100):
        thread = LoopThread()

        def ask(asked: LoopThread) -> None:
            while True:
                asked.run(asyncio.sleep(0))

        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(ask, thread) for _ in range(3)]
            thread.close()
            errors = [type(each.exception(5)) for each in waiting]
        assert errors == [ConnectionLost] * 3


def test_two_may_close_it_at_once() -> None:
    for _ in range(100):
        with performing_aside(echo) as scene, ThreadPoolExecutor(2) as pool:
            model = BlockingModel(scene.url)
            model.server()
            for closed in [pool.submit(model.close) for _ in range(2)]:
                closed.result(5)


def test_wherever_a_call_is_interrupted_nothing_of_it_is_left() -> None:
    """A signal may come between any two lines of whatever `run` calls, not only where it waits."""
    states: list[str] = []

    async def sleep() -> None:
        states.append("begun")
        try:
            await asyncio.sleep(0.02)
        finally:
            states.append("ended")

    with closing(LoopThread()) as thread:
        for num_lines in itertools.count():
            states.clear()
            coroutine = sleep()
            try:
                with interrupted_after(num_lines):
                    thread.run(coroutine)
                break
            except KeyboardInterrupt:
                thread.run(asyncio.sleep(0.001))
                assert states in ([], ["begun", "ended"])
            # Where `run` had not done anything yet.
            coroutine.close()
    assert num_lines > 20


# Not what the collector of garbage calls, wherever it is at work: there errors are not raised.
_INTERRUPTED = frozenset(
    module.__file__ for module in (blocking, threading, queue, asyncio.base_events, asyncio.events)
)


@contextmanager
def interrupted_after(num_lines: int) -> Iterator[None]:
    """KeyboardInterrupt in this thread, after so many lines of what a call is made of."""
    left = [num_lines]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in _INTERRUPTED:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


async def two_items() -> AsyncGenerator[int, None]:
    yield 1
    yield 2


def test_a_stream_may_be_collected_in_the_loops_thread() -> None:
    async def collect() -> None:
        gc.collect()

    def leave_one_in_a_cycle(thread: LoopThread) -> None:
        items = thread.iterate(two_items)
        next(items)
        cycle: list[object] = [items]
        cycle.append(cycle)

    with closing(LoopThread()) as thread:
        gc.disable()
        try:
            leave_one_in_a_cycle(thread)
            thread.run(collect())
        finally:
            gc.enable()


def test_a_program_ends_that_closes_neither_its_stream_nor_its_client() -> None:
    program = (
        "from client.lmtp.blocking import LoopThread\n"
        "from tests.client.lmtp.test_blocking import two_items\n"
        "items = LoopThread().iterate(two_items)\n"
        "print(next(items))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_generator_that_was_left_half_way_ends_with_the_loop() -> None:
    ended: list[str] = []

    async def lingering() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.01)
            ended.append(threading.current_thread().name)

    thread = LoopThread("loop")
    items = thread.iterate(lingering)
    next(items)
    thread.close()
    assert ended == ["loop"]
    items.close()  # type: ignore[attr-defined]


def test_the_loops_own_thread_may_close_it_and_cannot_wait_for_it() -> None:
    thread = LoopThread()

    async def wait_for_itself() -> None:
        coroutine = asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="own thread"):
            thread.run(coroutine)
        thread.close()

    with pytest.raises(ConnectionLost):
        thread.run(hold_after(wait_for_itself))
    thread.close()


async def hold_after(first: Callable[[], Awaitable[None]]) -> None:
    await first()
    await asyncio.sleep(60)


def test_a_second_close_waits_for_what_an_interrupted_one_began() -> None:
    ended: list[bool] = []

    async def end() -> None:
        await asyncio.sleep(0.3)
        ended.append(True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    thread = LoopThread(at_end=end)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            thread.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    thread.close()
    assert ended == [True]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_waiting_calls_fail_when_a_callback_ends_the_loop() -> None:
    thread = LoopThread()

    async def leave() -> None:
        asyncio.get_running_loop().call_soon(sys.exit)
        await asyncio.sleep(60)

    with pytest.raises(ConnectionLost):
        thread.run(leave())
    assert thread.is_closed
    thread.close()


def test_an_interrupted_wait_cancels_what_it_waited_for() -> None:
    states: list[str] = []

    async def sleep() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            states.append("ended")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with closing(LoopThread()) as thread:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                thread.run(sleep())
            thread.run(asyncio.sleep(0.01))
            assert states == ["ended"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_interrupted_stream_is_closed() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with performing_aside(endless) as scene, BlockingModel(scene.url) as model:
            stream = model.stream(GenerateCall(prompt="abc"))
            next(stream)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
            wait_until(lambda: scene.peers[0].received[-1][0] == "CANCEL")
    finally:
        signal.signal(signal.SIGALRM, before)


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
