"""The results of a run of a query. Frozen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from client.calls import Constraint, Message, Usage
from client.query.running.decoding import Choice
from client.query.running.pickling import Pickled
from client.query.running.transcript import Span

ValueT_co = TypeVar("ValueT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that was sent.

    kind:          generate, beams or score
    query, hole:   the program of the hole (a nested one for its own holes), and the hole; both
                   empty for calls by a program's Python code
    trace:         the number of its trace
    finish_reason: the server's; None for a score, and for a failed request, which has an `error`
    """

    kind: str
    query: str
    hole: str
    trace: int
    duration_s: float
    usage: Usage
    finish_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Pickled, Generic[ValueT_co]):
    """One finished trace of a program.

    prompt:        the whole text with filled holes; turns of a chat begin with their tags
    spans:         the places of the holes' texts
    messages:      the turns of a chat; empty without roles
    variables:     the last values of the program's holes
    value:         the program's return value; None without a return statement
    distributions: of holes that were chosen from a support
    logprob:       of all texts of the model, natural logarithm
    usage:         tokens of all requests of this trace
    requests:      its requests; traces of one search share all of them
    """

    prompt: str
    spans: tuple[Span, ...]
    messages: tuple[Message, ...]
    variables: Mapping[str, object]
    value: ValueT_co
    distributions: Mapping[str, Choice]
    logprob: float
    usage: Usage
    requests: tuple[Request, ...]

    def __getitem__(self, name: str) -> object:
        """A hole's value by its name."""
        return self.variables[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a running program: the prompt of one trace, with the text of `hole` so far.

    `hole` None: the trace has ended. `constraint` and `stop` are those of the hole.
    """

    trace: int
    prompt: str
    spans: tuple[Span, ...]
    hole: str | None = None
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
