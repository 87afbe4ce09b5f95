"""Threads that make masks, and a bound on how long one of them is waited for.

    device's thread:  submit ... forward ............ wait -> sample -> submit ...
    hands:                   | job | job | job ... |
    a hand that is left to its job:      | job, with a smaller share of the core ......... |

A job cannot be stopped. One that takes longer than it is waited for keeps its hand, which steps
back behind everything else from then on and is replaced, so that the jobs of others go on. It does
not become idle work: a mask is made under the lock of its language, which other outputs of that
language wait for, and on a busy machine idle work would keep it (0.5 s seen). A crew that was never
given a job has no threads. It knows neither guides nor masks.
"""

import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from constraints.worker import limits
from model_server.engine.cores import roam


class Job:
    """Something to be done once. `error` is what it raised; to be read when it is done.

    limit_s: how long it may run
    was_left: it took longer than it was waited for
    """

    __slots__ = ("_done", "_limit_ns", "_started_ns", "_work", "error", "was_left")

    def __init__(self, work: Callable[[], None], limit_s: float) -> None:
        self._work = work
        self._limit_ns = int(limit_s * 1e9)
        self._started_ns: int | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self.was_left = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Called by a hand, once."""
        self._started_ns = time.perf_counter_ns()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - also what an engine's panic raises: it is told
            self.error = error
        finally:
            self._done.release()

    def is_done(self, timeout_s: float) -> bool:
        """Whether it is done within so many seconds; asked by one thread."""
        if not self._done.acquire(timeout=timeout_s):
            return False
        self._done.release()
        return True

    def is_over_limit(self) -> bool:
        """Whether it has been running for longer than it may. Waiting for a hand does not count."""
        return self.has_run_for(self._limit_ns)

    def has_run_for(self, num_ns: int) -> bool:
        """Whether it has been running for longer than that."""
        started_ns = self._started_ns
        return started_ns is not None and time.perf_counter_ns() - started_ns > num_ns


class _MaskWorker(threading.Thread):
    """Does jobs until it is dismissed."""

    def __init__(self, jobs: "SimpleQueue[Job | None]") -> None:
        super().__init__(name="masks", daemon=True)
        self._jobs = jobs
        self.job: Job | None = None
        self.is_dismissed = False

    def run(self) -> None:
        roam()
        while not self.is_dismissed:
            self.job = self._jobs.get()
            if self.job is None:
                return
            self.job.run()
            self.job = None


class MaskThreadPool:
    """`num_hands` threads for jobs; one thread submits and waits."""

    def __init__(self, num_hands: int) -> None:
        self._num_hands = num_hands
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._hands: list[_MaskWorker] = []

    def submit(self, job: Job) -> None:
        """Have a job done soon."""
        while len(self._hands) < self._num_hands:
            self._hire()
        self._jobs.put(job)

    def finishes(self, job: Job, hold_s: float, until_ns: int) -> bool:
        """Wait for a job; False: it is under way for `hold_s` now, or its hand was left to it.

        Waiting for a hand is not the job's own fault: hands that have been at other jobs for so
        long are left to them. After `until_ns` of `time.perf_counter_ns` nothing is waited for:
        those ahead of it may be many, each of them quick.
        """
        hold_ns = int(hold_s * 1e9)
        while not job.is_done(0.0 if job.was_left else self._patience_s(hold_s, until_ns)):
            if job.was_left:
                return False
            self._leave_hands(hold_ns)
            # A hand may take it at the moment when it is left to the job before.
            job.was_left |= job.has_run_for(hold_ns)
            if time.perf_counter_ns() >= until_ns:
                return False
        return True

    def close(self) -> None:
        """Let the hands go, each after the job that it has."""
        for hand in self._hands:
            hand.is_dismissed = True
            self._jobs.put(None)
        self._hands.clear()

    @staticmethod
    def _patience_s(hold_s: float, until_ns: int) -> float:
        return max(0.0, min(hold_s, (until_ns - time.perf_counter_ns()) / 1e9))

    def _leave_hands(self, hold_ns: int) -> None:
        for hand in list(self._hands):
            job = hand.job
            if job is not None and job.has_run_for(hold_ns):
                job.was_left = hand.is_dismissed = True
                if hand.native_id is not None and sys.platform == "linux":
                    limits.step_back(hand.native_id)
                self._hands.remove(hand)
                self._hire()

    def _hire(self) -> None:
        hand = _MaskWorker(self._jobs)
        self._hands.append(hand)
        hand.start()
