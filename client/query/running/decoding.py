r"""The interface between decoders and runs of programs.

A trace is a value: the log of the finished holes. It is at a hole or has ended. It is immutable:
answering a hole returns the trace behind it. So a trace may be stored, answered twice (a fork) or
answered again after a failure (backtracking); if necessary the program's body is run again with the
known answers.

    start(0) -> AtHole -> answered(text) -> AtHole -> answered(text) -> TraceEnd
                   \-> answered(other text) -> ...

All requests go through an Asker, which records them.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

from client.calls import Answer, BeamsAnswer, BeamsCall, GenerateCall, ScoreCall, Scored, Scores
from client.query.conditions.planner import HolePlan
from client.query.errors import Place, QueryError, Source
from client.query.program import Hole
from client.query.running.transcript import PromptParts
from client.sampling import Sampling


class Pickled:
    """A base class for frozen dataclasses with keyword arguments."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        frozen = {
            name: dict(value)
            for name, value in values.items()
            if isinstance(value, MappingProxyType)
        }
        return _made, (type(self), {**values, **frozen}, tuple(frozen))


def _made(kind: type[Any], values: Mapping[str, Any], frozen: tuple[str, ...]) -> object:
    return kind(**{**values, **{name: MappingProxyType(values[name]) for name in frozen}})


T = TypeVar("T")


