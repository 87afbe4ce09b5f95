"""The guides of a shard's constrained outputs; rank 0's alone.

    Prefill:  open      a hand compiles what is not cached, replays, and makes the first mask
    step:     begin     hands make the masks that `advance` left to the next forward
              wait      for masks that are being made; without some of them
              join      the masks -> sampler
              advance   drawn tokens accepted, forced ones taken, hands make the next masks
    between:  make_quick  the next masks that take microseconds, on the thread of steps

The mask of a token needs the token before it and nothing of the forward, so its making begins as
soon as that token is known and has the time of the router's round trip as well. To hand over a mask
that takes microseconds takes longer than to make it. A guide that has to compile once more, for its
searches, does so beside the next forward: the token before is on its way to somebody, through the
same cores.

A step waits a moment for what is not made by then, and goes on without the rest: those rows draw in
a later step, from the logits of the same token, so that what they say does not depend on it. Rows
without a constraint are not in here.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from constraints.bitmask import Bitmask
from constraints.guide import Guide
from constraints.spec import Budget, StopRule
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.guide_cache import Beginning, GuideCache
from model_server.masking.guided_output import TOO_SLOW, Advance, GuidedOutput
from model_server.masking.mask_thread_pool import Job, MaskThreadPool
from model_server.sampling.logits_processors import BITS_PER_WORD
from model_server.sampling.masks import Masks
from model_server.sampling.rows import Rows
from proto.contract import NewSequence, OutputConstraint

# How long a step waits for a mask that is being made, where it has others to serve, and where not:
# then its forward alone would be in the way.
HOLD_S = 0.005
_HOLD_ALONE_S = 0.02
# How long the thread of steps makes masks between them.
_QUICK_NS = 2_000_000
# For so many slow masks, one after the other, at most; those behind them may be slow or not.
_MAX_HOLDS = 4
# How long making one may take, and making the first one with what comes before it. Engines bound
# their own steps far below, and nobody waits: it is for those that hang. A hand that is left to its
# job computes where everything else leaves room, which on a busy machine is a small part of a core.
FILL_LIMIT_S = 10.0
OPEN_LIMIT_S = 20.0
_REPLAY_LIMIT_S = 0.002  # more, for each token of output that is replayed
_NOBODY: frozenset[int] = frozenset()


class StepMasks(Masks):
    """The masks of a step, judged by the guides. `mask_ns`: time that making them took."""

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
        """As the output's guide says."""
        return self.outputs[index].accepts(token_id, self._rows[index])

    def errors(self) -> dict[int, str]:
        """Why outputs failed, by request."""
        return {
            output.request_id: output.error for output in self.outputs if output.error is not None
        }

    @property
    def refused(self) -> frozenset[int]:
        """Requests that failed since the output made before cannot be gone on with."""
        return frozenset([output.request_id for output in self.outputs if output.is_refused])


