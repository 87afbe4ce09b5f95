"""What a best-first search is asked for, and what came of it. Frozen words.

    BestGroup -> BestOutcome

A node is a part of a trace from which a search may go on. All that comes of it is at most as
probable as it is itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from router.engine.beam_search.types import Beam, Hole, Place, Reason
from router.request.errors import RouterError


@dataclass(frozen=True, slots=True)
class Open:
    """A beam that may go on. `known`: but by none of these tokens, the most probable ones; then
    each trace that it leads to has `most` as its log-probability at most.
    """

    beam: Beam
    known: tuple[int, ...] = ()
    most: float = math.inf

    @property
    def logprob(self) -> float:
        """Of what is best of it, at most."""
        return min(self.beam.logprob, self.most)


@dataclass(frozen=True, slots=True)
class Ending:
    """A beam whose hole has ended, of whose text nobody knows yet whether it is as it must be.

    `by_token`: by an end token, which is no part of the output.
    """

    beam: Beam
    by_token: bool = False

    @property
    def logprob(self) -> float:
        """Of the trace."""
        return self.beam.logprob


Node: TypeAlias = Open | Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class BestGroup:
    """The nodes of one search, for its `k` best traces.

    `width` nodes are asked at once, for `num_tops` next tokens each; `budget` times in all.
    `ended` are the log-probabilities of traces that ended elsewhere, among which the best count.
    `bound`: whoever asks has another node of this log-probability, which is to go on first.
    """

    k: int
    width: int
    num_tops: int
    budget: int
    holes: tuple[Hole, ...]
    nodes: tuple[Node, ...]
    end_token_ids: frozenset[int]
    ended: tuple[float, ...] = ()
    bound: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOutcome:
    """What came of a group, each list with the most probable first.

    `left` may go on: all, where the budget is spent the first ones, and none where the results are
    known. The places among them are at ends of holes behind which the client's program goes on.
    `ended` are traces at their ends. `dropped` are impossible, by an error or since a constraint is
    not kept.
    """

    reason: Reason
    left: Sequence[Node | Place] = ()
    ended: Sequence[Place] = ()
    dropped: Sequence[tuple[Place, RouterError | None]] = ()
