"""The model for programs without an event loop."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any

import pytest

from client.errors import ConnectionLost
from client.lmtp import blocking
from client.lmtp.blocking import BlockingModel, LoopThread
from client.words import Answer, GenerateCall
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


@pytest.mark.parametrize("num_lines", range(11))
def test_wherever_a_call_is_interrupted_nothing_of_it_is_left(num_lines: int) -> None:
    """A signal may come between any two lines of `run`, not only where it waits."""
    states: list[str] = []

    async def sleep() -> None:
        states.append("begun")
        try:
            await asyncio.sleep(5)
        finally:
            states.append("ended")

    coroutine = sleep()
    with closing(LoopThread()) as thread:
        with pytest.raises(KeyboardInterrupt), interrupted_after(num_lines):
            thread.run(coroutine)
        thread.run(asyncio.sleep(0.01))
        assert states in ([], ["begun", "ended"])
    # Where `run` had not done anything yet.
    coroutine.close()


@contextmanager
def interrupted_after(num_lines: int) -> Iterator[None]:
    """KeyboardInterrupt in this thread, after so many lines of `client/lmtp/blocking.py`."""
    left = [num_lines]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != blocking.__file__:
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
