"""The pool: jobs are done beside each other, and one that hangs holds up nobody for long."""

import os
import sys
import threading
import time

import pytest

from model_server.masking.mask_scheduler import Job, MaskThreadPool

LONG_S = 30.0
NEVER_NS = 1 << 63


def test_jobs_are_done_and_their_errors_kept() -> None:
    pool = MaskThreadPool(2)
    done: list[int] = []
    good = [Job(lambda number=number: done.append(number), LONG_S) for number in range(20)]  # type: ignore[misc]
    bad = Job(lambda: 1 // 0, LONG_S)  # type: ignore[arg-type]
    for job in (*good, bad):
        pool.submit(job)
    assert all(pool.wait(job, LONG_S, NEVER_NS) for job in (*good, bad))
    assert sorted(done) == list(range(20))
    assert isinstance(bad.error, ZeroDivisionError)
    assert good[0].error is None
    pool.close()


def test_a_pool_without_jobs_has_no_threads() -> None:
    before = threading.active_count()
    MaskThreadPool(8).close()
    assert threading.active_count() == before


def test_a_job_that_hangs_keeps_its_hand_and_the_others_are_done() -> None:
    pool = MaskThreadPool(1)
    release = threading.Event()
    stuck = Job(lambda: assert_released(release), 0.1)
    others = [Job(lambda: None, 0.1) for _ in range(3)]
    try:
        for job in (stuck, *others):
            pool.submit(job)
        began_s = time.monotonic()
        # The first one asked for waits behind the stuck one, and is not to blame for it.
        assert all(pool.wait(job, 0.05, NEVER_NS) for job in others)
        assert not pool.wait(stuck, 0.05, NEVER_NS)
        assert time.monotonic() - began_s < LONG_S / 3
        time.sleep(0.1)
        assert stuck.is_over_limit()
        assert stuck.is_detached
    finally:
        release.set()
    assert stuck.is_done(LONG_S)
    assert pool.wait(stuck, 0.0, NEVER_NS)
    pool.close()


def test_what_a_job_took_before_it_was_waited_for_does_not_count() -> None:
    pool = MaskThreadPool(1)
    job = Job(lambda: time.sleep(1.0), LONG_S)
    pool.submit(job)
    time.sleep(0.7)
    assert pool.wait(job, 0.6, NEVER_NS)
    assert not job.is_detached
    pool.close()


def test_a_job_behind_many_quick_ones_is_not_waited_for_beyond_its_time() -> None:
    pool = MaskThreadPool(1)
    for _ in range(50):
        pool.submit(Job(lambda: time.sleep(0.02), LONG_S))
    last = Job(lambda: None, LONG_S)
    pool.submit(last)
    began_ns = time.perf_counter_ns()
    assert not pool.wait(last, LONG_S, began_ns + 100_000_000)
    assert time.perf_counter_ns() - began_ns < 900_000_000
    assert not last.is_detached
    assert pool.wait(last, LONG_S, NEVER_NS)
    pool.close()


def test_a_job_of_a_detached_worker_is_not_awaited_for_ever() -> None:
    pool = MaskThreadPool(1)
    began = threading.Event()
    release = threading.Event()

    def slow() -> None:
        began.set()
        assert_released(release)

    job = Job(slow, LONG_S)
    pool.submit(job)
    assert began.wait(LONG_S)
    pool.close()
    try:
        began_s = time.monotonic()
        assert not pool.wait(job, 0.05, NEVER_NS)
        assert time.monotonic() - began_s < LONG_S / 3
        assert job.is_detached
    finally:
        release.set()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_a_hand_that_is_left_to_its_job_steps_back_and_is_no_idle_work() -> None:
    pool = MaskThreadPool(1)
    began = threading.Event()
    release = threading.Event()
    found: dict[str, tuple[int, int]] = {}

    def priority() -> tuple[int, int]:
        thread_id = threading.get_native_id()
        return os.sched_getscheduler(thread_id), os.getpriority(os.PRIO_PROCESS, thread_id)

    def slow() -> None:
        began.set()
        assert_released(release)
        found["slow"] = priority()

    def quick() -> None:
        found["quick"] = priority()

    stuck = Job(slow, LONG_S)
    other = Job(quick, LONG_S)
    pool.submit(stuck)
    assert began.wait(LONG_S)
    assert not pool.wait(stuck, 0.01, NEVER_NS)
    pool.submit(other)
    assert pool.wait(other, LONG_S, NEVER_NS)
    release.set()
    assert stuck.is_done(LONG_S)
    pool.close()
    policy, niceness = found["quick"]
    assert policy == os.SCHED_OTHER
    assert found["slow"] == (os.SCHED_OTHER, min(niceness + 5, 19))


def assert_released(release: threading.Event) -> None:
    assert release.wait(LONG_S)
