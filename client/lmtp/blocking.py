"""The same model for programs without an event loop: a thread of its own runs one."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, Self, TypeVar

from client.errors import ConnectionLost
from client.lmtp.connection import OnNotice
from client.lmtp.frames import Greeting
from client.lmtp.model import LmtpModel, ignore_notice
from client.lmtp.patience import RetryPolicy
from client.words import Answer, GenerateCall, ScoreCall, Scores, TokenMade

T = TypeVar("T")


class LoopThread:
    """Owner of an event loop in a thread of its own, until it is closed. Shared by threads.

    A waiting call gets its outcome or the error of a closed loop, whichever comes first.
    No lock is held for that: a signal may interrupt a thread that asks anywhere.

    at_end: is awaited there when it is closed, before what still runs is cancelled
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
        """Whether it takes no more calls; those under way may still be ending."""
        return self._is_closed

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises. An interruption (Ctrl-C) cancels it before it is raised."""
        call = _Call(coroutine)
        try:
            if threading.current_thread() is self._thread:
                raise RuntimeError("the loop's own thread cannot wait for it")
            self._post(call)
            return call.outcome()
        except BaseException:
            # Wherever it was interrupted: the loop may know the call by now, or never will.
            if not self._has_posted(self._cancel, call):
                self._drop(call)
            raise

    def iterate(self, begin: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """The items of an async generator; closing the iterator early closes the generator."""
        generator = begin()
        # An item whose wait was interrupted is still on its way to be cancelled when we close.
        one_at_a_time = asyncio.Lock()
        try:
            while True:
                try:
                    item = self.run(_holding(one_at_a_time, generator.__anext__))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            # Not waited for: what is garbage is closed in any thread, the loop's too, and at exit.
            self._post(_Call(_holding(one_at_a_time, generator.aclose)))

    def close(self) -> None:
        """Cancels what still runs there and ends the thread."""
        self._is_closed = True
        self._has_posted(self._closing.set)
        if threading.current_thread() is not self._thread:
            # An interrupted join() takes the thread for ended.
            with self._serving:
                pass
            self._thread.join()

    def _serve(self) -> None:
        try:
            with closing(self._loop):
                try:
                    self._loop.run_until_complete(self._live())
                finally:
                    # Also where a callback ended the loop, by SystemExit.
                    self._is_closed = True
                    self._loop.run_until_complete(_cancel_others())
        finally:
            # A call whose thread comes too late for this finds the loop closed.
            for call in list(self._calls):
                self._drop(call)
            self._serving.release()

    async def _live(self) -> None:
        await self._closing.wait()
        if self._at_end is not None:
            await self._at_end()

    def _post(self, call: "_Call[Any]") -> None:
        self._calls.add(call)
        if not self._has_posted(self._begin, call):
            self._drop(call)

    def _has_posted(self, callback: Callable[..., object], *arguments: object) -> bool:
        """Have the loop's thread call it; False: the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if self._loop.is_closed():
                return False
            raise
        return True

    def _begin(self, call: "_Call[Any]") -> None:
        # Else it is dropped at the end: before, its generator would be a new task of the loop.
        if not self._is_closed:
            call.begin(self._calls.discard)

    def _cancel(self, call: "_Call[Any]") -> None:
        self._calls.discard(call)
        call.cancel()

    def _drop(self, call: "_Call[Any]") -> None:
        self._calls.discard(call)
        call.abandon()


class _Call(Generic[T]):
    """A coroutine that one thread waits for and the loop's runs."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        # The first is the outcome. No Future: its lock stays held by a thread that is interrupted
        # as it takes it, and the loop's thread would wait for it.
        self._outcomes: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def outcome(self) -> T:
        """In the thread that waits, once."""
        return self._outcomes.get()()

    def begin(self, on_end: "Callable[[_Call[T]], None]") -> None:
        """In the loop's thread, once."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._tell)
        self._task.add_done_callback(lambda _: on_end(self))

    def cancel(self) -> None:
        """In the loop's thread; whether or not it has begun, or is done."""
        if self._task is None:
            self.abandon()
        else:
            self._task.cancel()

    def abandon(self) -> None:
        """The loop will not run it any further."""
        self._outcomes.put(_raise_closed)
        # What has begun is its task's.
        if self._task is None:
            self._coroutine.close()

    def _tell(self, task: asyncio.Task[T]) -> None:
        # Looked at here, or asyncio complains where nobody waits any more.
        is_cancelled = task.cancelled() or isinstance(task.exception(), asyncio.CancelledError)
        self._outcomes.put(_raise_closed if is_cancelled else task.result)
        # An error would hold its traceback, that `run`, and that us.
        self._task = None


def _raise_closed() -> NoReturn:
    raise ConnectionLost("this client was closed")


async def _holding(lock: asyncio.Lock, ask: Callable[[], Awaitable[T]]) -> T:
    # Asked in the loop's thread: a generator belongs to the loop that runs where it is first asked.
    async with lock:
        return await ask()


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

    def stream(self, call: GenerateCall) -> Iterator[TokenMade | Answer]:
        """The tokens as they come, then the Answer; closing it early cancels the request."""
        return self._thread.iterate(lambda: self._model.stream(call))

    def generate(self, call: GenerateCall) -> Answer:
        """The whole answer."""
        return self._thread.run(self._model.generate(call))

    def score(self, call: ScoreCall) -> Scores:
        """The log-probabilities of several continuations of one prompt."""
        return self._thread.run(self._model.score(call))

    def server(self) -> Greeting:
        """What the server says of itself; connects if need be."""
        return self._thread.run(self._model.server())

    def close(self) -> None:
        """Closes the connection and ends the thread; calls under way raise ConnectionLost."""
        self._thread.close()
