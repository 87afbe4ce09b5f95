"""Requests to a model and its answers, as frozen values without behaviour.

GenerateCall -> TokenMade* -> Answer
ScoreCall    -> Scores
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeAlias, TypedDict


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a chat. `role`: system, user, assistant or tool."""

    role: str
    content: str


# Seeds have 64 bits. Values of one distribution, at most, as servers take them.
MAX_SEED = 2**64 - 1
MAX_VALUES = 4096
# Of a count: more than any model or machine has, and still a number for whoever reads it.
MAX_COUNT = 2**31
_HUGE = sys.float_info.max
# A prompt: text (the server adds what its tokenizer puts in front), token ids as they are, or turns
# of a chat for the model's own template; a last turn of the assistant is gone on with.
Prompt: TypeAlias = str | tuple[int, ...] | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class NumberRule:
    """The numbers that an option takes; `low` is one of them unless it `is_open`."""

    low: float
    high: float = sys.float_info.max
    is_open: bool = False
    is_whole: bool = False

    def allows(self, value: object) -> bool:
        """Whether the value is such a number; True and False are none."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return (self.low < value if self.is_open else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        kind, is_bounded = "a whole number" if self.is_whole else "a number", self.high < _HUGE
        if self.is_open:
            return f"{kind} above {self.low}" + (f", at most {self.high}" if is_bounded else "")
        return f"{kind} from {self.low} " + (f"to {self.high}" if is_bounded else "on")


def _number(low: float, high: float = _HUGE, *, is_open: bool = False) -> dict[str, NumberRule]:
    return {"rule": NumberRule(low, high, is_open)}


def _whole(low: int, high: int) -> dict[str, NumberRule]:
    return {"rule": NumberRule(low, high, is_whole=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 takes the most probable; None: the server's neutral.

    The rule of each number is in its field's metadata: what programs and the command line take.
    """

    temperature: float = field(default=0.0, metadata=_number(0))
    top_k: int | None = field(default=None, metadata=_whole(1, MAX_COUNT))
    top_p: float | None = field(default=None, metadata=_number(0, 1, is_open=True))
    min_p: float | None = field(default=None, metadata=_number(0, 1))
    typical_p: float | None = field(default=None, metadata=_number(0, 1, is_open=True))
    repetition_penalty: float | None = field(default=None, metadata=_number(0, is_open=True))
    frequency_penalty: float | None = field(default=None, metadata=_number(-2, 2))
    presence_penalty: float | None = field(default=None, metadata=_number(-2, 2))
    seed: int | None = field(default=None, metadata=_whole(0, MAX_SEED))
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))


SAMPLING_RULES: Mapping[str, NumberRule] = MappingProxyType(
    {each.name: each.metadata["rule"] for each in fields(Sampling) if each.metadata}
)


class SamplingOptions(TypedDict, total=False):
    """Sampling's numbers as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language for the output, as TGI's `grammar` says it: json, regex, choice, lark, gbnf,
    where.

    `value` is a string, or for json a schema and for choice a list of strings.
    """

    type: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """One stream of tokens.

    prompt:    | prompt | output: made before | at most max_tokens - len(output) more |

    `output` are tokens of this very output that were made before: the draws, the constraint and
    the budget go on behind them, as if there had been no pause. `num_steps`: pause after so many
    further tokens, with finish reason "paused". `stop` strings end the output; they stay in its
    text with `keeps_stop`. `top_logprobs`: so many alternatives for each token, after mask and
    penalties.
    `max_tokens` None: all that the model's context leaves. `timeout_s`: the server ends it then.
    """

    prompt: Prompt
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = True
    top_logprobs: int = 0
    output: tuple[int, ...] = ()
    num_steps: int | None = None
    timeout_s: float | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class TokenMade:
    """A token. `text`: what the output's text grows by now, perhaps nothing yet.

    `is_end`: an end token, which is no part of the text. `top_logprobs` by token id, the token's
    own among them; empty unless asked for.
    """

    token_id: int
    text: str
    logprob: float
    is_end: bool = False
    top_logprobs: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request: of its prompt, of these found in the prefix cache, made."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an output stood before a call with `num_steps` went on with it.

    `text` was shown of the call's `output`, `tail` held back (the rest of a character, the
    beginning of a stop string): together its text if it ended there. `end_token_ids` would end it.
    """

    text: str = ""
    tail: str = ""
    end_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole output, of this call: without what was made before.

    `finish_reason`: eos, stop_token, stop_string, constraint_complete, length, deadline, paused or
    cancelled. `text` is what is shown of it: no end token, no stop string that was to be dropped.
    `constraint_satisfied` None without a constraint; `violation` says what is wrong, if known.
    """

    text: str
    tokens: tuple[TokenMade, ...]
    finish_reason: str
    usage: Usage
    stop_string: str | None = None
    constraint_satisfied: bool | None = None
    violation: str | None = None
    seed: int | None = None
    standing: Standing = Standing()

    @property
    def logprob(self) -> float:
        """The sum over its tokens, the end token among them."""
        return sum(token.logprob for token in self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall:
    """How probable each of `values` is behind the prompt, in one request.

    A value is text, which is tokenized on its own, or token ids.
    """

    prompt: Prompt
    values: tuple[str, ...] | tuple[tuple[int, ...], ...]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """A value's tokens and the log-probability of each, given all before it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        """The log-probability of the value."""
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        """The same per token: normalised by length."""
        return self.total / len(self.logprobs)


@dataclass(frozen=True, slots=True)
class Scores:
    """One for each value, in their order."""

    values: tuple[Scored, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class ServerNotice:
    """What the server says of itself: `state` is queued, loading, running or draining.

    `stream` None: it concerns the whole connection.
    """

    state: str
    message: str = ""
    stream: int | None = None
