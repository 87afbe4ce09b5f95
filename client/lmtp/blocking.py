"""The same model for programs without an event loop: a thread of its own runs one."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import closing
from typing import Any, Self, TypeVar

from client.errors import ConnectionLost
from client.lmtp.connection import OnNotice
from client.lmtp.frames import Greeting
from client.lmtp.model import LmtpModel, ignore_notice
from client.lmtp.patience import RetryPolicy
from client.words import Answer, GenerateCall, ScoreCall, Scores, TokenMade

T = TypeVar("T")


class LoopThread:
    """Owner of an event loop in a thread of its own, until it is closed."""

    def __init__(self, name: str = "client") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises. An interruption (Ctrl-C) cancels it before it is raised."""
        if self.is_closed:
            coroutine.close()
            raise ConnectionLost("this client was closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except FutureCancelled:
            raise ConnectionLost("this client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, begin: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """The items of an async generator; closing the iterator early closes the generator."""
        generator = begin()
        # An item whose wait was interrupted is still on its way to be cancelled when we close.
        one_at_a_time = asyncio.Lock()
        try:
            while True:
                try:
                    item = self.run(_holding(one_at_a_time, anext(generator)))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not self.is_closed:
                self.run(_holding(one_at_a_time, generator.aclose()))

    def close(self) -> None:
        """Cancels what still runs there and ends the thread."""
        if self.is_closed:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _holding(lock: asyncio.Lock, awaitable: Awaitable[T]) -> T:
    async with lock:
        return await awaitable


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
        self._thread = LoopThread("LMTP")

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
        if not self._thread.is_closed:
            with closing(self._thread):
                self._thread.run(self._model.close())
