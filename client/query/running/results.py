"""What a run of a query gives. Frozen words."""

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
    """A request that was sent. `kind` is generate, beams or score, `trace` the number of its
    trace.

    `query` is the name of the program in which the hole stands: of a nested one where it is one of
    its holes. Both are empty for what a program's Python asks by itself.

    `finish_reason` is the server's; None for a score, and for a request that was not answered,
    whose `error` says why.
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
    """One trace of a program, at its end.

    prompt:        the whole text, holes filled; turns of a chat begin with their tags
    spans:         where in it the holes' texts are
    messages:      the turns of a chat; empty without roles
    variables:     the holes of the program, at their last values
    value:         what the program returned; None without a return statement
    distributions: of holes that were chosen from a support
    logprob:       of all that the model wrote or chose, natural logarithm
    usage:         tokens of all requests of this trace
    requests:      one for each request that was sent for it; traces that a decoder searched
                   together share them all
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
    """A program under way: the prompt of one trace up to now, what is written into `hole` included.

    `hole` None: the trace has ended. `constraint` and `stop` are those of the hole.
    """

    trace: int
    prompt: str
    spans: tuple[Span, ...]
    hole: str | None = None
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
