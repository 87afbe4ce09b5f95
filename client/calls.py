"""Calls of a served model and their results, as frozen values.

GenerateCall -> GeneratedToken* -> Answer
ScoreCall    -> Scores
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

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
