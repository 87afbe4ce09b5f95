"""What a group of beams is, what a search asks to be computed, and what came of it. Frozen words.

    BeamGroup -> ProbeTokens, CheckHole -> NextTokens, EndedHole, DeadEnd -> SearchOutcome

A beam is a trace of a program in the middle of a hole. What is behind the hole only the client
knows, unless nothing is (`is_last`).
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
    """Where beams stand; equal to itself alone. `request` asks for its output from the beginning.

    `is_last`: the trace ends with this hole, whatever its text is.
    """

    request: GenerateRequest
    is_last: bool = False

    @property
    def max_len(self) -> int:
        """Tokens of output that end it at the latest."""
        return self.request.stop.max_new_tokens

    @property
    def has_dead_ends(self) -> bool:
        """Whether its masks may leave tokens behind which the text cannot be completed in time.

        A check of the constraint knew of stop strings, and of bytes that no token spells; of stop
        tokens it did not.
        """
        constraint, stop = self.request.constraint, self.request.stop
        return constraint is not None and (constraint.has_dead_ends or bool(stop.stop_token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A trace at `hole`, the number of one of the group's, and its tokens of it.

    `logprob` and `num_tokens` are of the whole trace, end tokens among them; `output_logprob` of
    the output alone.
    """

    hole: int
    output_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    num_tokens: int = 0
    output_logprob: float = 0.0

    def grown(self, token_id: int, logprob: float, *, is_end: bool = False) -> "Beam":
        """With one more token. An end token counts, but is no part of the output."""
        return replace(
            self,
            output_ids=self.output_ids if is_end else (*self.output_ids, token_id),
            logprob=self.logprob + logprob,
            num_tokens=self.num_tokens + 1,
            output_logprob=self.output_logprob + logprob,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamScoring:
    """What ended traces are compared by, and when no live one can take the place of one of them.

    A score is log-probability / (tokens ** length_penalty). See the client's `beam`.
    """

    length_penalty: float = 0.0
    early_stopping: EarlyStopping = False
    max_len: int | None = None

    def score(self, logprob: float, num_tokens: int) -> float:
        """Of an ended trace."""
        return logprob / math.pow(max(num_tokens, 1), self.length_penalty)

    def possible(self, beam: Beam) -> float:
        """The best score that a live trace may come to end with."""
        if self.early_stopping != "never" or self.length_penalty <= 0:
            return self.score(beam.logprob, beam.num_tokens)
        if self.max_len is None:
            return math.inf
        return self.score(beam.logprob, self.max_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamGroup:
    """The live beams of one search. `width` are kept; `ended` are the scores of the best traces
    that ended before.

    `num_candidates`: the most candidates that are returned of a step that only the client can
    decide; None: as many as a step looks at, if none of them turns out to be impossible.
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
        """What a step looks at: n that go on, and as many that end in each way."""
        return (1 + max(1, len(self.end_token_ids))) * self.width


@dataclass(frozen=True, slots=True)
class ProbeTokens:
    """Asks for a beam's next tokens."""

    beam: Beam


@dataclass(frozen=True, slots=True)
class CheckHole:
    """Asks whether a hole's constraint is kept that its last token ended."""

    beam: Beam


@dataclass(frozen=True, slots=True)
class JudgeText:
    """Asks whether the whole text of a hole that an end token ended is what its constraint wants,
    where masks enforce a part of that only.
    """

    beam: Beam
    text: str


Ask: TypeAlias = ProbeTokens | CheckHole | JudgeText


@dataclass(frozen=True, slots=True)
class NextTokens:
    """Next tokens and their log-probabilities, the most probable first.

    `end_ids` are those that end the hole and are no part of it.
    """

    tokens: tuple[tuple[int, float], ...]
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class EndedHole:
    """A hole that has ended. `is_satisfied` False: its text does not keep its constraint, and
    `violation` may say why.
    """

    text: str
    is_satisfied: bool = True
    violation: str | None = None


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """Nothing may follow; the beam is dropped, and the search goes on without it."""

    error: RouterError


AskResult: TypeAlias = NextTokens | EndedHole | DeadEnd


@dataclass(frozen=True, slots=True)
class Place:
    """Where a beam has come to. `closed`: its hole has ended so; None: it goes on."""

    beam: Beam
    closed: EndedHole | None = None


class SearchEnd(Enum):
    """Why a search of one group is over."""

    # No live beam can be among the best any more.
    COMPLETE = "complete"
    # Beams are at the end of holes, and what is behind them is the client's to say.
    HOLE = "hole"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """What came of a group.

    `beams` are live. With `candidates` they are those before the step that is to be decided: the
    candidates are its possible results, the most probable first; the client keeps `width` that are
    live, of at most `num_considered` that are possible. `has_more`: there are others behind them.
    `ended` are traces that ended here, in the order in which they were found, each with its score.
    `dropped` are impossible, by an error or since a constraint is not kept.
    """

    reason: SearchEnd
    beams: Sequence[Place] = ()
    candidates: Sequence[Place] | None = None
    has_more: bool = False
    ended: Sequence[tuple[Place, float]] = ()
    dropped: Sequence[tuple[Place, RouterError | None]] = ()
