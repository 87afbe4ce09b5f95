"""One step of the shards: what it computes, and what came back.

    Scheduler.schedule() -> Batch -> wire -> shards -> wire -> StepResult -> Scheduler.apply()

Frozen values between the scheduler and the wire: no protobuf, no text.
"""

from dataclasses import dataclass

from proto.contract import Generation, NewSequence, RunningUpdate


@dataclass(frozen=True, slots=True)
class Batch:
    """One step.

    `dropped` leaves `kept` of the running batch before the step (FilterBatch; ClearCache when
    nothing is kept). `running_ids` are the requests that the shard holds and that stay.
    `num_tokens` counts all tokens computed, `num_decode_tokens` those of requests that decode.
    """

    step_id: int
    new: tuple[NewSequence, ...]
    updates: tuple[RunningUpdate, ...]
    running_ids: tuple[int, ...]
    dropped_ids: tuple[int, ...]
    num_tokens: int
    num_decode_tokens: int

    @property
    def has_work(self) -> bool:
        """False for a step that only drops requests."""
        return self.num_tokens > 0

    @property
    def is_prefill(self) -> bool:
        """True when the step carries a request that the shard does not know yet."""
        return bool(self.new)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a Batch. `remaining_ids` are the requests that the shard still holds.

    `mask_s` went into the token masks of `num_masked_rows`, beside the forward; sampling waited
    `mask_wait_s` of it.
    """

    step_id: int
    generations: tuple[Generation, ...]
    remaining_ids: tuple[int, ...]
    forward_s: float = 0.0
    sample_s: float = 0.0
    total_s: float = 0.0
    mask_s: float = 0.0
    mask_wait_s: float = 0.0
    num_masked_rows: int = 0


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """One rank's answer to a step; only rank 0 brings generations."""

    result: StepResult
    batch_id: int | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A constraint that rank 0 holds, compiled; `was_cached`: it did already."""

    compile_s: float
    was_cached: bool
