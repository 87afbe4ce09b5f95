"""The thread pool that makes masks, with a bound on how long a step waits for one of its jobs.

    device's thread:  submit ... forward ............ wait -> sample -> submit ...
    workers:                 | job | job | job ... |
    a detached worker:                   | job, with a smaller share of the core ......... |

A job cannot be stopped. When it takes longer than a step waits, its worker is detached: it gets a
lower priority and is replaced, so that other jobs go on. It does not get the idle class: a mask is
made under the lock of its language, which other outputs of that language wait for, and on a busy
machine an idle thread would hold it (0.5 s measured). Threads start with the first job. The pool
knows neither guides nor masks.
"""

import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from constraints.worker import limits


class Job:
    """Work to do once. `error` is what it raised; to be read when it is done.

    limit_s:     how long it may run
    is_detached: it took longer than a step waits
    """

    __slots__ = ("_done", "_limit_ns", "_started_ns", "_work", "error", "is_detached")

    def __init__(self, work: Callable[[], None], limit_s: float) -> None:
        self._work = work
        self._limit_ns = int(limit_s * 1e9)
        self._started_ns: int | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self.is_detached = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Called by a worker, once."""
        self._started_ns = time.perf_counter_ns()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - an engine's panic too: `error`
            self.error = error
        finally:
            self._done.release()

    def is_done(self, timeout_s: float) -> bool:
        """Wait so many seconds at most; whether it is done. Called by one thread."""
        if not self._done.acquire(timeout=timeout_s):
            return False
        self._done.release()
        return True

    def is_over_limit(self) -> bool:
        """Whether it has been running for longer than it may; time in the queue does not count."""
        return self.has_run_for(self._limit_ns)

    def has_run_for(self, num_ns: int) -> bool:
        """Whether it has been running for longer than that."""
        started_ns = self._started_ns
        return started_ns is not None and time.perf_counter_ns() - started_ns > num_ns


class _MaskWorker(threading.Thread):
    """Does jobs until it is dismissed or detached."""

    def __init__(self, jobs: "SimpleQueue[Job | None]") -> None:
        super().__init__(name="masks", daemon=True)
        self._jobs = jobs
        self.job: Job | None = None
        self.is_dismissed = False

    def run(self) -> None:
        while not self.is_dismissed:
            self.job = self._jobs.get()
            if self.job is None:
                return
            self.job.run()
            self.job = None


class MaskThreadPool:
    """`num_threads` threads for jobs; one thread submits and waits."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._workers: list[_MaskWorker] = []

    def submit(self, job: Job) -> None:
        """Queue a job."""
        while len(self._workers) < self._num_threads:
            self._start_worker()
        self._jobs.put(job)

    def wait(self, job: Job, hold_s: float, until_ns: int) -> bool:
        """Wait for a job; False: it has been running for `hold_s`, or was detached before.

        Workers that run other jobs for that long are detached, so that this one gets a worker.
        After `until_ns` of `time.perf_counter_ns` it waits no longer: many quick jobs may be queued
        ahead.
        """
        hold_ns = int(hold_s * 1e9)
        while not job.is_done(0.0 if job.is_detached else self._timeout_s(hold_s, until_ns)):
            if job.is_detached:
                return False
            self._detach_slow(hold_ns)
            # A worker may start it just when it is detached for the job before.
            job.is_detached |= job.has_run_for(hold_ns)
            if time.perf_counter_ns() >= until_ns:
                return False
        return True

    def close(self) -> None:
        """Stop the workers, each after the job that it runs."""
        for worker in self._workers:
            worker.is_dismissed = True
            self._jobs.put(None)
        self._workers.clear()

    @staticmethod
    def _timeout_s(hold_s: float, until_ns: int) -> float:
        return max(0.0, min(hold_s, (until_ns - time.perf_counter_ns()) / 1e9))

    def _detach_slow(self, hold_ns: int) -> None:
        for worker in list(self._workers):
            job = worker.job
            if job is not None and job.has_run_for(hold_ns):
                job.is_detached = worker.is_dismissed = True
                if worker.native_id is not None and sys.platform == "linux":
                    limits.lower_thread_priority(worker.native_id)
                self._workers.remove(worker)
                self._start_worker()

    def _start_worker(self) -> None:
        worker = _MaskWorker(self._jobs)
        self._workers.append(worker)
        worker.start()
