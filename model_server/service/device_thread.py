"""The one thread that uses the device: what is submitted to it, messages of its files, and steps.

    event loop  --submit-->  works  --+
    sockets     --watch--->  files  --+--> turn, as long as there is a step to run or to answer

A message that comes at a file goes to the thread without the event loop: each thread that has to be
woken takes longer than reading it.
"""

import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DeviceThread(Executor):
    """`begin` is called on the thread, before all else. `turn` and `watch` are the thread's own.

    `turn` answers False when it has nothing to do until something is submitted or comes at a file.
    """

    def __init__(self, begin: Callable[[], None] = lambda: None) -> None:
        self.turn: Callable[[], bool] = lambda: False
        self._works: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._reading, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        woken = partial(os.read, self._reading, 4096)
        self._selector.register(self._reading, selectors.EVENT_READ, woken)
        # Held to submit, and to close what wakes the thread: nothing comes behind the end.
        self._submitting = threading.Lock()
        self._takes_works = True
        self._is_waiting = False
        self._is_over = False
        # A load cannot be interrupted, and a collective may hang: nobody waits for it at the end.
        self._thread = threading.Thread(target=self._run, args=(begin,), name="device", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """As Executor: works run in their order, before steps that are there."""
        future: Future[T] = Future()
        self._add(partial(_work, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As Executor; what was submitted is done before, but no step."""
        with suppress(RuntimeError):
            self._add(self._end, is_last=True)
        if wait:
            self._thread.join()

    def watch(self, file: socket.socket, on_readable: Callable[[], None]) -> None:
        """`on_readable` is called, and must not raise, as often as something comes."""
        self._selector.register(file, selectors.EVENT_READ, on_readable)

    def unwatch(self, file: socket.socket) -> None:
        """Before it is closed."""
        self._selector.unregister(file)

    def _add(self, work: Callable[[], None], *, is_last: bool = False) -> None:
        with self._submitting:
            if not self._takes_works:
                raise RuntimeError("the device's thread was shut down")
            self._takes_works = not is_last
            self._works.append(work)
            if self._is_waiting:
                # A full pipe wakes it as well.
                with suppress(BlockingIOError):
                    os.write(self._waking, b"\0")

    def _run(self, begin: Callable[[], None]) -> None:
        begin()
        is_idle = False
        while not self._is_over:
            self._is_waiting = is_idle
            # Whoever submits either sees that it waits, or is seen here.
            timeout_s = None if is_idle and not self._works else 0.0
            readable = self._selector.select(timeout_s)
            self._is_waiting = False
            for key, _ in readable:
                key.data()
            if self._works:
                self._works.popleft()()
                is_idle = False
            else:
                is_idle = not self.turn()

    def _end(self) -> None:
        self._is_over = True
        self._selector.close()
        with self._submitting:
            os.close(self._reading)
            os.close(self._waking)


def _work(future: "Future[Any]", call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 -- it is the caller's
        future.set_exception(error)
    else:
        future.set_result(result)
