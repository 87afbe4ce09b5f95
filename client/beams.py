"""Beam search requests and their answers; frozen values.

BeamsCall -> BeamsReport* -> BeamsAnswer

The live beams of a search go to the server together. It answers when no live beam can be among the
best, or when a hole has ended behind which the program goes on: only the program knows how.
"""

import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from client.calls import Constraint, Prompt, Usage
from client.errors import TandemError
from client.sampling import Sampling

EarlyStopping: TypeAlias = bool | Literal["never"]
# The largest length penalty that servers accept.
MAX_PENALTY = 32


def score_of(logprob: float, num_tokens: int, length_penalty: float) -> float:
    """The score by which ended traces are ranked."""
    return logprob / math.pow(max(num_tokens, 1), length_penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamHole:
    """A hole of beams, from the first token of its output.

    `is_last`: the program ends with it, whatever its text is.
    """

    prompt: Prompt
    max_tokens: int | None = None
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = True
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
