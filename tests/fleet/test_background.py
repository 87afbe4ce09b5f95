"""Daemon threads: what their calls return, and that nothing joins them at the end."""

import asyncio
import subprocess
import sys
import threading

import pytest

from fleet.background import run_in_daemon_thread

_ENDS = """
import asyncio, threading
from contextlib import suppress
from fleet.background import run_in_daemon_thread
async def main():
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await run_in_daemon_thread(threading.Event().wait)
asyncio.run(main())
print("ended")
"""


async def test_a_call_returns_or_raises_what_it_does_in_its_thread() -> None:
    assert await run_in_daemon_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await run_in_daemon_thread(lambda: 1 // 0)


async def test_what_would_end_only_its_thread_is_raised_too() -> None:
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await run_in_daemon_thread(lambda: sys.exit(3))


async def test_a_cancelled_call_goes_on_without_its_caller() -> None:
    goes_on, has_ended = threading.Event(), threading.Event()

    def work() -> None:
        goes_on.wait(30)
        has_ended.set()

    waiting = asyncio.create_task(run_in_daemon_thread(work))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    await asyncio.to_thread(has_ended.wait, 30)
    await asyncio.sleep(0)


def test_a_process_ends_whatever_its_threads_wait_for() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
