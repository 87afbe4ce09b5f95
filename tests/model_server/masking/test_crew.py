"""The crew: jobs are done beside each other, and one that hangs holds up nobody for long."""

import threading
import time

from model_server.masking.crew import Crew, Job

LONG_S = 30.0


def test_jobs_are_done_and_their_errors_kept() -> None:
    crew = Crew(2)
    done: list[int] = []
    good = [Job(lambda number=number: done.append(number), LONG_S) for number in range(20)]  # type: ignore[misc]
    bad = Job(lambda: 1 // 0, LONG_S)  # type: ignore[arg-type]
    for job in (*good, bad):
        crew.submit(job)
    assert all(crew.finishes(job) for job in (*good, bad))
    assert sorted(done) == list(range(20))
    assert isinstance(bad.error, ZeroDivisionError)
    assert good[0].error is None
    crew.close()


def test_a_crew_without_jobs_has_no_threads() -> None:
    before = threading.active_count()
    Crew(8).close()
    assert threading.active_count() == before


def test_a_job_that_hangs_is_given_up_and_the_others_are_done() -> None:
    crew = Crew(1)
    release = threading.Event()
    stuck = Job(lambda: assert_released(release), 0.05)
    others = [Job(lambda: None, 0.05) for _ in range(3)]
    try:
        for job in (stuck, *others):
            crew.submit(job)
        began_s = time.monotonic()
        # The first one asked for waits behind the stuck one, and is not to blame for it.
        assert all(crew.finishes(job) for job in others)
        assert not crew.finishes(stuck)
        assert time.monotonic() - began_s < LONG_S / 3
    finally:
        release.set()
    crew.close()


def test_a_late_job_that_is_done_when_it_is_needed_is_not_given_up() -> None:
    crew = Crew(1)
    job = Job(lambda: time.sleep(0.05), 0.001)
    crew.submit(job)
    time.sleep(0.3)
    assert crew.finishes(job)
    crew.close()


def assert_released(release: threading.Event) -> None:
    assert release.wait(LONG_S)
