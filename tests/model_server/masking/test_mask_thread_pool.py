"""The crew: jobs are done beside each other, and one that hangs holds up nobody for long."""

import os
import sys
import threading
import time

import pytest

from model_server.masking.mask_thread_pool import Job, MaskThreadPool

LONG_S = 30.0
NEVER_NS = 1 << 63


def test_jobs_are_done_and_their_errors_kept() -> None:
    crew = MaskThreadPool(2)
    done: list[int] = []
    good = [Job(lambda number=number: done.append(number), LONG_S) for number in range(20)]  # type: ignore[misc]
    bad = Job(lambda: 1 // 0, LONG_S)  # type: ignore[arg-type]
    for job in (*good, bad):
        crew.submit(job)
    assert all(crew.finishes(job, LONG_S, NEVER_NS) for job in (*good, bad))
    assert sorted(done) == list(range(20))
    assert isinstance(bad.error, ZeroDivisionError)
    assert good[0].error is None
    crew.close()


def test_a_crew_without_jobs_has_no_threads() -> None:
    before = threading.active_count()
    MaskThreadPool(8).close()
    assert threading.active_count() == before


def test_a_job_that_hangs_keeps_its_hand_and_the_others_are_done() -> None:
    crew = MaskThreadPool(1)
    release = threading.Event()
    stuck = Job(lambda: assert_released(release), 0.1)
    others = [Job(lambda: None, 0.1) for _ in range(3)]
    try:
        for job in (stuck, *others):
            crew.submit(job)
        began_s = time.monotonic()
        # The first one asked for waits behind the stuck one, and is not to blame for it.
        assert all(crew.finishes(job, 0.05, NEVER_NS) for job in others)
        assert not crew.finishes(stuck, 0.05, NEVER_NS)
        assert time.monotonic() - began_s < LONG_S / 3
        time.sleep(0.1)
        assert stuck.is_over_limit()
        assert stuck.was_left
    finally:
        release.set()
    assert stuck.is_done(LONG_S)
    assert crew.finishes(stuck, 0.0, NEVER_NS)
    crew.close()


def test_what_a_job_took_before_it_was_waited_for_does_not_count() -> None:
    crew = MaskThreadPool(1)
    job = Job(lambda: time.sleep(1.0), LONG_S)
    crew.submit(job)
    time.sleep(0.7)
    assert crew.finishes(job, 0.6, NEVER_NS)
    assert not job.was_left
    crew.close()


def test_a_job_behind_many_quick_ones_is_not_waited_for_beyond_its_time() -> None:
    crew = MaskThreadPool(1)
    for _ in range(50):
        crew.submit(Job(lambda: time.sleep(0.02), LONG_S))
    last = Job(lambda: None, LONG_S)
    crew.submit(last)
    began_ns = time.perf_counter_ns()
    assert not crew.finishes(last, LONG_S, began_ns + 100_000_000)
    assert time.perf_counter_ns() - began_ns < 900_000_000
    assert not last.was_left
    assert crew.finishes(last, LONG_S, NEVER_NS)
    crew.close()


def test_a_job_whose_hand_has_left_the_crew_is_not_waited_for_for_ever() -> None:
    crew = MaskThreadPool(1)
    began, release = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert_released(release)

    job = Job(slow, LONG_S)
    crew.submit(job)
    assert began.wait(LONG_S)
    crew.close()
    try:
        began_s = time.monotonic()
        assert not crew.finishes(job, 0.05, NEVER_NS)
        assert time.monotonic() - began_s < LONG_S / 3
        assert job.was_left
    finally:
        release.set()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_a_hand_that_is_left_to_its_job_steps_back_and_is_no_idle_work() -> None:
    crew = MaskThreadPool(1)
    began, release = threading.Event(), threading.Event()
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

    stuck, other = Job(slow, LONG_S), Job(quick, LONG_S)
    crew.submit(stuck)
    assert began.wait(LONG_S)
    assert not crew.finishes(stuck, 0.01, NEVER_NS)
    crew.submit(other)
    assert crew.finishes(other, LONG_S, NEVER_NS)
    release.set()
    assert stuck.is_done(LONG_S)
    crew.close()
    policy, niceness = found["quick"]
    assert policy == os.SCHED_OTHER
    assert found["slow"] == (os.SCHED_OTHER, min(niceness + 5, 19))


def assert_released(release: threading.Event) -> None:
    assert release.wait(LONG_S)
