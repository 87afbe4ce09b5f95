"""A checked request: a value of this module that exists is valid.

Built by `validation.py` alone from raw parameters; everything below reads it. It knows no HTTP
and no field names of a particular API.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from constraints.spec import ConstraintSpec, Kind
from constraints.translation import Translation
from processes.tracing import TraceContext
from proto.contract import LogprobParams, OutputConstraint, SamplingParams, StopParams
from router.request.api_key import NO_KEY, ApiKey

# Seeds are 64 bits on the wire.
NUM_SEEDS = 2**64


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
    """

    spec: ConstraintSpec
    cuts: bool = False
    dropped_phrases: tuple[str, ...] = ()
    has_dead_ends: bool = True
    is_quick: bool = False
    prepare_by_s: float | None = field(default=None, compare=False)
    translation: Translation | None = field(default=None, compare=False, repr=False)
    min_len: int = field(default=0, compare=False)

    def for_shard(self) -> OutputConstraint:
        """What a shard needs with the request.

        The translation is part of it where the constraint is not compiled ahead: then the shard
        gets the constraint for the first time.
        """
        translation = self.translation if self.is_quick else None
        return OutputConstraint(self.spec, self.cuts, translation)

    @property
    def is_judged_at_end(self) -> bool:
        """True when masks enforce a part of it only, so that the finished text must be checked."""
        return self.spec.lenient and self.spec.kind is Kind.JSON_SCHEMA


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate. `prompt_ids` is never empty and fits the pool with its output.

    `output_ids` are tokens of this very output that were made before, by a request that was cut:
    draws, penalties, constraint and budget go on behind them as if there had been no cut.
    `pause_after` that many further tokens the stream ends as PAUSED: another request may go on.
    `prompt_text` is what the ids were made from, for `return_full_text`. `deadline_s` is on the
    clock of the scheduler's caller (monotonic seconds); None: no deadline.
    `trace_id` is what log lines call it; `trace` the span that it belongs to, if that is recorded.
    It finds in the prefix cache what requests of the same `cache_salt` computed, and nothing else.
    `account` is called once, at its end, good or bad, with the numbers of its cached prompt tokens
    and of its generated tokens. `key` is that of its client.
    """

    prompt_ids: tuple[int, ...]
    prompt_text: str
    sampling: SamplingParams
    stop: StopParams
    logprobs: LogprobParams = field(default_factory=LogprobParams)
    constraint: Constraint | None = None
    skip_special_tokens: bool = True
    deadline_s: float | None = None
    trace_id: str = ""
    trace: TraceContext | None = None
    account: Callable[[int, int], None] | None = field(default=None, compare=False, repr=False)
    output_ids: tuple[int, ...] = ()
    pause_after: int | None = None
    cache_salt: bytes = field(default=b"", repr=False)
    key: ApiKey = NO_KEY

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
