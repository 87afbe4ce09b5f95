"""What the router and the shards say to each other, in plain ints: no protobuf, no tensor.

    router: Batch of NewSequence, RunningUpdate --> shard: StepResult of Generation --> router

Both tiers' `wire.py` translate between these classes and the messages of `generate.proto`. A value
that exists is valid: constructors check lengths that contradict each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from constraints.spec import ConstraintSpec, ThoughtRule, Translation


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is sampled. None, or the neutral value, switches a processor off."""

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
    """When a sequence ends.

    `max_new_tokens` counts the output made before a request, too. `stop_strings` are searched in
    the text by the router; a shard masks them where the constraint would not hold with such an end.
    `keep_stop_string`: the matched string stays in the text (TGI), or not (OpenAI).
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    keep_stop_string: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """A constraint that the shard has compiled; `cache_bytes` is about what all of them take."""

    was_cached: bool
    cache_bytes: int
    compile_ns: int


@dataclass(frozen=True, slots=True)
class LogprobParams:
    """Which log-probabilities to report.

    `raw`: of the model's own distribution (OpenAI), else after penalties and warping (TGI).
    `prompt`: those of the prompt's tokens, too, from position `prompt_from` on.
    """

    num_top_tokens: int = 0
    raw: bool = False
    prompt: bool = False
    prompt_from: int = 0

    @property
    def first_scored(self) -> int:
        """Position of the first prompt token with a log-probability; token 0 never has one."""
        return max(self.prompt_from, 1)


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """The language of an output's text, as a shard enforces it.

    cuts:        the output may be cut at max_new_tokens before the constraint holds
    translation: what the router's check has found of `spec`, so that a shard need not
    thought:     what comes before the text; None: nothing
    """

    spec: ConstraintSpec
    cuts: bool = False
    translation: Translation | None = field(default=None, compare=False, repr=False)
    thought: ThoughtRule | None = None


class FinishReason(Enum):
    """Why a sequence ended. STOP_STRING and DEADLINE are the router's alone, ERROR a shard's."""

    LENGTH = "length"
    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CONSTRAINT_COMPLETE = "constraint_complete"  # nothing but the end may follow
    DEADLINE = "deadline"
    # After as many tokens as were asked for; another request may continue the output.
    PAUSED = "paused"
    ERROR = "error"


# Bytes of a number, by the dtypes that an image's tensors may have.
IMAGE_DTYPES: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}
)

# Slots in which a sequence of a model with states works: a step reads one and writes the other.
NUM_OWN_STATES = 2


class KeptState(NamedTuple):
    """A block boundary, and the slot that is to hold the state at it."""

    position: int
    state_id: int


@dataclass(frozen=True, slots=True)
class ImageTensor:
    """An array that a processor made of an image; `data` as in generate.proto.

    Raises ValueError where `data` is not of this dtype and shape.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in IMAGE_DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(IMAGE_DTYPES)}")
        num_bytes = prod(self.shape) * IMAGE_DTYPES[self.dtype]
        if len(self.data) != num_bytes:
            raise ValueError(
                f"{len(self.data)} bytes are no {self.dtype} of shape {list(self.shape)}:"
                f" that has {num_bytes}"
            )

    @property
    def is_float(self) -> bool:
        """Whether it shows the image; else it says how that is laid out."""
        return "float" in self.dtype


