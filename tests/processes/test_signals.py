"""Signals that stop a process: of a service, a key, a terminal that is gone; not under nohup."""

import asyncio
import signal
import subprocess
import sys

import pytest

from processes.signals import Signals, stop_signals

# Whatever these tests are run by.
pytestmark = pytest.mark.usefixtures("no_nohup")

_WAITS = """
import asyncio, sys
from processes.signals import Signals
async def main():
    signals = Signals(None)
    print("ready", flush=True)
    try:
        await asyncio.wait_for(signals.first.wait(), float(sys.argv[1]))
        print("asked")
    except TimeoutError:
        print("not asked")
asyncio.run(main())
"""


def output_after(signum: signal.Signals, *before: str, wait_s: float = 60.0) -> str:
    """What a process prints that gets this signal."""
    argv = [*before, sys.executable, "-c", _WAITS, str(wait_s)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        return process.communicate(timeout=60)[0]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_these_signals_ask_for_the_end(signum: signal.Signals) -> None:
    assert output_after(signum) == "asked\n"


@pytest.mark.parametrize(
    ("signals", "has_second"),
    [
        pytest.param((signal.SIGHUP, signal.SIGHUP), False, id="terminal"),
        pytest.param((signal.SIGTERM, signal.SIGHUP), False, id="terminal-behind"),
        pytest.param((signal.SIGHUP, signal.SIGTERM), True, id="service-behind"),
        pytest.param((signal.SIGINT, signal.SIGINT), True, id="keys"),
    ],
)
async def test_a_terminal_that_is_gone_is_no_second_signal(
    signals: tuple[signal.Signals, ...], has_second: bool
) -> None:
    seen: list[int] = []
    received = Signals(None, lambda _: seen.append(1), lambda: seen.append(2))
    try:
        for signum in signals:
            signal.raise_signal(signum)
            await asyncio.sleep(0.01)
    finally:
        for signum in stop_signals():
            asyncio.get_running_loop().remove_signal_handler(signum)
    assert received.first.is_set()
    assert received.second.is_set() == has_second
    assert seen == ([1, 2] if has_second else [1])


async def test_the_end_of_the_parent_is_a_signal_the_second_one_behind_another() -> None:
    nobody = 1 << 30
    received = Signals(nobody)
    received.first.set()
    try:
        await asyncio.wait_for(received.second.wait(), 30)
    finally:
        for signum in stop_signals():
            asyncio.get_running_loop().remove_signal_handler(signum)
    assert received.is_orphaned


def test_a_terminal_that_is_gone_is_no_matter_to_what_nohup_runs() -> None:
    assert output_after(signal.SIGHUP, "nohup", wait_s=0.3) == "not asked\n"
