"""The scheduler of token masks: makes each constrained output's next mask beside the forward.

    Prefill:  open        a worker compiles the constraint, replays, and makes the first mask
    step:     begin       quick masks, where `make_quick` was not called between
              wait        for masks in the making; those that stay late miss this step
              join        the masks -> sampler
              advance     accept sampled tokens, append forced ones, submit the next masks
    between:  make_quick  the next masks that take microseconds, on the device's thread

A token's mask needs the token before it and nothing of the forward, so it is submitted as soon as
that token is known, and the router's round trip is time for it as well. Submitting a mask that
takes microseconds costs more than making it here.

A step waits a moment for late masks, and goes on without the rest: those rows sample in a later
step, from the logits of the same token, so that the output does not depend on it. Rows without a
constraint are not in here. Rank 0 alone has a scheduler.
"""

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import SimpleQueue

import numpy as np
import torch

from constraints.after_thought import OutputState
from constraints.bitmask import Bitmask
from constraints.spec import Budget, StopRule
from model_server.masking.constraint_cache import ConstraintCache, GuideCache, GuideKey
from model_server.masking.guided_output import Advance, GuidedOutput
from model_server.sampling.edits import BITS_PER_WORD, Masks
from model_server.sampling.plan import Rows
from processes.zygote import zygote
from proto.contract import NewSequence, OutputConstraint


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
    """`num_threads` threads for jobs; one thread submits, and bounds how long a step waits.

        device's thread:  submit ... forward ............ wait -> sample -> submit ...
        workers:                 | job | job | job ... |
        a detached worker:                   | job, with a smaller share of the core ......... |

    A job cannot be stopped. When it takes longer than a step waits, its worker is detached: it gets
    a lower priority and is replaced, so that other jobs go on. It does not get the idle class: a
    mask is made under the lock of its language, which other outputs of that language wait for, and
    on a busy machine an idle thread would hold it (0.5 s measured). Threads start with the first
    job. The pool knows neither guides nor masks.
    """

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
                    zygote.lower_thread_priority(worker.native_id)
                self._workers.remove(worker)
                self._start_worker()

    def _start_worker(self) -> None:
        worker = _MaskWorker(self._jobs)
        self._workers.append(worker)
        worker.start()


# How long a step waits for a late mask: with other rows to sample, and without any, where the next
# forward alone would be delayed.
HOLD_S = 0.005


_HOLD_ALONE_S = 0.02


# How long the device's thread makes masks between two steps.
_QUICK_NS = 2_000_000


# A step waits for so many slow masks, one after the other, at most.
_MAX_HOLDS = 4


# Time limits of a mask, and of the first one with the compiling before it. Engines bound their own
# steps far below, and no step waits: the limits are for engines that hang. A detached worker runs
# at the lowest priority, which on a busy machine is a small part of a core.
FILL_LIMIT_S = 10.0


OPEN_LIMIT_S = 20.0


_REPLAY_LIMIT_S = 0.002  # in addition, for each token of output that is replayed


_NONE: frozenset[int] = frozenset()


class StepMasks(Masks):
    """The masks of a step, with their guides. `mask_ns`: the time that making them took."""

    def __init__(
        self,
        places: Rows,
        words: torch.Tensor,
        outputs: Sequence[GuidedOutput],
    ) -> None:
        super().__init__(places, words)
        self._rows: Bitmask = words.numpy()
        self.outputs = outputs
        self.mask_ns = sum(output.fill_ns for output in outputs)

    def accepts(self, index: int, token_id: int) -> bool:
        """Whether the output's guide accepts the token."""
        return self.outputs[index].accepts(token_id, self._rows[index])

    def errors(self) -> dict[int, str]:
        """The reasons of failed outputs, by request."""
        return {
            output.request_id: output.error for output in self.outputs if output.error is not None
        }

    @property
    def refused(self) -> frozenset[int]:
        """Requests that failed by their constraint; see `GuidedOutput`."""
        return frozenset([output.request_id for output in self.outputs if output.is_refused])


