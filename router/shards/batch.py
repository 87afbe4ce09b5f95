"""What a step must do and what came back, in plain ints.

    Scheduler.schedule() -> Batch -> wire -> shards -> wire -> StepResult -> Scheduler.apply()

Frozen words between the books and the wire; no protobuf, no text.
"""

from dataclasses import dataclass

from router.request.events import FinishReason
from router.request.request import GenerateRequest


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that enters the running batch, for the first time or after a preemption.

    token_ids:  | prompt ............. | output made before a preemption |
                0                      request.prompt_ids' length
    computed:   | cached_len | chunk_len, in this step | later steps |

    `block_ids` cover at least cached_len + chunk_len tokens.
    """

    request_id: int
    request: GenerateRequest
    token_ids: tuple[int, ...]
    cached_len: int
    chunk_len: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """What changed for a running request: appended blocks, and the tokens to compute now.

    `chunk_len` None: one token if it decodes. 0: it sits this step out.
    """

    request_id: int
    block_ids: tuple[int, ...] = ()
    chunk_len: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One step.

    `dropped` leaves `kept` of the running batch before the step (FilterBatch; ClearCache when
    nothing is kept). `running_ids` are the requests that the shard holds and that stay.
    `num_tokens` counts all tokens computed, `num_decode_tokens` those of requests that decode.
    """

    step_id: int
    new: tuple[NewRequest, ...]
    growth: tuple[Growth, ...]
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
class TopToken:
    """An alternative to a chosen token."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token."""

    token_id: int
    logprob: float
    top_tokens: tuple[TopToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """What a step brought for one request.

    `tokens` are several where a constraint left no choice: the last `num_forced` were not drawn.
    `finish_reason` only for reasons that a shard decides; with one comes `constraint_satisfied`,
    None without a constraint. `error` not None: this row failed, `tokens` is empty; it `is_refused`
    where the output made before is what the constraint forbids. `is_late`: under its constraint
    nothing could be drawn in time, so that its last token is to be computed again.
    `prompt_logprobs` are those of this step's chunk (one fewer for a sequence's first chunk).
    """

    request_id: int
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    prompt_logprobs: tuple[float, ...] = ()
    prompt_top_tokens: tuple[tuple[TopToken, ...], ...] = ()
    num_forced: int = 0
    constraint_satisfied: bool | None = None
    is_refused: bool = False
    is_late: bool = False


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