@dataclass(frozen=True, slots=True)
class Image:
    """Tokens [start, start + span_len) of a prompt stand for an image, its break tokens among them.

    digest:  16 bytes, of the file's bytes, and of no other router's
    tensors: what the model's class takes beside token ids, by its names; of an image that ends
        before cached_len those of integers alone
    """

    digest: bytes
    start: int
    span_len: int
    tensors: Mapping[str, ImageTensor]

    @property
    def stop(self) -> int:
        """The position behind it."""
        return self.start + self.span_len


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A request that enters the running batch, for the first time or after a preemption.

    token_ids:  | prompt ............... | output made before: a preemption, another request |
                0                        prompt_len                    len(token_ids)
    computed:   | cached_len | chunk_len, in this step | later steps |

    `block_ids` cover at least cached_len + chunk_len tokens. `pause_len`: tokens of output after
    which it pauses; None: it does not. Raises ValueError when these lengths contradict each other.

    Of a model with states it has two slots, `state_ids`: each step reads one and writes the other.
    `from_state`: the kept slot that it begins with, which stands at cached_len; None: it begins at
    position 0. `kept_states`: block boundaries of token_ids behind cached_len, in their order.
    `adapter_id`: the loaded LoRA adapter that it is computed with; None: the model alone.
    `max_drafts`: draft tokens that a step may compute behind its last token.
    `images`: of the prompt, in its order; none overlaps another.
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
    constraint: OutputConstraint | None = None
    pause_len: int | None = None
    state_ids: tuple[int, ...] = ()
    from_state: int | None = None
    kept_states: tuple[KeptState, ...] = ()
    adapter_id: int | None = None
    max_drafts: int = 0
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        total_len = len(self.token_ids)
        if not 0 < self.prompt_len <= total_len:
            raise ValueError(
                f"request {self.request_id}: prompt_len {self.prompt_len} is not in 1..{total_len}"
            )
        if self.chunk_len < 0 or self.cached_len + self.chunk_len > total_len:
            raise ValueError(
                f"request {self.request_id}: cached_len {self.cached_len} + chunk_len "
                f"{self.chunk_len} exceeds its {total_len} tokens"
            )
        if self.cached_len >= total_len:
            raise ValueError(
                f"request {self.request_id}: cached_len {self.cached_len} leaves nothing to compute"
            )
        before = self.cached_len
        for kept in self.kept_states:
            if not before < kept.position <= total_len:
                raise ValueError(
                    f"request {self.request_id}: a state is to be kept at {kept.position}, which is"
                    f" not in {before + 1}..{total_len}"
                )
            before = kept.position
        before = 0
        for image in self.images:
            if not before <= image.start < image.stop <= self.prompt_len:
                raise ValueError(
                    f"request {self.request_id}: an image of {image.span_len} tokens at"
                    f" {image.start} is not within {before}..{self.prompt_len}"
                )
            before = image.stop


@dataclass(frozen=True, slots=True)
class RunningUpdate:
    """What changes for a sequence that the shard holds.

    `block_ids` are appended to its block table. `chunk_len` None: one token if it decodes, none
    while its prompt is being computed. 0: it sits this step out. For a request that decodes it is
    the most: under a constraint the last step may have forced any number of tokens, and the shard
    may compute draft tokens behind the last one. The shard skips a request that just ended.
    """

    request_id: int
    block_ids: tuple[int, ...] = ()
    chunk_len: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One step.

    `dropped_ids` leave the running batch before the step. `running_ids` are the requests that the
    shard holds and that stay, if they have not ended in a step that is not answered yet.
    `num_tokens` counts all tokens that may be computed, `num_decode_tokens` those of requests that
    decode.
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


# Tuples, because every step makes dozens.
class TopToken(NamedTuple):
    """An alternative to a chosen token."""

    token_id: int
    logprob: float


class MaskEffect(Enum):
    """What a constraint's mask did to the choice of a token.

    free:    the model's most probable token was allowed
    steered: it was not
    forced:  one token alone was allowed
    """

    FREE = "free"
    STEERED = "steered"
    FORCED = "forced"


class SampledToken(NamedTuple):
    """A chosen token.

    `mask_effect` comes with alternatives of the model's own distribution, where there is a mask.
    """

    token_id: int
    logprob: float
    top_tokens: tuple[TopToken, ...] = ()
    mask_effect: MaskEffect | None = None


# A request that goes on, its one new token, and that token's log-probability: nearly all that steps
# bring. No class, since they are made by the dozen, by `zip`.
PlainRow: TypeAlias = tuple[int, int, float]


