"""A checked request, and the events of its answer, in the order in which its client sees them.

    GenerateRequest -> PromptScored?  TokenGenerated*  (Finished | Failed)

A request that exists is valid: `engine/validation.py` alone builds it from raw parameters. Exactly
one of the last two events ends every accepted one. Frozen values, which know no HTTP and no field
names of a particular API.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

from constraints.spec import ConstraintSpec, Kind, ThoughtRule, Translation
from processes.spans import TraceContext
from proto.contract import (
    FinishReason,
    Image,
    LogprobParams,
    MaskEffect,
    OutputConstraint,
    SamplingParams,
    StopParams,
)
from router.request.errors import RouterError


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`digest` is SHA-256 of the key. `weight` is its share of a busy server beside others'.

    Limits are of all its requests together; None: there is none.
    """

    name: str
    digest: bytes = field(default=b"", repr=False)
    weight: float = 1.0
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    constraint_seconds_per_minute: int | None = None


# Of every request where no key is needed.
NO_KEY = ApiKey("")


@dataclass(frozen=True, slots=True)
class Work:
    """Beside the tokens that were generated: how, and for how long.

    Of them `num_forced` had no alternative under their constraint. `num_wasted` tokens were
    computed once more, after a preemption or behind a forced run that was cut, or were drafts that
    were not accepted. `shard_s` are
    seconds of steps, each by its tokens' share of the step; `block_s` KV blocks times the seconds
    of the steps in which they were held.
    """

    num_forced: int = 0
    num_wasted: int = 0
    shard_s: float = 0.0
    block_s: float = 0.0

    def fields(self) -> dict[str, float]:
        """As replies have it in `usage.work_details`."""
        return {
            "forced_tokens": self.num_forced,
            "wasted_tokens": self.num_wasted,
            "shard_seconds": round(self.shard_s, 6),
            "kv_block_seconds": round(self.block_s, 6),
        }

    def plus(self, other: Self) -> "Work":
        """Of both together."""
        return Work(
            self.num_forced + other.num_forced,
            self.num_wasted + other.num_wasted,
            self.shard_s + other.shard_s,
            self.block_s + other.block_s,
        )


NO_WORK = Work()


# Seeds are 64 bits on the wire.
NUM_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class JudgedPart:
    """A part of a finished answer, and the schema that it is checked against.

    `name` tells it from the others; empty: it is the whole answer.
    """

    spec: ConstraintSpec
    text: str
    name: str = ""


