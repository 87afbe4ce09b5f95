"""Calls from other threads reach the event loop."""

import asyncio
import gc
import threading

from model_server.service.step_queue import LoopCaller


async def called(caller: LoopCaller) -> bool:
    """Whether a call from another thread arrives."""
    arrived = asyncio.Event()
    thread = threading.Thread(target=caller.call, args=(arrived.set,))
    thread.start()
    thread.join()
    try:
        await asyncio.wait_for(arrived.wait(), 5.0)
    except TimeoutError:
        return False
    return True


async def test_a_caller_that_follows_another_on_the_same_loop_is_heard() -> None:
    """The files of the first are closed, and their numbers are those of the second."""
    for _ in range(3):
        caller = LoopCaller()
        assert await called(caller)
        del caller
        gc.collect()
        await asyncio.sleep(0)