class MaskScheduler:
    """Owner of the guides by request, and of the threads that fill; its runner alone calls it.

    vocab_size:    width of the model's logits
    eos_token_ids: tokens that end a sequence of this model
    is_pinned:     masks go to a device that reads the host's memory

    `waited_ns` tells how long the last `begin` and the `wait` after it took.
    """

    def __init__(
        self,
        languages: ConstraintCache,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        num_threads: int,
        is_pinned: bool = False,
        fill_limit_s: float = FILL_LIMIT_S,
        open_limit_s: float = OPEN_LIMIT_S,
        hold_s: float = HOLD_S,
    ) -> None:
        self._beginnings = GuideCache(languages)
        self._num_words = -(-vocab_size // BITS_PER_WORD)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._is_pinned = is_pinned
        self._fill_limit_s = fill_limit_s
        self._open_limit_s = open_limit_s
        self._hold_s = hold_s
        self.waited_ns = 0
        self._crew = MaskThreadPool(num_threads)
        self._outputs: dict[int, GuidedOutput] = {}
        self._jobs: dict[int, Job] = {}
        # Outputs whose next mask `begin` has made.
        self._unbegun: set[int] = set()
        # Outputs whose next mask `make_quick` makes.
        self._quick: list[GuidedOutput] = []
        # One is enough: a step's results are waited for before the next step's masks are gathered.
        self._staged = self._stage(8)

    def open(self, new: NewSequence) -> None:
        """Take a request in, if it has a constraint. What goes wrong is told by its first mask."""
        if new.constraint is None:
            return
        constraint, request_id, stop = new.constraint, new.request_id, new.stop
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
        """Forget a request, if it is known. What a hand still does for it is lost."""
        self._outputs.pop(request_id, None)
        self._jobs.pop(request_id, None)
        self._unbegun.discard(request_id)

    @property
    def has_quick(self) -> bool:
        """Whether `make_quick` has anything to make."""
        return bool(self._quick)

    def make_quick(self) -> None:
        """Between steps, on their thread; for so long at most, and hands make what is left."""
        quick, self._quick = self._quick, []
        until_ns = time.perf_counter_ns() + _QUICK_NS
        for output in quick:
            if self._outputs.get(output.request_id) is not output:
                continue
            if time.perf_counter_ns() < until_ns:
                output.fill_here()
            else:
                self._fill(output)

    def begin(self, request_ids: Sequence[int]) -> None:
        """The forward begins of a step in which these are sampled."""
        began_ns = time.perf_counter_ns()
        self._begin(request_ids)
        self.waited_ns = time.perf_counter_ns() - began_ns

    def _begin(self, request_ids: Sequence[int]) -> None:
        self.make_quick()
        for request_id in request_ids if self._unbegun else ():
            if request_id in self._unbegun:
                self._unbegun.remove(request_id)
                self._fill(self._outputs[request_id])

    def wait(self, request_ids: Sequence[int]) -> frozenset[int]:
        """Of those that are about to be sampled, whose masks are late: they cannot be joined."""
        if not self._outputs:
            return _NOBODY
        began_ns = time.perf_counter_ns()
        self._begin(request_ids)
        until_ns = began_ns + int(_MAX_HOLDS * self._hold_s * 1e9)
        outputs = [self._outputs[each] for each in request_ids if each in self._outputs]
        late = [output for output in outputs if not self._is_ready(output, until_ns)]
        if late and len(late) == len(request_ids):
            self._jobs[late[0].request_id].is_done(_HOLD_ALONE_S)
            late = [output for output in late if not self._is_ready(output, until_ns=0)]
        self.waited_ns += time.perf_counter_ns() - began_ns
        return frozenset([output.request_id for output in late])

    def join(self, request_ids: Sequence[int]) -> StepMasks | None:
        """The masks of those that are about to be sampled; None: none of them has a constraint.

        They were waited for. A row whose mask failed has no token left in it.
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
        """Accept what was drawn, by request; what that brought, for those that did not fail.

        Outputs that go on have their next masks made from now on, by `make_quick`, or from the
        next `begin` on.
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
            elif output.is_equipped:
                going_on.append(output)
            else:
                self._unbegun.add(output.request_id)
        # Not before: hands at work would take turns with this thread.
        for output in going_on:
            self._fill(output)
        return advances

    def _guide(self, new: NewSequence, constraint: OutputConstraint) -> Guide:
        """On a hand. Raises ConstraintError."""
        stop, logprobs = new.stop, new.logprobs
        beginning = Beginning(
            constraint,
            Budget(stop.max_new_tokens, stop.min_new_tokens, constraint.cuts),
            StopRule(stop.stop_strings, stop.keep_stop_string, stop.stop_token_ids),
            # What nobody drew has neither logits of its own nor alternatives.
            takes_forced=not logprobs.raw and not logprobs.num_top_tokens,
        )
        guide = self._beginnings.guide(beginning)
        guide.replay(new.token_ids[new.prompt_len :])
        return guide

    def _fill(self, output: GuidedOutput) -> None:
        self._submit(output, Job(output.fill, self._fill_limit_s))

    def _submit(self, output: GuidedOutput, job: Job) -> None:
        self._jobs[output.request_id] = job
        self._crew.submit(job)

    def _is_ready(self, output: GuidedOutput, until_ns: int) -> bool:
        """Whether the device's thread owns this output; False: a hand is at its mask.

        After `until_ns` nothing is waited for.
        """
        job = self._jobs.get(output.request_id)
        if job is None or output.error is not None:
            return True
        began_ns = time.perf_counter_ns()
        may_wait = began_ns < until_ns
        if self._crew.finishes(job, self._hold_s, until_ns) if may_wait else job.is_done(0.0):
            del self._jobs[output.request_id]
            if job.error is not None:
                output.fail(job.error)
            elif job.was_left:
                output.held_up(output.computed_ns)
            else:
                # What it waited for a hand is not its own fault.
                output.held_up(min(output.fill_ns, time.perf_counter_ns() - began_ns))
        elif job.is_over_limit():
            del self._jobs[output.request_id]
            output.error = TOO_SLOW
        else:
            return False
        return True

    def _stage(self, num_rows: int) -> torch.Tensor:
        return torch.zeros(
            (num_rows, self._num_words), dtype=torch.int32, pin_memory=self._is_pinned
        )