class Generation(NamedTuple):
    """What a step brought for one request.

    `num_forced` of the tokens were not sampled: the constraint left no choice.
    `finish_reason` only for reasons that a shard decides; `constraint_satisfied` goes with one;
    None: there is no constraint. `error`: this row failed, and `tokens` is empty; it `is_refused`
    where the output made before is what the constraint forbids, or that takes too long to follow.
    `prompt_logprobs` are those of this step's chunk; a sequence's first token has none. `is_late`:
    its mask was not made in time, so that nothing was sampled, and its last token counts as not
    computed. The step computed `num_drafts` draft tokens; the first `num_accepted` of `tokens` are
    those that were sampled or forced, and are in the KV cache.
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
    num_drafts: int = 0
    num_accepted: int = 0

    @classmethod
    def of_plain(cls, row: PlainRow) -> "Generation":
        """What a plain row says."""
        request_id, token_id, logprob = row
        return cls(request_id, (SampledToken(token_id, logprob),))


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a Batch. `remaining_ids` are the requests that the shard still holds.

    `others` are of requests of which more is to be said than `plain` does.
    `mask_s` went into the token masks of `num_masked_rows`, beside the forward; sampling waited
    `mask_wait_s` of it.
    """

    step_id: int
    others: tuple[Generation, ...]
    remaining_ids: tuple[int, ...]
    forward_s: float = 0.0
    sample_s: float = 0.0
    total_s: float = 0.0
    mask_s: float = 0.0
    mask_wait_s: float = 0.0
    num_masked_rows: int = 0
    plain: Sequence[PlainRow] = ()

    @property
    def generations(self) -> tuple[Generation, ...]:
        """What the step brought to each request."""
        return (*map(Generation.of_plain, self.plain), *self.others)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a shard loaded.

    executor:        what computes the steps: its name, and its instructions or attention
    window_len:      smallest sliding window of any layer; None: no window
    is_invariant:    whether a request gets the same tokens whatever else is computed beside it
    fallback_reason: why the model runs in its own class and not by a recipe; None: it does not
    num_parameters:  of the whole model
    weights_bytes:   what one rank holds of them; None: unknown, for the checkpoint is quantized
    bytes_per_block: of keys and values, in one rank's pool
    sampling_defaults: sampling parameters by their names, as the checkpoint's makers recommend them
    language_model_only: the checkpoint's model takes more than text, as images, and is served for
        text alone
    state_bytes:     of one sequence's state on one rank; 0: keys and values are all there is
    keeps_states:    whether a state can be kept at a block boundary, and begun from
    max_loras:       LoRA adapters that may be loaded at one time
    setup:           a digest of what decides bits beside the executor: versions, checkpoint, flags,
        GPU
    sees_images:     whether requests may bring images
    blind_reason:    why not, where the model's class takes them
    images_see_ahead: an image's tokens attend to each other: no chunk may end inside of one
    """

    model_id: str
    model_type: str
    dtype: str
    device_type: str
    executor: str
    block_size: int
    vocab_size: int
    max_position_embeddings: int
    window_len: int | None
    eos_token_ids: tuple[int, ...]
    world_size: int
    rank: int
    is_invariant: bool = False
    fallback_reason: str | None = None
    num_parameters: int = 0
    weights_bytes: int | None = None
    bytes_per_block: int = 0
    sampling_defaults: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    language_model_only: bool = False
    state_bytes: int = 0
    keeps_states: bool = False
    max_loras: int = 0
    setup: str = ""
    sees_images: bool = False
    blind_reason: str | None = None
    images_see_ahead: bool = False


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """A LoRA adapter that a rank holds; `rank` is the largest of its matrices."""

    rank: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What warm-up found: the KV pool, and the longest sequence that model and pool hold.

    num_states: slots for states; 0: the model has none
    """

    num_blocks: int
    block_size: int
    max_total_len: int
    num_states: int = 0
