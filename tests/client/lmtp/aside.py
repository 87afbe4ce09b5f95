"""The scripted server in a thread of its own, for tests without an event loop."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from tests.client.lmtp.peer import Scene, Script, performing


@contextmanager
def performing_aside(*scripts: Script) -> Iterator[Scene]:
    """`performing`; the scene is only read here."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="peer")
    thread.start()
    scene = performing(*scripts)
    try:
        yield asyncio.run_coroutine_threadsafe(scene.__aenter__(), loop).result(30)
        asyncio.run_coroutine_threadsafe(scene.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
