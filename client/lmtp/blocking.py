"""LmtpModel for programs without an event loop: a thread runs one for them."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, Self, TypeVar

from client.calls import Answer, GenerateCall, GeneratedToken, ScoreCall, Scores
from client.errors import ConnectionLost
from client.lmtp.connection import OnNotice
from client.lmtp.model import LmtpModel, ignore_notice
from client.lmtp.replies import Greeting
from client.lmtp.retry import RetryPolicy

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, until it is closed. Threads may share it.

    A caller gets the outcome of its call, or the error that the loop was closed, whichever is
    first. No lock is held for that: a signal may interrupt a calling thread anywhere.

    at_end: is awaited in the loop when it is closed, before its tasks are cancelled
    """

    def __init__(
        self, name: str = "client", at_end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: set[_Call[Any]] = set()
        self._is_closed = False
        self._closing = asyncio.Event()
        self._at_end = at_end
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._serving = threading.Lock()
        self._serving.acquire()
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no more calls; running ones may not have ended yet."""
        return self._is_closed

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An interruption (Ctrl-C) cancels it before it is raised."""
        call = _Call(coroutine)
        try:
            if threading.current_thread() is self._thread:
                raise RuntimeError("the loop's own thread cannot wait for it")
            self._post(call)
            return call.outcome()
        except BaseException:
            # After an interruption the loop may know the call, or may never get it.
            if not self._has_posted(self._cancel, call):
                self._drop(call)
            raise

    def iterate(self, start: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """The items of an async generator; closing the iterator early closes the generator."""
        generator = start()
        # The task of an item whose wait was interrupted may still run when the generator is closed.
        one_at_a_time = asyncio.Lock()
        try:
            while True:
                try:
                    item = self.run(_holding(one_at_a_time, generator.__anext__))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            # Not awaited: garbage is closed in any thread, the loop's own too, and at exit.
            self._post(_Call(_holding(one_at_a_time, generator.aclose)))

    def close(self) -> None:
        """Cancels the running calls and ends the thread."""
        self._is_closed = True
        self._has_posted(self._closing.set)
        if threading.current_thread() is not self._thread:
            # An interrupted join() treats the thread as ended.
            with self._serving:
                pass
            self._thread.join()

    def _serve(self) -> None:
        try:
            with closing(self._loop):
                try:
                    self._loop.run_until_complete(self._live())
                finally:
                    # Also where a callback ended the loop by SystemExit.
                    self._is_closed = True
                    self._loop.run_until_complete(_cancel_others())
        finally:
            # Later calls find the loop closed.
            for call in list(self._calls):
                self._drop(call)
            self._serving.release()

    async def _live(self) -> None:
        await self._closing.wait()
        if self._at_end is not None:
            await self._at_end()

    def _post(self, call: "_Call[Any]") -> None:
        self._calls.add(call)
        if not self._has_posted(self._start, call):
            self._drop(call)

    def _has_posted(self, callback: Callable[..., object], *arguments: object) -> bool:
        """Schedules a callback in the loop's thread; False: the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if self._loop.is_closed():
                return False
            raise
        return True

    def _start(self, call: "_Call[Any]") -> None:
        # Else it is dropped when the loop ends: started now, its generator would be a new task.
        if not self._is_closed:
            call.start(self._calls.discard)

    def _cancel(self, call: "_Call[Any]") -> None:
        self._calls.discard(call)
        call.cancel()

    def _drop(self, call: "_Call[Any]") -> None:
        self._calls.discard(call)
        call.abandon()


class _Call(Generic[T]):
    """A coroutine that one thread waits for and the loop runs."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        # The first one counts. It is no Future: a thread that is interrupted while it acquires a
        # Future's lock keeps it, and the loop's thread would wait for it.
        self._outcomes: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def outcome(self) -> T:
        """Waits for the result; called once, in the waiting thread."""
        return self._outcomes.get()()

    def start(self, on_end: "Callable[[_Call[T]], None]") -> None:
        """Called once, in the loop's thread."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._put_outcome)
        self._task.add_done_callback(lambda _: on_end(self))

    def cancel(self) -> None:
        """Called in the loop's thread, at any time."""
        if self._task is None:
            self.abandon()
        else:
            self._task.cancel()

    def abandon(self) -> None:
        """Ends a call that the loop will not run any further."""
        self._outcomes.put(_raise_closed)
        # A started coroutine belongs to its task.
        if self._task is None:
            self._coroutine.close()

    def _put_outcome(self, task: asyncio.Task[T]) -> None:
        # Read here, since asyncio logs exceptions that nobody reads.
        is_cancelled = task.cancelled() or isinstance(task.exception(), asyncio.CancelledError)
        self._outcomes.put(_raise_closed if is_cancelled else task.result)
        # Else an error would keep its traceback, and so this call, alive.
        self._task = None


def _raise_closed() -> NoReturn:
    raise ConnectionLost("this client was closed")


async def _holding(lock: asyncio.Lock, call: Callable[[], Awaitable[T]]) -> T:
    # Called in the loop's thread: a generator belongs to the loop of its first call.
    async with lock:
        return await call()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class BlockingModel:
    """An LmtpModel whose methods block. May be shared by threads; close it, or use `with`.

    `on_notice` is called in the loop's thread.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        on_notice: OnNotice = ignore_notice,
    ) -> None:
        self._model = LmtpModel(url, key=key, name=name, retry=retry, on_notice=on_notice)
        self._thread = LoopThread("LMTP", self._model.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(self, call: GenerateCall) -> Iterator[GeneratedToken | Answer]:
        """The tokens as they come, then the Answer; closing it early cancels the request."""
        return self._thread.iterate(lambda: self._model.stream(call))

    def generate(self, call: GenerateCall) -> Answer:
        """The whole answer."""
        return self._thread.run(self._model.generate(call))

    def score(self, call: ScoreCall) -> Scores:
        """The log-probabilities of several continuations of one prompt."""
        return self._thread.run(self._model.score(call))

    def server(self) -> Greeting:
        """The server's reply to HELLO; connects if necessary."""
        return self._thread.run(self._model.server())

    def close(self) -> None:
        """Closes the connection and ends the thread; running calls raise ConnectionLost."""
        self._thread.close()
