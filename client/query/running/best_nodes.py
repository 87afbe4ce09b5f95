"""What a best-first search has come to, by log-probability.

| -0.7 open | -1.2 hole that has ended | -1.9 open | -2.3 trace at its end | ...
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from client.beams import BeamState
from client.query.running.branches import Branch, Finished, Landed, branch_of
from client.query.running.concurrently import gather_or_cancel
from client.query.running.decoding import AtHole

# Programs run on behind the ends of holes among so many open branches: where these are so near, one
# of the programs is likely to be the next, and then a request is spared.
_NUM_NEAR = 8


@dataclass(frozen=True, slots=True)
class Open:
    """A branch that may go on, as the server told of it; or has `ended_by` something."""

    branch: Branch
    ended_by: str | None = None
    known: tuple[int, ...] = ()
    most: float | None = None

    @property
    def logprob(self) -> float:
        """Of what is best of it, at most."""
        return self.branch.logprob if self.most is None else self.most

    def state(self, hole: int) -> BeamState:
        """As the server told of it."""
        state = self.branch.state(hole)
        return replace(state, ended_by=self.ended_by, known=self.known, most=self.most)


@dataclass(frozen=True, slots=True)
class Filled:
    """A branch whose hole has this text; its program is still to be told."""

    branch: Branch
    text: str

    @property
    def logprob(self) -> float:
        return self.branch.logprob


Node: TypeAlias = Open | Filled | Finished


def node_of(state: BeamState, ats: Sequence[AtHole]) -> Open | Filled:
    """What an answer tells of a branch, at the holes that were asked about."""
    branch = branch_of(state, ats)
    if state.is_ended:
        return Filled(branch, state.text)
    return Open(branch, state.ended_by, state.known, state.most)


class Nodes:
    """Owner of a search's nodes, and of the runs that wait at their holes."""

    def __init__(self) -> None:
        # With their numbers: of equals the first ones stay in front.
        self._queue: list[tuple[float, int, Node]] = []
        self._order = count()
        # Holes at which a run may wait.
        self._holes: list[AtHole] = []

    def __bool__(self) -> bool:
        return bool(self._queue)

    def push(self, place: Landed | Node) -> None:
        """A place that was just come to, or a node of one."""
        if isinstance(place, Branch):
            self._holes.append(place.at)
            place = Open(place)
        heapq.heappush(self._queue, (-place.logprob, next(self._order), place))

    def in_order(self) -> Iterator[Node]:
        """Takes the nodes away, the best first."""
        while self._queue:
            yield heapq.heappop(self._queue)[-1]

    def take_results(self, num_most: int) -> list[Finished]:
        """Traces at their ends that nothing is in front of."""
        found: list[Finished] = []
        while self._queue and len(found) < num_most:
            node = self._queue[0][-1]
            if not isinstance(node, Finished):
                break
            found.append(node)
            heapq.heappop(self._queue)
        return found

    def take_near(self, num_missing: int) -> list[Filled]:
        """Holes that have ended, near the first open branches; none behind `num_missing` others."""
        near: list[Filled] = []
        passed: list[tuple[float, int, Node]] = []
        num_open = num_ended = 0
        while self._queue and num_open < _NUM_NEAR and num_ended + len(near) < num_missing:
            entry = heapq.heappop(self._queue)
            node = entry[-1]
            if isinstance(node, Filled):
                near.append(node)
                continue
            passed.append(entry)
            num_ended += isinstance(node, Finished)
            num_open += isinstance(node, Open)
        for entry in passed:
            heapq.heappush(self._queue, entry)
        return near

    async def close_left(self) -> None:
        """Ends the runs at holes from which nothing goes on any more."""
        nodes = (node for _, _, node in self._queue)
        kept = {id(node.branch.at) for node in nodes if not isinstance(node, Finished)}
        left = [at for at in self._holes if id(at) not in kept]
        self._holes = [at for at in self._holes if id(at) in kept]
        await gather_or_cancel(at.close() for at in left)
