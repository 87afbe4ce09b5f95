"""Worker threads: started at once or not at all; and a panic of a library ends the process."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from processes.worker_threads import NoThreads, WorkerThreads

_PANICS = """
import asyncio, signal, sys, time
from processes.worker_threads import WorkerThreads
class PanicException(BaseException):
    pass
def work():
    raise PanicException("poisoned")
seen = []
async def main():
    loop = asyncio.get_running_loop()
    second = asyncio.Event()
    def note():
        seen.append(1)
        if len(seen) > 1:
            second.set()
    loop.add_signal_handler(signal.SIGTERM, note)
    try:
        await WorkerThreads(1, "w").run(work)
    except BaseException as error:
        print(type(error).__name__, flush=True)
    await asyncio.wait_for(second.wait(), 30)
    print(len(seen))
asyncio.run(main())
"""


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("all")]


async def test_they_run_work_and_raise_what_it_raises() -> None:
    workers = WorkerThreads(2, "mine")
    assert await workers.run(lambda: threading.current_thread().name) == "mine_0"
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 / 0)
    workers.close()


def test_all_are_there_once_they_were_started() -> None:
    workers = WorkerThreads(3, "all")
    assert names() == []
    workers.start()
    assert sorted(names()) == ["all_0", "all_1", "all_2"]
    workers.close()
    deadline_s = time.monotonic() + 10
    while names() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert names() == []


def test_a_system_that_grants_no_thread_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThreads, match=r"no thread can be started \(mine\): can't start"):
        WorkerThreads(2, "mine").start()


def test_a_panic_is_two_signals_to_stop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PANICS], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "PanicException\n2\n"


async def test_other_errors_stop_nothing() -> None:
    workers = WorkerThreads(1, "mine")
    with pytest.raises(TypeError):
        await workers.run(lambda: len(7))  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    workers.close()
