"""How tests share a machine: the long files first (durations.py), and who measures, alone.

`make test` runs them in several workers (pytest-xdist). What a test of one worker measures must not
be what one of the other costs, so every test holds a lock: shared, or, with the mark `alone`, all
of it.
"""

import asyncio
import faulthandler
import fcntl
import gc
import os
import re
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.durations import Durations, leave_out_the_longest, longest_files_first, recorded
from tests.hypothesis_profiles import load_profile
from tests.integration.server import FRONT_SECRET, RunningServer, launched, wait_until_gone

load_profile()
# Until all modules and items stand: a quarter of the time that they take is searches for garbage.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quickest",
        type=float,
        metavar="S",
        help="Run the tests that took the least when they ran last, S seconds of them.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(config))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As shells start what runs in the background; what a test starts would not know Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A second process behind each shard of each test, which none of them waits for.
    os.environ.setdefault("STANDBY_SHARDS", "false")
    if _is_worker(config):
        # Torch of two workers, and of the shards that they start, would wait for one another.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    elif (cache := _cache_of(config)) is not None and not config.option.collectonly:
        config.pluginmanager.register(Durations(cache))


class Watchdog:
    """Ends the whole process where no signal of pytest-timeout gets through to Python.

    pytest's own `faulthandler_timeout` starts and joins a thread for each test, which takes longer
    than most of our tests; this one does once in a while.
    """

    _EVERY_S = 60.0

    def __init__(self, config: pytest.Config) -> None:
        timeout_s = float(config.getoption("timeout") or config.getini("timeout"))
        self._patience_s = timeout_s + 2 * self._EVERY_S
        # What is captured meanwhile is not seen when the process ends.
        self._stderr = os.dup(2)
        self._next_s = 0.0

    def pytest_runtest_logstart(self) -> None:
        if (now_s := time.monotonic()) >= self._next_s:
            self._next_s = now_s + self._EVERY_S
            faulthandler.dump_traceback_later(self._patience_s, file=self._stderr, exit=True)

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)


class FilesAndServer(LoadFileScheduling):  # type: ignore[misc]
    """A file is one worker's, and all files that share `server` are: it is started once."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "server" if _shares_server(self.config.rootpath / file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndServer | None:
    return FilesAndServer(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = recorded(_cache_of(config))
    if (budget_s := config.getoption("--quickest")) is not None:
        config.hook.pytest_deselected(items=leave_out_the_longest(items, known, budget_s))
    longest_files_first(items, known)


def pytest_collection_finish() -> None:
    """All modules and items stand by now: 700 000 objects, in which no test leaves garbage.

    A search of them for garbage takes half a second, at a moment that nobody chooses, which is more
    than many a timeout that tests set. The servers freeze theirs, too.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    if not _is_worker(item.config):
        return (yield)
    # Of a worker it is a folder in that of the whole run.
    folder = Path(item.config.getoption("basetemp")).parent
    with _turn(folder, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """`launcher serve` on the bundled model: one for all files of a worker.

    Its flags concern requests with `watermark`, which few tests send, and numbers that are compared
    with those of transformers.
    """
    # Constraints may take their time on a busy machine.
    flags = ("--served-model-name", "demo", "--dtype", "float32", "--constraint-timeout", "20")
    environ: dict[str, Any] = {"WATERMARK_GAMMA": "0.25", "WATERMARK_DELTA": "6.0"}
    with launched(*flags, **environ, FRONT_SECRET=FRONT_SECRET) as running:
        yield running
        # Whoever kills the launcher has the whole server ended.
        pids = running.descendants()
        running.process.kill()
        assert wait_until_gone(pids) == []


class _Asyncio:
    """asyncio, for one who sleeps no longer than it takes to look around."""

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(min(delay_s, 0.005))

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


@pytest.fixture(scope="session", autouse=True)
def no_naps() -> Iterator[None]:
    """uvicorn looks ten times a second whether it should end, and ends a tenth of a second later:
    a fifth of a second in each of the hundreds of tests that have a server in their own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", _Asyncio())
        yield


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """SIGHUP as it is without `nohup`, here and in what a test starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@cache
def _shares_server(file: Path) -> bool:
    text = file.read_text()
    asks = re.search(r"def test_\w+\([^)]*\bserver: RunningServer", text)
    return asks is not None and "\ndef server(" not in text


def _cache_of(config: pytest.Config) -> pytest.Cache | None:
    """None without pytest's plugin for it."""
    return getattr(config, "cache", None)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """One test's time. Who waits to be alone holds the queue, so that no further test begins.

    Locks of a process, not of an open file: what a test forks does not inherit them.
    """
    with (folder / "room.lock").open("a+") as room:
        with (folder / "queue.lock").open("a+") as queue:
            fcntl.lockf(queue, fcntl.LOCK_EX)
            fcntl.lockf(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
