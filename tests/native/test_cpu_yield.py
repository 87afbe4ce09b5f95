"""A thread that yields leaves its core while it computes, and only then."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from native.cpu_yield import CpuYield
from tests.native.compiler import needs_compiler
from tests.native.forks import in_a_fork

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="its timers are Linux's"),
]

COMPUTING_S = 0.1
# It is one in a millisecond, or fewer, where a timer rings late.
MIN_PAUSES = 20


@pytest.fixture(scope="module")
def cpu_yield() -> CpuYield:
    return CpuYield.load()


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def compute() -> float:
    """The seconds of computing that it took."""
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < COMPUTING_S:
        pass
    return time.thread_time() - begun_s


def num_pauses(work: Callable[[], object]) -> int:
    """How often the calling thread gave its core up by itself."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    work()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def yielding(cpu_yield: CpuYield) -> int:
    with cpu_yield.yielding():
        return num_pauses(compute)


def test_it_leaves_its_core_again_and_again(
    cpu_yield: CpuYield, elsewhere: ThreadPoolExecutor
) -> None:
    assert elsewhere.submit(yielding, cpu_yield).result() >= MIN_PAUSES


def test_it_stops_when_it_is_over(cpu_yield: CpuYield, elsewhere: ThreadPoolExecutor) -> None:
    elsewhere.submit(yielding, cpu_yield).result()
    pauses = elsewhere.submit(num_pauses, compute).result()
    assert pauses < MIN_PAUSES


def test_a_sleep_is_not_cut_short(cpu_yield: CpuYield, elsewhere: ThreadPoolExecutor) -> None:
    def sleep() -> float:
        with cpu_yield.yielding():
            begun_s = time.monotonic()
            time.sleep(0.05)
            return time.monotonic() - begun_s

    assert elsewhere.submit(sleep).result() >= 0.05


def test_a_fork_of_a_thread_that_yielded_has_a_timer_of_its_own(cpu_yield: CpuYield) -> None:
    with cpu_yield.yielding():
        pass
    assert _yielding_in_a_fork(cpu_yield) >= MIN_PAUSES


def _yielding_in_a_fork(cpu_yield: CpuYield) -> int:
    return in_a_fork(lambda: yielding(cpu_yield)) or 0


def test_a_fork_yields_by_itself(cpu_yield: CpuYield, elsewhere: ThreadPoolExecutor) -> None:
    assert elsewhere.submit(_yielding_in_a_fork, cpu_yield).result() >= MIN_PAUSES


def test_without_a_library_nothing_happens() -> None:
    with CpuYield().yielding():
        assert compute() >= COMPUTING_S
