"""What the device's thread runs, and when."""

import socket
import threading
from concurrent.futures import Future

import pytest

from model_server.service.device_thread import DeviceThread

WAIT_S = 30


def test_works_run_in_their_order_and_an_error_is_their_callers() -> None:
    ran: list[int] = []
    with DeviceThread() as thread:
        released = threading.Event()
        thread.submit(released.wait, WAIT_S)
        numbers = [thread.submit(ran.append, number) for number in range(3)]
        wrong = thread.submit(int, "x")
        assert ran == []
        released.set()
        for number in numbers:
            number.result(WAIT_S)
        with pytest.raises(ValueError, match="'x'"):
            wrong.result(WAIT_S)
    assert ran == [0, 1, 2]


def test_a_work_that_was_cancelled_in_time_never_runs() -> None:
    ran: list[int] = []
    with DeviceThread() as thread:
        released = threading.Event()
        thread.submit(released.wait, WAIT_S)
        assert thread.submit(ran.append, 1).cancel()
        released.set()
    assert ran == []


def test_nothing_is_taken_behind_the_end_and_all_that_was_taken_before_is_done() -> None:
    """Not even from a thread that submits just then: its work would never be done."""
    taken: list[Future[int]] = []
    refused: list[RuntimeError] = []

    def submit_until_refused(thread: DeviceThread) -> None:
        for _ in range(10_000):
            try:
                taken.append(thread.submit(int, "1"))
            except RuntimeError as error:
                refused.append(error)
                return

    for _ in range(100):
        with DeviceThread() as device:
            other = threading.Thread(target=submit_until_refused, args=(device,))
            other.start()
        other.join()
    assert refused
    assert all(future.done() for future in taken)
    with pytest.raises(RuntimeError, match="was shut down"):
        device.submit(int, "1")


def test_the_thread_takes_turns_until_nothing_is_left_and_again_when_something_comes() -> None:
    ours, theirs = socket.socketpair()
    read: list[bytes] = []
    turns: list[int] = []
    rested = threading.Semaphore(0)

    def turn() -> bool:
        turns.append(len(read))
        if len(turns) % 3:
            return True
        rested.release()
        return False

    with ours, theirs, DeviceThread() as thread:
        thread.turn = turn
        thread.submit(thread.watch, ours, lambda: read.append(ours.recv(9)))
        assert rested.acquire(timeout=WAIT_S)
        theirs.send(b"step")
        assert rested.acquire(timeout=WAIT_S)
        thread.submit(thread.unwatch, ours).result(WAIT_S)
    assert read == [b"step"]
    assert turns[:6] == [0, 0, 0, 1, 1, 1]


def test_a_thread_is_begun_before_its_first_work() -> None:
    begun: list[str] = []
    with DeviceThread(lambda: begun.append(threading.current_thread().name)) as thread:
        assert thread.submit(lambda: list(begun)).result(WAIT_S) == ["device"]
