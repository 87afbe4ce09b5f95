"""The scripted server in a thread of its own, for tests without an event loop."""

from collections.abc import Awaitable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

from client.lmtp.blocking import LoopThread
from tests.client.lmtp.peer import Scene, Script, performing

T = TypeVar("T")


@contextmanager
def performing_aside(*scripts: Script) -> Iterator[Scene]:
    """`performing`; the scene is only read here."""
    with closing(LoopThread("peer")) as thread:
        scene = performing(*scripts)
        yield thread.run(_awaited(scene.__aenter__()))
        thread.run(_awaited(scene.__aexit__(None, None, None)))


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
