"""The values of a beam search: the group, what a step has to compute, its results, the outcome.

    BeamGroup -> ProbeTokens, CheckHole -> NextTokens, EndedHole, DeadEnd -> SearchOutcome

A beam is a trace of a program in the middle of a hole. Only the client knows what follows the
hole, unless nothing does (`is_last`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, TypeAlias

from router.request.errors import RouterError
from router.request.request import GenerateRequest

EarlyStopping: TypeAlias = bool | Literal["never"]


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """A hole of beams; equal to itself alone. `request` asks for its output from the first token.

    `is_last`: the trace ends with this hole.
    """

    request: GenerateRequest
    is_last: bool = False

    @property
    def max_len(self) -> int:
        """The most tokens of its output."""
        return self.request.stop.max_new_tokens

    @property
    def has_dead_ends(self) -> bool:
        """Whether masks may allow tokens behind which the text cannot be completed in time.

        The check of a constraint covers stop strings, and bytes that no token spells, but not stop
        tokens.
        """
        constraint, stop = self.request.constraint, self.request.stop
        return constraint is not None and (constraint.has_dead_ends or bool(stop.stop_token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A trace at the group's hole number `hole`, with its tokens there.

    `logprob` and `num_tokens` are those of the whole trace with its end tokens, `output_logprob`
    is that of the output alone.
    """

    hole: int
    output_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    num_tokens: int = 0
    output_logprob: float = 0.0

    def grown(self, token_id: int, logprob: float, *, is_end: bool = False) -> "Beam":
        """The beam with one more token. An end token counts, but is no part of the output."""
        return replace(
            self,
            output_ids=self.output_ids if is_end else (*self.output_ids, token_id),
            logprob=self.logprob + logprob,
            num_tokens=self.num_tokens + 1,
            output_logprob=self.output_logprob + logprob,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamScoring:
    """The scores of ended traces, and when no live trace can be better than these.

    A score is log-probability / (tokens ** length_penalty). See the client's `beam`.
    """

    length_penalty: float = 0.0
    early_stopping: EarlyStopping = False
    max_len: int | None = None

    def score(self, logprob: float, num_tokens: int) -> float:
        """The score of an ended trace."""
        return logprob / math.pow(max(num_tokens, 1), self.length_penalty)

    def possible(self, beam: Beam) -> float:
        """The best score that a live trace may end with."""
        if self.early_stopping != "never" or self.length_penalty <= 0:
            return self.score(beam.logprob, beam.num_tokens)
        if self.max_len is None:
            return math.inf
        return self.score(beam.logprob, self.max_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamGroup:
    """The live beams of one search, of which `width` are kept after each step.

    `ended`: the scores of the best traces that ended before. `num_candidates`: the most candidates
    of a step that only the client can decide; None: as many as a step considers.
    """

    width: int
    holes: tuple[Hole, ...]
    beams: tuple[Beam, ...]
    end_token_ids: frozenset[int]
    scoring: BeamScoring = BeamScoring()
    ended: tuple[float, ...] = ()
    num_candidates: int | None = None

    @property
    def num_considered(self) -> int:
        """Alternatives that a step considers: `width` live ones, and `width` for each end token."""
        return (1 + max(1, len(self.end_token_ids))) * self.width


@dataclass(frozen=True, slots=True)
class ProbeTokens:
    """Asks for a beam's next tokens."""

    beam: Beam


@dataclass(frozen=True, slots=True)
class CheckHole:
    """Asks whether a hole that its last token ended satisfies its constraint."""

    beam: Beam


Ask: TypeAlias = ProbeTokens | CheckHole


@dataclass(frozen=True, slots=True)
class NextTokens:
    """Next tokens and their log-probabilities, the most probable first.

    `end_ids` are those that end the hole and are no part of it.
    """

    tokens: tuple[tuple[int, float], ...]
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class EndedHole:
    """A hole that has ended, and whether its constraint is satisfied."""

    text: str
    is_satisfied: bool = True


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """No token may follow: the beam is dropped, and the search goes on without it."""

    error: RouterError


AskResult: TypeAlias = NextTokens | EndedHole | DeadEnd


@dataclass(frozen=True, slots=True)
class Place:
    """A beam after a step. `closed`: its hole has ended; None: it goes on."""

    beam: Beam
    closed: EndedHole | None = None


class SearchEnd(Enum):
    """Why the search of one group ended."""

    # No live beam can be among the best.
    COMPLETE = "complete"
    # Beams are at the end of holes that the client's program follows.
    HOLE = "hole"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """The state of a group when its search ends, or when a report is due.

    `beams` are live. With `candidates` they are those before the step that the client decides: the
    candidates are its possible results, the most probable first; the client keeps `width` live
    ones of at most `num_considered` that are possible. `has_more`: others follow them. `ended` are
    traces that ended in this search, in the order of their ends, with their scores. `dropped` are
    dead ends, with their errors, and beams that violate a constraint.
    """

    reason: SearchEnd
    beams: Sequence[Place] = ()
    candidates: Sequence[Place] | None = None
    has_more: bool = False
    ended: Sequence[tuple[Place, float]] = ()
    dropped: Sequence[tuple[Place, RouterError | None]] = ()
