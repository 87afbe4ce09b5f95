"""Calls of a served model and their results, as frozen values.

GenerateCall -> GeneratedToken* -> Answer
ScoreCall    -> Scores
BeamsCall    -> BeamsReport* -> BeamsAnswer

The live beams of a search go to the server together. It answers when no live beam can be among the
best, or when a hole has ended behind which the program goes on: only the program knows how.
"""

import math
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from client.errors import TandemError
from client.sampling import Sampling

# The most values of one distribution that servers accept.
MAX_VALUES = 4096


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a chat. `role`: system, user, assistant or tool.

    `thought`: what the assistant thought before; the server drops what its model does not read.
    `images`: URLs, data: ones among them (`client.images`), which stand before the text.
    """

    role: str
    content: str
    thought: str = ""
    images: tuple[str, ...] = ()


# Text (the server adds its tokenizer's special tokens), token ids, or the turns of a chat for the
# model's template, which continues a last turn of the assistant.
Prompt: TypeAlias = str | tuple[int, ...] | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form of an output, like TGI's `grammar`.

    `type`: json, regex, choice, lark, gbnf or where. `value` is a string, for json a schema, for
    choice a list of strings.
    """

    type: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """One stream of tokens.

    prompt:    | prompt | output, generated before | at most max_tokens - len(output) more |

    `output`: tokens of this output that earlier calls generated; draws, constraint and budget
    continue behind them. `stop` strings end the output; with `keeps_stop` they stay in its text.
    `top_logprobs`: the number of alternatives for each token, after mask and penalties.
    `max_tokens` None: as many as the model's context allows. `timeout_s`: a deadline at the server.
    `separates_thought`: of the answer to a chat, what the model thinks is no part of the text.
    """

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = True
    top_logprobs: int = 0
    output: tuple[int, ...] = ()
    timeout_s: float | None = None
    model: str | None = None
    separates_thought: bool = False


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A generated token. `text`: what it adds to the output's text, perhaps nothing yet.

    `is_end`: an end token, which is no part of the text. `top_logprobs`: alternatives by token id
    with the token itself; empty unless requested. `thought`: what it adds to the thought, perhaps
    nothing, as its marks do; None: it is none of its tokens.
    """

    token_id: int
    text: str
    logprob: float
    is_end: bool = False
    top_logprobs: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    thought: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request: of its prompt, of these in the prefix cache, generated."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole output of one call, without the call's `output`.

    `finish_reason`: eos, stop_token, stop_string, constraint_complete, length, deadline or
    cancelled. `text` has no end token, and no stop string that is dropped. `thought`: what came
    before it, where that is separated.
    `constraint_satisfied`: None without a constraint; `violation` is the reason, if known.
    """

    text: str
    tokens: tuple[GeneratedToken, ...]
    finish_reason: str
    usage: Usage
    stop_string: str | None = None
    constraint_satisfied: bool | None = None
    violation: str | None = None
    seed: int | None = None
    thought: str = ""

    @property
    def logprob(self) -> float:
        """The sum over its tokens, with the end token."""
        return sum(token.logprob for token in self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall:
    """The probability of each of `values` behind the prompt, in one request.

    A value is text, which is tokenized on its own, or token ids.
    """

    prompt: Prompt
    values: tuple[str, ...] | tuple[tuple[int, ...], ...]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """The tokens of a value, and the log-probability of each behind the ones before it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        """The log-probability of the value."""
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        """The log-probability per token."""
        return self.total / len(self.logprobs)


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of the values, in their order."""

    values: tuple[Scored, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class ServerNotice:
    """A system message of the server. `state`: queued, loading, running or draining; reconnecting
    when the server is gone, which the client finds out by itself.

    `stream` None: it is about the whole connection.
    """

    state: str
    message: str = ""
    stream: int | None = None


class Model(Protocol):
    """A served model. All methods raise the TandemErrors of `client/errors.py`.

    Any number of calls may run at once; the server batches them.
    """

    def stream(self, call: GenerateCall) -> AsyncGenerator[GeneratedToken | Answer, None]:
        """The tokens as they come, then the Answer. Closing it early cancels the request."""
        ...

    async def generate(self, call: GenerateCall) -> Answer:
        """The whole answer; cancelling the task cancels the request."""
        ...

    async def score(self, call: ScoreCall) -> Scores:
        """The log-probabilities of several continuations of one prompt."""
        ...


EarlyStopping: TypeAlias = bool | Literal["never"]
# The largest length penalty that servers accept.
MAX_PENALTY = 32


def score_of(logprob: float, num_tokens: int, length_penalty: float) -> float:
    """The score by which ended traces are ranked."""
    return logprob / math.pow(max(num_tokens, 1), length_penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamHole:
    """A hole of beams: of its call prompt, budget, constraint and stop strings.

    `is_last`: the program ends with it, whatever its text is.
    """

    call: GenerateCall
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamState:
    """A beam at hole number `hole`, with its tokens there.

    `logprob` and `num_tokens` are those of the whole trace with its end tokens, `output_logprob`
    that of the hole. `is_ended`: the hole has ended with `text`; else `text` is its text so far,
    if that is known.
    """

    hole: int = 0
    output: tuple[int, ...] = ()
    logprob: float = 0.0
    num_tokens: int = 0
    output_logprob: float = 0.0
    text: str = ""
    is_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamsCall:
    """The live beams of a search. `width` are kept; `ended` are scores of traces at their ends.

    `sampling` is that of all holes; its temperature and the fields that narrow a draw are ignored.
    `length_penalty`, `early_stopping` and `max_len` as of `beam`. `num_candidates`: the number of
    candidates to return, where too few of a step were possible. `report_s`: seconds between two
    reports.
    """

    width: int
    holes: tuple[BeamHole, ...]
    beams: tuple[BeamState, ...]
    sampling: Sampling = field(default_factory=Sampling)
    length_penalty: float = 0.0
    early_stopping: EarlyStopping = False
    max_len: int | None = None
    ended: tuple[float, ...] = ()
    num_candidates: int | None = None
    report_s: float | None = 1.0
    model: str | None = None


@dataclass(frozen=True, slots=True)
class BeamDropped:
    """A beam that no token may follow, with the `error`; None: its text violates its constraint,
    and `violation` may say how.
    """

    beam: BeamState
    error: TandemError | None = None
    violation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamsReport:
    """The state of a search: live beams, and traces that have ended since its request."""

    beams: tuple[BeamState, ...]
    ended: tuple[BeamState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamsAnswer:
    """The outcome of a search.

    `finish_reason`: complete, hole, deadline or cancelled. `beams` are live, or at the end of a
    hole. With `candidates` they are those before the last step, and the candidates its possible
    results, the most probable first: `num_considered` are looked at and `width` live ones kept;
    `has_more`: others follow them. `ended` are traces at the end of a last hole.
    """

    finish_reason: str
    beams: tuple[BeamState, ...] = ()
    candidates: tuple[BeamState, ...] | None = None
    has_more: bool = False
    num_considered: int = 0
    ended: tuple[BeamState, ...] = ()
    dropped: tuple[BeamDropped, ...] = ()
    usage: Usage = field(default_factory=Usage)


@runtime_checkable
class BeamModel(Protocol):
    """A Model that runs beam search itself; the decoder `beam` needs one."""

    def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        """A group of beams: reports, then the answer. Closing it early cancels the request."""
        ...