class AnswerParts(Protocol):
    """Finds the parts of an answer that have schemas of their own."""

    def of(self, text: str) -> Sequence[JudgedPart]:
        """Those of a finished answer."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the output must belong to, as it was found in order.

    `cuts`: the client prefers an output that is cut at `max_new_tokens` to one that is steered to
    an end in time. `dropped_phrases` end the output and are no part of it, beside the stop strings
    (`stops_before`); the check reads them off the constraint. `has_dead_ends`: masks may leave
    tokens after which the text cannot be completed in time, and only a shard can say. `is_quick`:
    it compiles in no more time than a step may wait for it, so that it need not be compiled ahead;
    else that is to be done by `prepare_by_s`, of the monotonic clock. `translation` is what the
    check has found, so that a shard need not. `min_len`: tokens of the shortest text that was
    looked for and found.

    `may_relax`: what masks cannot enforce is left to a check of the finished text, not refused;
    else a refusal goes on with `remedy`. `not_enforced`: the places of what is left to it. `parts`
    has schemas of its own; None: the answer as a whole.
    """

    spec: ConstraintSpec
    cuts: bool = False
    dropped_phrases: tuple[str, ...] = ()
    has_dead_ends: bool = True
    is_quick: bool = False
    prepare_by_s: float | None = field(default=None, compare=False)
    translation: Translation | None = field(default=None, compare=False, repr=False)
    min_len: int = field(default=0, compare=False)
    may_relax: bool = False
    remedy: str = field(default="", compare=False)
    not_enforced: tuple[str, ...] = field(default=(), compare=False)
    parts: AnswerParts | None = field(default=None, compare=False, repr=False)

    def for_shard(self, thought: ThoughtRule | None) -> OutputConstraint:
        """What a shard needs with the request, whose text may begin with a thought.

        The translation is part of it where the constraint is not compiled ahead: then the shard
        gets the constraint for the first time.
        """
        translation = self.translation if self.is_quick else None
        return OutputConstraint(self.spec, self.cuts, translation, thought)

    @property
    def is_judged_at_end(self) -> bool:
        """True when masks enforce a part of it only, so that the finished text must be checked."""
        return self.spec.lenient

    def judged(self, text: str) -> Sequence[JudgedPart]:
        """What of a finished text is checked, against what."""
        return (JudgedPart(self.spec, text),) if self.parts is None else self.parts.of(text)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate. `prompt_ids` is never empty and fits the pool with its output.

    `output_ids` are tokens of this very output that were made before, by a request that was cut:
    draws, penalties, constraint and budget go on behind them as if there had been no cut. If it
    `is_moved`, they are events again, and text and counts are those of the whole output.
    `pause_after` that many further tokens the stream ends as PAUSED: another request may go on.
    `prompt_text` is what the ids were made from, for `return_full_text`. `deadline_s` is on the
    clock of the scheduler's caller (monotonic seconds); None: no deadline.
    `trace_id` is what log lines call it; `trace` the span that it belongs to, if that is recorded.
    It finds in the prefix cache what requests of the same `cache_salt` computed, and nothing else.
    `template_end_ids` are those of its stop tokens that count as the model's end.
    `shown_ids` are special tokens that are part of the text, for the one who reads the answer.
    `on_end` is called once, at its end, good or bad, with the numbers of its cached prompt tokens
    and of its generated tokens. `key` is that of its client. `thought` is what comes before the
    text that `constraint` and stop strings are for; its budget is kept only under a constraint.
    `adapter_id` is the load of the LoRA adapter that it is computed with; None: the model alone.
    `images` are those of the prompt, in its order.
    """

    prompt_ids: tuple[int, ...]
    prompt_text: str
    sampling: SamplingParams
    stop: StopParams
    logprobs: LogprobParams = field(default_factory=LogprobParams)
    constraint: Constraint | None = None
    skip_special_tokens: bool = True
    shown_ids: frozenset[int] = frozenset()
    deadline_s: float | None = None
    trace_id: str = ""
    trace: TraceContext | None = None
    on_end: Callable[[int, int], None] | None = field(default=None, compare=False, repr=False)
    output_ids: tuple[int, ...] = ()
    is_moved: bool = False
    pause_after: int | None = None
    cache_salt: bytes = field(default=b"", repr=False)
    key: ApiKey = NO_KEY
    thought: ThoughtRule | None = None
    template_end_ids: tuple[int, ...] = ()
    adapter_id: int | None = None
    images: tuple[Image, ...] = field(default=(), repr=False)

    @property
    def has_rule(self) -> bool:
        """Whether its text has to satisfy something; a thought's budget alone is no such rule."""
        return self.constraint is not None and self.constraint.spec.kind is not Kind.TEXT

    @property
    def shard_constraint(self) -> OutputConstraint | None:
        """What shards enforce."""
        return None if self.constraint is None else self.constraint.for_shard(self.thought)

    @property
    def pause_len(self) -> int | None:
        """Tokens of output, those made before among them, at which it pauses; None: it does not."""
        return None if self.pause_after is None else len(self.output_ids) + self.pause_after

    @property
    def last_len(self) -> int:
        """Tokens of output at which it ends or pauses, if nothing ends it before."""
        pause_len = self.pause_len
        most = self.stop.max_new_tokens
        return most if pause_len is None else min(most, pause_len)

    def draw(self, index: int) -> "GenerateRequest":
        """The request for one of several independent answers; the first is this one."""
        if index == 0:
            return self
        seed = (self.sampling.seed + index) % NUM_SEEDS
        return replace(self, sampling=replace(self.sampling, seed=seed))


# Tuples, because every step makes dozens.
class TokenLogprob(NamedTuple):
    """A token as reported: `text` is what it adds on its own; `logprob` None for a first token.

    `hidden`: a generated token that is no part of the answer's text, though it has a text: a
    special one, or the one that ended the answer.
    """

    token_id: int
    text: str
    logprob: float | None
    special: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The prompt's tokens with their log-probabilities, from `prompt_from` on; only if requested.

    The very first token of a prompt has none.
    """

    tokens: tuple[TokenLogprob, ...]
    top_tokens: tuple[tuple[TokenLogprob, ...], ...] = ()


class TokenGenerated(NamedTuple):
    """One generated token.

    `text` is what the client may show now: it never splits a character, never holds a stop
    string that is to be dropped, and may be empty while text is held back. `token.text` is the
    token's own incremental text, special tokens included, up to where a stop string ends the
    output. `mask_effect` is what the constraint did, where `top_tokens` are the model's own.
    """

    token: TokenLogprob
    text: str
    top_tokens: tuple[TokenLogprob, ...] = ()
    mask_effect: MaskEffect | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one request's life; `inference_s` begins with its first step."""

    queue_s: float
    time_to_first_token_s: float
    inference_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The good end. `text` is the whole output as shown: the concatenation of all event texts
    and `tail`, what was held back until now. Of an output that goes on with one made before, it is
    what was not shown then. A pause has no tail: the request that continues the output shows what
    was held back.

    `num_prompt_tokens` counts all tokens of the request, those made before among them;
    `num_generated_tokens` what is new.

    `constraint_satisfied`: whether it belongs to the request's constraint, None without one and at
    a pause;
    `violation` says what is wrong where that is known, which is where the text itself was checked.
    """

    reason: FinishReason
    text: str
    tail: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    seed: int | None
    stop_string: str | None = None
    stop_token_id: int | None = None
    timings: Timings | None = None
    constraint_satisfied: bool | None = None
    violation: str | None = None
    work: Work = NO_WORK


@dataclass(frozen=True, slots=True)
class Failed:
    """The bad end."""

    error: RouterError


Event = PromptScored | TokenGenerated | Finished | Failed
