"""A process that leaves its core now and then, whatever it computes."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by Linux's signals")

# Computes for a while inside one call that never returns to Python, and tells how often it left
# its core of its own accord, and whether the alarm's old handler is back.
SCRIPT = """
import resource, signal, time
from constraints.worker.limits import breathing
told = []
signal.signal(signal.SIGALRM, lambda *_: told.append(True))
def left():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
def compute():
    before, started = left(), time.process_time()
    assert pow(3, 1_500_000) > 0
    return left() - before, time.process_time() - started
free = compute()[0]
with breathing():
    num_left, computed_s = compute()
signal.raise_signal(signal.SIGALRM)
print(free, num_left, computed_s, len(told))
"""


def test_a_long_call_leaves_its_core_again_and_again_and_the_old_handler_comes_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    free, num_left, computed_s, num_told = map(float, done.stdout.split())
    assert free < 10
    assert num_left > 100 * computed_s
    assert num_told == 1