async def gather_or_cancel(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. If one fails, the others are cancelled and its error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a decoder clause.

    sampling:   its seed is that of trace 0; trace i has seed + i
    max_tokens: limit for each hole; None: what the model's context leaves
    max_len:    limit for all holes of a trace together; None: as above
    tries:      the most requests of one hole
    stops:      how stop phrases end a hole: cut or exact
    normalised: distributions choose by the mean log-probability per token
    """

    sampling: Sampling
    max_tokens: int | None = None
    max_len: int | None = None
    tries: int = 10
    stops: str = "cut"
    normalised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Pickled):
    """The distribution of a hole over its support: log-probabilities by value.

    `plain`: from sums over tokens, `normalised`: from means per token; both are normalised over the
    support, so the probabilities add up to one.
    """

    plain: Mapping[str, float]
    normalised: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoleAnswer:
    """The model's answer for a hole.

    text:    as generated, with a kept stop phrase
    logprob: the sum over its tokens, with the end token
    """

    text: str
    logprob: float = 0.0
    num_tokens: int = 0
    choice: Choice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedHole:
    """A finished hole: its name, the answer, and the value of its variable."""

    name: str
    answer: HoleAnswer
    value: object


class Rejected(QueryError):
    """A check fails on a hole's text. `value`: the converted text."""

    def __init__(
        self, message: str, text: str, value: object, place: Place, source: Source
    ) -> None:
        super().__init__(message, place, source)
        self.text = text
        self.value = value


class AtHole(Protocol):
    """A trace that waits for the text of a hole."""

    @property
    def index(self) -> int:
        """The number under which the trace was started."""
        ...

    @property
    def hole(self) -> Hole: ...

    @property
    def query(self) -> str:
        """The name of the program with the hole."""
        ...

    @property
    def source(self) -> Source:
        """The source of the program with the hole."""
        ...

    @property
    def plan(self) -> HolePlan:
        """The plan made from its conditions."""
        ...

    @property
    def call(self) -> GenerateCall:
        """The one request that fills the hole: prompt, constraint, stops, budget, sampling, seed.

        Not for a distribution.
        """
        ...

    @property
    def score_call(self) -> ScoreCall | None:
        """For a distribution, the one request that scores its support; else None."""
        ...

    @property
    def prompt_parts(self) -> PromptParts:
        """The prompt so far."""
        ...

    @property
    def has_outer_conditions(self) -> bool:
        """Whether conditions mention the hole that this nested query fills."""
        ...

    @property
    def is_last(self) -> bool:
        """Whether every text that its call allows ends the trace."""
        ...

    @property
    def finished(self) -> Sequence[FinishedHole]:
        """The log: all earlier holes in order."""
        ...

    @property
    def logprob(self) -> float:
        """The sum over all finished holes."""
        ...

    async def answered(self, answer: HoleAnswer) -> "Trace":
        """The trace behind this hole: at the next one, or at its end.

        Raises Rejected if a check fails on the text, Unsatisfiable if the next hole's `where` is
        impossible behind it, ProgramFailed if the program's own code raises. May be called again
        with another answer.
        """
        ...

    def refusing(self, texts: Sequence[str]) -> "AtHole":
        """The same hole without these texts. Raises Unsatisfiable if no text is left."""
        ...

    async def close(self) -> None:
        """End the body's run, and wait for its end.

        The trace stays usable: it is replayed when needed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEnd:
    """A trace whose body has returned: number, log, return value and prompt.

    `variables`: of the program's holes, with their last values.
    """

    index: int
    finished: tuple[FinishedHole, ...]
    value: object
    prompt_parts: PromptParts
    variables: Mapping[str, object]

    @property
    def logprob(self) -> float:
        """The sum over all holes."""
        return sum(hole.answer.logprob for hole in self.finished)


Trace: TypeAlias = AtHole | TraceEnd


class Asker(Protocol):
    """Sends the requests of traces, and records requests, usage and partial states.

    Raises the errors of `client.errors`; a refused constraint becomes an Unsatisfiable at the hole.
    """

    async def generate(self, at: AtHole, call: GenerateCall) -> Answer: ...

    async def score(self, at: AtHole, call: ScoreCall) -> Scores: ...

    async def search(
        self, ats: Sequence[AtHole], call: BeamsCall
    ) -> tuple[BeamsAnswer, Sequence[QueryError]]:
        """One request for beams at these holes; also returns the errors of dropped ones."""
        ...

    async def fill(self, at: AtHole) -> HoleAnswer:
        """Send the hole's request (`call`, or `score_call` for a distribution)."""
        ...


# Starts trace i with a new run of the body.
Start: TypeAlias = Callable[[int], Coroutine[Any, Any, Trace]]


class Decoder(Protocol):
    """A decoding algorithm. Frozen; has no state between runs."""

    async def decode(self, start: Start, asker: Asker) -> Sequence[TraceEnd]:
        """One or more traces, best first if they are ranked."""
        ...


def choice_of(values: Sequence[str], scored: Sequence[Scored]) -> Choice:
    """The probability of each value among these."""
    by_value = dict(zip(values, scored, strict=True))
    return Choice(
        plain=_shares({value: one.total for value, one in by_value.items()}),
        normalised=_shares({value: one.mean for value, one in by_value.items()}),
    )


def best_of(choice: Choice, *, normalised: bool) -> str:
    """The most probable value; on a tie the first.

    normalised: by the mean log-probability per token, which does not penalise long values; else by
                that of the whole value
    """
    shares = choice.normalised if normalised else choice.plain
    return max(shares, key=shares.__getitem__)


def chosen(values: Sequence[str], scored: Sequence[Scored], *, normalised: bool) -> HoleAnswer:
    """The most probable value as a hole's answer."""
    choice = choice_of(values, scored)
    best = best_of(choice, normalised=normalised)
    one = scored[list(values).index(best)]
    return HoleAnswer(text=best, logprob=one.total, num_tokens=len(one.token_ids), choice=choice)


def _shares(scores: Mapping[str, float]) -> Mapping[str, float]:
    """The log-softmax of the scores."""
    top = max(scores.values())
    if top == -math.inf:
        even = -math.log(len(scores))
        return MappingProxyType(dict.fromkeys(scores, even))
    total = top + math.log(sum(math.exp(score - top) for score in scores.values()))
    return MappingProxyType({value: score - total for value, score in scores.items()})
