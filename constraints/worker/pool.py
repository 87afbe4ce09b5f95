"""Owner of the workers, for asyncio: schedules jobs, limits their time, handles slow ones.

    job -> quick slot -> answered within a slice                            nearly every job
                      -> unfinished: continues beside the others, at idle priority
    ended by the kernel for its CPU time or memory: TooComplex
    ended here because it waited too long: PoolBusy

So a hostile text delays the jobs behind it by at most a slice. CPU time at normal priority comes
from a token bucket. When it is empty, and always after its slice, a job runs at idle priority,
until half of its time is over: where other work needs every core without a pause, it would never
be done. This module depends on no vocabulary and no engine.
"""

import asyncio
import logging
import math
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from constraints.errors import ConstraintError, TooComplex
from constraints.spec import CheckResult, JudgeResult, VerifyResult
from constraints.worker.jobs import Bug, Job, answer_from_json, job_to_json
from processes.zygote.client import Exit, IdleWorkers, Program, WorkerEnded, WorkerProcess
from processes.zygote.frames import Frame, frame

_logger = logging.getLogger("constraints")

# A shard's step beside a job at normal priority is delayed by more than the job takes, since its
# threads wait for each other. So jobs may run at normal priority for at most a hundredth of the
# time, which does not affect the 99th percentile; and only briefly at once, so that several jobs in
# a row cause no long delay: rate, and the most that can be saved.
_RATE = 0.01
_MOST_SAVED_S = 0.05
# The part of a job's time for which it gives way to all other work.
_PATIENT_PART = 0.5
# Seconds of a job's time that are reserved for ending its worker and reading its CPU time.
_LAST_PART = 0.1
_LEAST_LAST_S = 0.25
_NO_TIME = "there was no time to compile the constraint"


class PoolBusy(Exception):
    """The job was not done, for lack of time or room; a later try may succeed.

    `was_tried`: a worker was running it when its time was over, and had used so much CPU time that
    the constraint contributed to it.
    """

    def __init__(self, message: str, *, was_tried: bool = False) -> None:
        super().__init__(message)
        self.was_tried = was_tried


class WorkerBug(Exception):
    """A bug of a worker; the text is its trace."""