class MaskScheduler:
    """Owner of the guided outputs by request, and of the worker threads; the runner calls it.

    vocab_size:    width of the model's logits
    eos_token_ids: tokens that end a sequence of this model
    is_pinned:     masks go to a device that reads the host's memory

    `waited_ns` is the time that the last `begin` and the `wait` after it took.
    """

    def __init__(
        self,
        constraints: ConstraintCache,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        num_threads: int,
        is_pinned: bool = False,
        fill_limit_s: float = FILL_LIMIT_S,
        open_limit_s: float = OPEN_LIMIT_S,
        hold_s: float = HOLD_S,
    ) -> None:
        self._guide_cache = GuideCache(constraints)
        self._num_words = -(-vocab_size // BITS_PER_WORD)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._is_pinned = is_pinned
        self._fill_limit_s = fill_limit_s
        self._open_limit_s = open_limit_s
        self._hold_s = hold_s
        self.waited_ns = 0
        self._pool = MaskThreadPool(num_threads)
        self._outputs: dict[int, GuidedOutput] = {}
        self._jobs: dict[int, Job] = {}
        # Outputs whose next mask the next `make_quick` makes.
        self._quick: list[GuidedOutput] = []
        # One buffer is enough: a step ends before the next step's masks are gathered.
        self._staged = self._stage(8)

    def open(self, new: NewSequence) -> None:
        """Start the guide of a constrained request; an error fails its first mask."""
        if new.constraint is None:
            return
        constraint = new.constraint
        request_id = new.request_id
        stop = new.stop
        stop_ids = frozenset(stop.stop_token_ids)
        written_len = len(new.token_ids) - new.prompt_len
        output = GuidedOutput(
            request_id,
            lambda: self._guide(new, constraint),
            num_words=self._num_words,
            end_ids=self._eos_token_ids | stop_ids,
            ignored_ids=self._eos_token_ids - stop_ids if stop.ignore_eos else (),
            left_len=min(stop.max_new_tokens, new.pause_len or stop.max_new_tokens) - written_len,
        )
        self._outputs[request_id] = output
        limit_s = self._open_limit_s + _REPLAY_LIMIT_S * written_len
        self._submit(output, Job(output.open, limit_s))

    def close(self, request_id: int) -> None:
        """Remove a request, if it is known; a worker's result for it is dropped."""
        self._outputs.pop(request_id, None)
        self._jobs.pop(request_id, None)

    @property
    def has_quick(self) -> bool:
        """Whether `make_quick` has anything to make."""
        return bool(self._quick)

    def make_quick(self) -> None:
        """Make masks on the device's thread, for 2 ms at most; submit the rest to the workers."""
        quick = self._quick
        self._quick = []
        until_ns = time.perf_counter_ns() + _QUICK_NS
        for output in quick:
            if self._outputs.get(output.request_id) is not output:
                continue
            if time.perf_counter_ns() < until_ns:
                output.fill_here()
            else:
                self._fill(output)

    def begin(self) -> None:
        """The forward of a step is about to start."""
        began_ns = time.perf_counter_ns()
        self.make_quick()
        self.waited_ns = time.perf_counter_ns() - began_ns

    def wait(self, request_ids: Sequence[int], not_late: Collection[int] = ()) -> frozenset[int]:
        """Wait for the masks of those about to be sampled; returns those whose masks are late.

        Those of `not_late` are waited for as long as it takes.
        """
        if not self._outputs:
            return _NONE
        began_ns = time.perf_counter_ns()
        self.make_quick()
        until_ns = began_ns + int(_MAX_HOLDS * self._hold_s * 1e9)
        outputs = [self._outputs[each] for each in request_ids if each in self._outputs]
        late = [output for output in outputs if not self._wait_for(output, until_ns)]
        for output in late:
            if output.request_id in not_late:
                self._wait_out(output)
        late = [output for output in late if output.request_id not in not_late]
        if late and len(late) == len(request_ids):
            self._jobs[late[0].request_id].is_done(_HOLD_ALONE_S)
            late = [output for output in late if not self._wait_for(output, until_ns=0)]
        self.waited_ns += time.perf_counter_ns() - began_ns
        return frozenset([output.request_id for output in late])

    def wait_behind(self, request_ids: Sequence[int]) -> frozenset[int]:
        """As `wait`, where a token is to be sampled behind one of the same step; nobody is held up
        for longer than for one slow mask.
        """
        if not self._outputs:
            return _NONE
        self.make_quick()
        until_ns = time.perf_counter_ns() + int(self._hold_s * 1e9)
        return frozenset(
            [
                each
                for each in request_ids
                if each in self._outputs and not self._wait_for(self._outputs[each], until_ns)
            ]
        )

    def join(self, request_ids: Sequence[int]) -> StepMasks | None:
        """The masks of those about to be sampled; None: none of them has a constraint.

        None of them is late. The mask of an output that failed allows no token.
        """
        if not self._outputs:
            return None
        places = [place for place, i in enumerate(request_ids) if i in self._outputs]
        if not places:
            return None
        outputs = [self._outputs[request_ids[place]] for place in places]
        if len(outputs) > len(self._staged):
            self._staged = self._stage(2 * len(outputs))
        words = self._staged[: len(outputs)]
        rows: Bitmask = words.numpy()
        np.stack([output.words for output in outputs], out=rows)
        for row, output in zip(rows, outputs, strict=True):
            if output.error is not None:
                row[:] = 0
        return StepMasks(np.array(places), words, outputs)

    def advance(self, masks: StepMasks, drawn: Mapping[int, int]) -> dict[int, Advance]:
        """Accept the sampled tokens, by request; returns an advance for each that did not fail.

        The next masks of outputs that go on are submitted now, or made by `make_quick`.
        """
        advances: dict[int, Advance] = {}
        going_on: list[GuidedOutput] = []
        for output in masks.outputs:
            if output.error is not None or output.request_id not in drawn:
                continue
            advance = output.advance(drawn[output.request_id])
            if advance is None or output.error is not None:
                continue
            advances[output.request_id] = advance
            if advance.is_satisfied is not None:
                continue
            if output.is_quick:
                self._quick.append(output)
            else:
                going_on.append(output)
        # After the loop: busy workers would compete with this thread.
        for output in going_on:
            self._fill(output)
        return advances

    def _guide(self, new: NewSequence, constraint: OutputConstraint) -> OutputState:
        """Runs on a worker. Raises ConstraintError."""
        stop = new.stop
        logprobs = new.logprobs
        key = GuideKey(
            constraint,
            Budget(stop.max_new_tokens, stop.min_new_tokens, constraint.cuts),
            StopRule(stop.stop_strings, stop.keep_stop_string, stop.stop_token_ids),
            # A forced token has neither logits of its own nor alternatives.
            takes_forced=not logprobs.raw and not logprobs.num_top_tokens,
        )
        guide = self._guide_cache.guide(key)
        guide.replay(new.token_ids[new.prompt_len :])
        return guide

    def _fill(self, output: GuidedOutput) -> None:
        self._submit(output, Job(output.fill, self._fill_limit_s))

    def _submit(self, output: GuidedOutput, job: Job) -> None:
        self._jobs[output.request_id] = job
        self._pool.submit(job)

    def _wait_for(self, output: GuidedOutput, until_ns: int) -> bool:
        """Wait for an output's mask, until `until_ns` at most; False: it is late.

        An output whose mask failed, or exceeded its time limit, is ended and not late.
        """
        job = self._jobs.get(output.request_id)
        if job is None or output.error is not None:
            return True
        began_ns = time.perf_counter_ns()
        if began_ns < until_ns:
            is_done = self._pool.wait(job, self._hold_s, until_ns)
        else:
            is_done = job.is_done(0.0)
        if is_done:
            self._charge(output, job, waited_ns=time.perf_counter_ns() - began_ns)
        elif job.is_over_limit():
            output.refuse_as_slow()
        else:
            return False
        del self._jobs[output.request_id]
        return True

    def _wait_out(self, output: GuidedOutput) -> None:
        """Wait for an output's mask, until its time limit at most."""
        hold_ns = int(_HOLD_ALONE_S * 1e9)
        while not self._wait_for(output, time.perf_counter_ns() + hold_ns):
            self._jobs[output.request_id].is_done(_HOLD_ALONE_S)

    @staticmethod
    def _charge(output: GuidedOutput, job: Job, waited_ns: int) -> None:
        """Take over a finished job: its error, or the time that it cost the steps."""
        if job.error is not None:
            output.fail(job.error)
        elif job.is_detached:
            output.charge(output.computed_ns)
        else:
            # The time that the job waited for a worker is not the output's.
            output.charge(min(output.fill_ns, waited_ns))

    def _stage(self, num_rows: int) -> torch.Tensor:
        return torch.zeros(
            (num_rows, self._num_words), dtype=torch.int32, pin_memory=self._is_pinned
        )
