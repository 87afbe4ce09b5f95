"""The wish to stop: signals are counted, but for a terminal that is gone more than once."""

import asyncio
import signal

import pytest

from launcher.stop_request import StopRequest
from processes.signals import stop_signals

# Whatever these tests are run by.
pytestmark = pytest.mark.usefixtures("no_nohup")


@pytest.mark.parametrize(
    ("signals", "has_second"),
    [
        pytest.param((signal.SIGHUP, signal.SIGHUP), False, id="terminal"),
        pytest.param((signal.SIGTERM, signal.SIGHUP), False, id="terminal-behind"),
        pytest.param((signal.SIGHUP, signal.SIGTERM), True, id="service-behind"),
        pytest.param((signal.SIGINT, signal.SIGINT), True, id="keys"),
    ],
)
async def test_a_terminal_that_is_gone_is_counted_as_a_first_signal_alone(
    signals: tuple[signal.Signals, ...], has_second: bool
) -> None:
    counts: list[int] = []
    request = StopRequest(lambda _, num_signals: counts.append(num_signals))
    request.listen(None)
    try:
        for signum in signals:
            signal.raise_signal(signum)
            await asyncio.sleep(0.01)
    finally:
        for signum in stop_signals():
            asyncio.get_running_loop().remove_signal_handler(signum)
    assert counts == ([1, 2] if has_second else [1])