def _num_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class PoolRules:
    """The limits of a pool.

    cpu_s:        CPU seconds of one job
    memory_bytes: the growth of one worker
    wait_s:       seconds from the request to the answer, including waiting
    max_waiting:  jobs that may wait for their slice
    slice_s:      seconds of a job's slice, for which the next one waits
    tried_s:      CPU seconds after which a job without an answer counts as tried; beyond half of
                  `cpu_s` it is too complex in any case
    num_quick:    jobs in their slice at the same time
    max_slow:     jobs that continue after it at the same time
    num_hurried:  those among them that may leave idle priority at the same time
    """

    cpu_s: float = 2.0
    memory_bytes: int = 512 << 20
    wait_s: float = 2.5
    max_waiting: int = 256
    slice_s: float = 0.02
    tried_s: float = 0.25
    num_quick: int = field(default_factory=lambda: max(1, min(4, _num_cpus() // 2)))
    max_slow: int = 16
    num_hurried: int = field(default_factory=lambda: max(1, _num_cpus() // 4))


@dataclass(frozen=True, slots=True)
class VocabularyFile:
    """Where to load a vocabulary from; see `constraints.vocabulary`.

    vocab_size: width of the logits; None: as many as there are tokens
    max_len:    the most tokens that any output can have
    """

    tokenizer_path: Path
    vocab_size: int | None
    end_ids: tuple[int, ...]
    max_len: int

    def arguments(self) -> tuple[str, ...]:
        """As arguments of `constraints.worker.__main__`."""
        size = () if self.vocab_size is None else ("--vocab-size", str(self.vocab_size))
        return (
            *("--tokenizer", str(self.tokenizer_path)),
            *size,
            *("--end-ids", ",".join(map(str, self.end_ids))),
        )


class WorkerPool:
    """Runs jobs in processes that can be killed. Create it inside the event loop that uses it."""

    def __init__(self, vocabulary: VocabularyFile, rules: PoolRules) -> None:
        self._rules = rules
        limits = ("--cpu-s", str(rules.cpu_s), "--memory-bytes", str(rules.memory_bytes))
        arguments = (*vocabulary.arguments(), *limits)
        # A few workers at idle priority, forked once and not per job.
        program = Program("constraints.worker", arguments, "compiling processes")
        self._idle_workers = IdleWorkers(program, max_low=rules.num_quick + rules.num_hurried)
        # From when on jobs may run at normal priority; the longer ago, the more was saved.
        self._competes_from_s = -math.inf
        self._quick = asyncio.Semaphore(rules.num_quick)
        self._hurried = asyncio.Semaphore(rules.num_hurried)
        self._num_waiting = 0
        self._num_slow = 0
        self.num_ended = 0

    async def wait_spawned(self) -> None:
        """Return once this process has been forked for the workers, or that has failed.

        A process forks best before gRPC has threads, which cannot be forked and say so in the log.
        """
        await self._idle_workers.wait_spawned()

    async def wait_ready(self) -> None:
        """Wait until jobs can be run. Raises ZygoteFailed if they never can."""
        await self._idle_workers.zygote_client()

    async def close(self) -> None:
        """End all processes; running jobs fail."""
        await self._idle_workers.close()

    async def do(
        self, job: Job, wait_s: float | None = None
    ) -> CheckResult | JudgeResult | VerifyResult:
        """The answer, within `wait_s` or the rules' limit. Raises the refusal of the constraint, or
        the reason for no answer.

        ConstraintError | PoolBusy, ZygoteFailed, WorkerBug
        """
        if self._num_waiting >= self._rules.max_waiting:
            raise PoolBusy("too many constraints wait to be compiled")
        wait_s = self._rules.wait_s if wait_s is None else wait_s
        if wait_s <= 0.0:
            raise PoolBusy(_NO_TIME)
        reply = await self._ask(frame(job_to_json(job)), wait_s)
        try:
            answer = answer_from_json(reply.fields)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise WorkerBug(f"a worker's answer is none: {error!r}") from error
        if isinstance(answer, Bug):
            raise WorkerBug(answer.trace)
        if isinstance(answer, ConstraintError):
            raise answer
        return answer

    async def _ask(self, message: bytes, wait_s: float) -> Frame:
        worker: WorkerProcess | None = None
        reply: Frame | None = None
        hurries_at_s = self._now_s() + _PATIENT_PART * wait_s
        try:
            async with asyncio.timeout((1.0 - _LAST_PART) * wait_s):
                async with self._in_slice():
                    worker = await self._take()
                    reply = await self._begin(worker, message)
                if reply is None:
                    reply = await self._go_on(worker, hurries_at_s)
            return reply
        except TimeoutError:
            raise await self._overdue(worker, _LAST_PART * wait_s) from None
        except WorkerEnded as error:
            raise self._explain(error.how) from None
        finally:
            if worker is not None:
                self._give_back(worker, reply)

    @asynccontextmanager
    async def _in_slice(self) -> AsyncIterator[None]:
        self._num_waiting += 1
        try:
            await self._quick.acquire()
        finally:
            self._num_waiting -= 1
        try:
            yield
        finally:
            self._quick.release()

    async def _take(self) -> WorkerProcess:
        may_compete = self._now_s() > self._competes_from_s
        worker = await self._idle_workers.take(low=not may_compete)
        if not may_compete and not worker.gives_way:
            worker.give_way()
        return worker

    async def _begin(self, worker: WorkerProcess, message: bytes) -> Frame | None:
        """The answer, if it comes within a slice; otherwise None, and the worker continues."""
        begun_s = self._now_s()
        try:
            return await worker.ask(message, timeout_s=self._rules.slice_s)
        finally:
            if not worker.gives_way:
                now_s = self._now_s()
                from_s = max(self._competes_from_s, now_s - _MOST_SAVED_S / _RATE)
                self._competes_from_s = from_s + (now_s - begun_s) / _RATE

    async def _go_on(self, worker: WorkerProcess, hurries_at_s: float) -> Frame:
        if self._num_slow >= self._rules.max_slow:
            raise PoolBusy("too many constraints that are slow to compile")
        self._num_slow += 1
        try:
            if not worker.gives_way:
                worker.give_way()
            reply = await worker.answer(max(0.0, hurries_at_s - self._now_s()))
            if reply is None and not self._hurried.locked():
                async with self._hurried:
                    worker.hurry()
                    reply = await worker.answer()
            reply = reply or await worker.answer()
            assert reply is not None, "no time limits it"
            return reply
        finally:
            self._num_slow -= 1

    def _give_back(self, worker: WorkerProcess, reply: Frame | None) -> None:
        if reply is None:
            self.num_ended += 1
            worker.kill()
        elif reply.fields["leaves"] or worker.hurries:
            worker.close_channel()
        else:
            worker.used_s = reply.fields["used_s"]
            self._idle_workers.put_back(worker)

    async def _overdue(self, worker: WorkerProcess | None, last_s: float) -> Exception:
        """The error of a job that ran out of time; depends on its CPU time."""
        was_tried = False
        if worker is not None:
            worker.kill()
            await asyncio.wait({worker.ended}, timeout=max(last_s, _LEAST_LAST_S))
            if worker.ended.done():
                computed_s = worker.ended.result().cpu_s - worker.used_s
                if 2 * computed_s > self._rules.cpu_s:
                    return self._too_long()
                # With little CPU time the job may be simple, and only the machine was busy. The
                # same holds if the worker has not ended yet.
                was_tried = computed_s >= self._rules.tried_s
        return PoolBusy(_NO_TIME, was_tried=was_tried)

    def _explain(self, how: Exit) -> Exception:
        if how.status == -signal.SIGPROF:
            return self._too_long()
        if how.status is None:
            return PoolBusy("the compiling processes begin anew")
        _logger.warning("a worker that compiled a constraint ended with status %d", how.status)
        mib = self._rules.memory_bytes >> 20
        return TooComplex(
            f"compiling the constraint takes more than the {mib} MiB allowed, or is nested too"
            " deeply"
        )

    def _too_long(self) -> TooComplex:
        return TooComplex(f"the constraint takes more than {self._rules.cpu_s:g} s of computing")

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
