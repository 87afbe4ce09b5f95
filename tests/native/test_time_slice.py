"""A thread that asks for long turns has them, as the kernel tells, and so has what it forks."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from native.time_slice import slice_ns, use_long_time_slices
from tests.native.forks import in_a_fork
from tests.native.kernel import needs_slices

if sys.platform != "linux":
    pytest.skip("the kernel's call", allow_module_level=True)

DEFAULT_NS = 5_000_000
LONG_NS = 20_000_000


def elsewhere(work: Callable[[], int | None]) -> int | None:
    """What it answers in a thread of its own."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


def taking_long_turns() -> int | None:
    use_long_time_slices()
    return slice_ns()


@needs_slices
def test_a_thread_that_asks_for_long_turns_has_them_alone() -> None:
    assert elsewhere(taking_long_turns) == LONG_NS
    assert (slice_ns() or 0) <= DEFAULT_NS


def _as_idle_work() -> int | None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return slice_ns()


def _forking() -> int | None:
    use_long_time_slices()
    return in_a_fork(_as_idle_work)


@needs_slices
def test_what_it_forks_has_them_also_as_idle_work() -> None:
    assert elsewhere(_forking) == LONG_NS


def _idle_first() -> int | None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    use_long_time_slices()
    return slice_ns()


def test_idle_work_stays_as_it_is() -> None:
    assert (elsewhere(_idle_first) or 0) <= DEFAULT_NS


def test_of_a_thread_that_is_not_there_nothing_is_told() -> None:
    assert slice_ns(1 << 30) is None
