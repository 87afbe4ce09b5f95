"""What a shard is asked to do and what it answers, in plain ints: no protobuf, no tensor.

    wire -> NewSequence, Growth -> Runner -> StepOutput -> wire

A value of this module that exists is valid: the constructors check what the router promised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from constraints.spec import ConstraintSpec, StopRule
from constraints.translation import Translation
from model_server.errors import InvalidStep


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. None, or the neutral value, switches a processor off."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int = 0
    watermark: bool = False


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a sequence ends, as far as token ids tell.

    `pause_len`: tokens of output after which it pauses, None: it does not; whoever goes on with it
    sends them as `max_new_tokens` counts them, as a part of the same output.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    pause_len: int | None = None


@dataclass(frozen=True, slots=True)
class LogprobParams:
    """Which log-probabilities to report; `raw`: before penalties and warping.

    `prompt`: those of the prompt's tokens, too, from position `prompt_from` on.
    """

    num_top_tokens: int = 0
    raw: bool = False
    prompt: bool = False
    prompt_from: int = 0


@dataclass(frozen=True, slots=True)
class Constraint:
    """The language of an output's text.

    stops: strings at which the router ends the output; they are legal only where it may end
    cuts:  the output may be cut at max_new_tokens before the constraint holds
    translation: what the router's check has found of `spec` already
    """

    spec: ConstraintSpec
    stops: StopRule = field(default_factory=StopRule)
    cuts: bool = False
    translation: Translation | None = field(default=None, compare=False, repr=False)


class FinishReason(Enum):
    """Why a sequence ended, as far as a shard decides."""

    LENGTH = "length"
    EOS = "eos"
    STOP_TOKEN = "stop_token"
    CONSTRAINT_COMPLETE = "constraint_complete"  # nothing but the end may follow
    ERROR = "error"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A request that enters the shard, for the first time or after a preemption.

    token_ids:  | prompt ............... | output made before: a preemption, another request |
                0                        prompt_len                    len(token_ids)
    computed:   | cached_len | chunk_len, in this step | later steps |

    `block_ids` cover at least cached_len + chunk_len tokens.
    Raises InvalidStep when these lengths contradict each other.
    """

    request_id: int
    token_ids: tuple[int, ...]
    prompt_len: int
    cached_len: int
    chunk_len: int
    block_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopParams
    logprobs: LogprobParams = LogprobParams()
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        total_len = len(self.token_ids)
        if not 0 < self.prompt_len <= total_len:
            raise InvalidStep(
                f"request {self.request_id}: prompt_len {self.prompt_len} is not in 1..{total_len}"
            )
        if self.chunk_len < 0 or self.cached_len + self.chunk_len > total_len:
            raise InvalidStep(
                f"request {self.request_id}: cached_len {self.cached_len} + chunk_len "
                f"{self.chunk_len} exceeds its {total_len} tokens"
            )
        if self.cached_len >= total_len:
            raise InvalidStep(
                f"request {self.request_id}: cached_len {self.cached_len} leaves nothing to compute"
            )


@dataclass(frozen=True, slots=True)
class Growth:
    """What changed for a sequence that the shard holds.

    `block_ids` are appended to its block table. `chunk_len` None: one token if it decodes, none
    while its prompt is being computed; after forced tokens it must be given, since there is more
    than one to compute. 0: it sits this step out. A request that the batch no
    longer holds (it just ended) is passed over.
    """

    request_id: int
    block_ids: tuple[int, ...] = ()
    chunk_len: int | None = None


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
    """What a step brought for one request. `error` goes with FinishReason.ERROR alone; it
    `is_refused` where the output made before is what the constraint forbids.

    `prompt_logprobs` are those of this step's chunk; a sequence's first token has none. The last
    `num_forced` tokens were not sampled: the constraint left no choice. `constraint_satisfied` goes
    with a finish reason; None: there is no constraint. `is_late`: its mask was not made in time, so
    that nothing was drawn, and its last token counts as not computed.
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
class StepOutput:
    """The answer to a step. `batch_id` None: no request is left and the batch is forgotten.

    `mask_ns` is the time of all threads that made this step's `num_masked_rows` masks, before
    the forward and beside it; the step had to wait `mask_wait_ns` for them.
    """

    generations: tuple[Generation, ...]
    batch_id: int | None
    request_ids: tuple[int, ...]
    forward_ns: int
    sample_ns: int
    total_ns: int
    mask_ns: int = 0
    num_masked_rows: int = 0
    mask_wait_ns: int = 0


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What warm-up found: the pool's size, and the longest sequence that fits model and pool."""

    num_blocks: int
    block_size: int
    max_total_len: int
