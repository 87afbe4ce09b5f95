"""How a decoder drives traces: the one interface between searching and running.

A trace is a value: the log of the holes that were finished so far. It stands at a hole or has
ended, and neither is ever changed: answering a hole gives the trace behind it. So a trace may be
kept, answered twice (a fork) or answered anew after a mistake (going back); the program's body is
run again with the known answers where that is needed.

    start(0) -> AtHole -> answered(text) -> AtHole -> answered(text) -> TraceEnd
                   \\-> answered(other text) -> ...

All that is asked of the model goes through an Asker, which keeps the books.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from client.beams import BeamsAnswer, BeamsCall
from client.calls import Answer, GenerateCall, ScoreCall, Scores
from client.query.conditions.plan import HolePlan
from client.query.errors import QueryError
from client.query.place import Place, Source
from client.query.program import Hole
from client.query.running.pickling import Pickled
from client.query.running.transcript import PromptParts
from client.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a decoder clause asks for besides its name.

    `max_tokens` bounds each hole, `max_len` all holes of a trace together; None: what the model's
    context leaves. `tries` is how often one hole may be asked at most. `sampling.seed` is that of
    trace 0; trace i has seed + i. `stops` is how pure stop phrases end a hole: cut or exact.
    """

    sampling: Sampling
    max_tokens: int | None = None
    max_len: int | None = None
    tries: int = 10
    stops: str = "cut"
    normalised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Pickled):
    """A hole whose value was chosen from a support: log-probabilities by value.

    `plain` are of the values as they are (sums over their tokens), `normalised` of their means per
    token; both over the support alone, so that each adds up to one.
    """

    plain: Mapping[str, float]
    normalised: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoleAnswer:
    """What the model wrote into a hole.

    `text` as it was made, a kept stop phrase among it; `logprob` the sum over its tokens, the end
    token among them.
    """

    text: str
    logprob: float = 0.0
    num_tokens: int = 0
    choice: Choice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedHole:
    """A hole behind us: its name, what was written and what its variable is bound to."""

    name: str
    answer: HoleAnswer
    value: object


class Rejected(QueryError):
    """A check fails on a hole's text. `text` is what was tried, `value` what it meant."""

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
    def hole(self) -> Hole:
        """Where it stands."""
        ...

    @property
    def query(self) -> str:
        """The name of the program in which the hole stands."""
        ...

    @property
    def source(self) -> Source:
        """The program's text in which the hole stands."""
        ...

    @property
    def plan(self) -> HolePlan:
        """What its conditions mean."""
        ...

    @property
    def call(self) -> GenerateCall:
        """The one request that fills the hole: prompt, constraint, stops, budget, sampling, seed.

        Not for a distribution.
        """
        ...

    @property
    def score_call(self) -> ScoreCall | None:
        """Of a distribution: the one request that scores its support; else None."""
        ...

    @property
    def prompt_parts(self) -> PromptParts:
        """The prompt so far."""
        ...

    @property
    def has_outer_conditions(self) -> bool:
        """Whether conditions speak of a hole around it, which a nested query fills."""
        ...

    @property
    def is_last(self) -> bool:
        """Whether every text that its call allows ends the trace."""
        ...

    @property
    def finished(self) -> Sequence[FinishedHole]:
        """The log: all holes before this one, in their order."""
        ...

    @property
    def logprob(self) -> float:
        """The sum over all finished holes."""
        ...

    async def answered(self, answer: HoleAnswer) -> "Trace":
        """The trace behind this hole: at the next one, or at its end.

        Raises Rejected when a check fails on the text, Unsatisfiable when the next hole's `where`
        cannot be kept after it, ProgramFailed when the program's own code raises. May be called
        again with another answer.
        """
        ...

    def refusing(self, texts: Sequence[str]) -> "AtHole":
        """The same, asking for anything but these texts; Unsatisfiable when nothing is left."""
        ...

    async def close(self) -> None:
        """End the body's run, and wait until it has ended.

        Nothing is lost, since a closed trace is replayed when needed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEnd:
    """A trace whose body has returned: number, whole log, return value and prompt.

    `variables` are those of the program's holes, at their last value.
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
    """Asks the model on behalf of traces, and keeps the books: requests, usage, partial states.

    Errors are those of `client.errors`; a refused constraint comes as an Unsatisfiable that points
    at the hole.
    """

    async def generate(self, at: AtHole, call: GenerateCall) -> Answer:
        """One request."""
        ...

    async def score(self, at: AtHole, call: ScoreCall) -> Scores:
        """One request."""
        ...

    async def search(
        self, ats: Sequence[AtHole], call: BeamsCall
    ) -> tuple[BeamsAnswer, Sequence[QueryError]]:
        """One request for beams at these holes, and what is wrong with those that were dropped."""
        ...

    async def fill(self, at: AtHole) -> HoleAnswer:
        """The hole's own request (`call`, or `score_call` of a distribution) as an answer."""
        ...


# Starts trace i: a fresh run of the body.
Start: TypeAlias = Callable[[int], Coroutine[Any, Any, Trace]]


class Decoder(Protocol):
    """A way to search for the texts of holes. Frozen; owns nothing between two runs."""

    async def decode(self, start: Start, asker: Asker) -> Sequence[TraceEnd]:
        """One or more traces, the best first where they are ranked."""
        ...
