"""The steps that the shards have and have not answered yet, oldest first.

It decides no step and applies no answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from proto.contract import Batch, StepResult
from router.engine.admission import Progress, Wait
from router.request.errors import ShardFailed
from router.shards.shards import Shards
from router.telemetry.step_observer import StepObserver


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step under way."""

    batch: Batch
    answer: "asyncio.Task[StepResult]"
    sent_s: float


@dataclass(frozen=True, slots=True)
class AnsweredStep:
    """A step's result. The shards had nothing before it to compute since `begun_s`."""

    batch: Batch
    result: StepResult
    begun_s: float
    answered_s: float


class StepsInFlight:
    """Sends steps and takes their answers in the same order. False while there are none."""

    def __init__(
        self,
        shards: Shards,
        progress: Progress,
        observer: StepObserver,
        clock: Callable[[], float],
    ) -> None:
        self._shards = shards
        self._progress = progress
        self._observer = observer
        self._clock = clock
        self._sent: deque[SentStep] = deque()
        self._failure: ShardFailed | None = None
        self._answered_s = 0.0

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, batch: Batch, now_s: float) -> None:
        """Sends a step behind the others. Raises ShardFailed."""
        self._observer.began(batch)
        self._sent.append(SentStep(batch, self._shards.step(batch), now_s))

    async def receive(self) -> AnsweredStep:
        """The answer to the oldest. Raises ShardFailed; then `forget` the others."""
        self.check()
        step = self._sent[0]
        begun_s = max(step.sent_s, self._answered_s)
        self._progress.start_wait(Wait.STEP, begun_s)
        try:
            result = await step.answer
        except ShardFailed:
            self._note_failed()
            raise
        except asyncio.CancelledError:
            # By `abort`, or with the batcher itself.
            self.check()
            raise
        finally:
            self._progress.end_wait(Wait.STEP)
        self._sent.popleft()
        self._answered_s = self._clock()
        return AnsweredStep(step.batch, result, begun_s, self._answered_s)

    def abort(self, failure: ShardFailed) -> None:
        """The shards will answer nothing any more: whoever waits for them gets the failure."""
        self._failure = failure
        self._note_failed()
        for step in self._sent:
            step.answer.cancel()

    def check(self) -> None:
        """Raises the failure, if they were aborted."""
        if self._failure is not None:
            raise self._failure

    def forget(self) -> None:
        """The shards' state is void, and so is what they answer to the steps that they have."""
        self._failure = None
        for step in self._sent:
            # Its failure, if it has failed already, says no more than that of the first one.
            step.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            step.answer.cancel()
        self._sent.clear()

    def _note_failed(self) -> None:
        for failed in self._sent:
            self._observer.failed(failed.batch)
