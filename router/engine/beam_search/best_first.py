"""The most probable traces of a group, found best-first.

    queue:  | -0.7 open | -1.2 ended | -1.9 open | -2.3 the rest of an open one | -2.4 open | ...

    the first ones that may matter -> a Probe each    their next tokens, each a node of its own
    a trace at its end is the first -> it is a result
    another hole's end is the first -> the client says what is behind it: the search is over

A trace's log-probability only falls as it grows. So nothing in the queue can become better than a
trace that ended and is first in it: the results come in their order, and they are the best of all.
That several nodes are asked at once changes nothing of that: those behind the first are asked
early, and perhaps in vain.

It is the search of `client/query/running/best_first.py`, as far as that needs no program. It knows
no batcher and no clock.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias, TypeGuard

from router.engine.beam_search.best_words import BestGroup, BestOutcome, Ending, Node, Open
from router.engine.beam_search.steps import (
    Alternative,
    Asking,
    Endings,
    Texts,
    alternatives,
    is_kept,
)
from router.engine.beam_search.types import Beam, Dead, Hole, Place, Probe, Probed, Reason
from router.request.errors import RouterError

# Nodes that a search keeps; with more it is over, and the client sends the best of them anew.
MAX_OPEN = 8192
# What shards tell of alternatives to one token; those beyond are not looked at.
_MAX_TOPS = 256
# Nobody asks for the tokens of more, once the budget is spent.
_MIN_LEFT = 64
# An `Alternative` is a node that is not made yet, a float a trace that ended elsewhere.
_Queued: TypeAlias = Node | Alternative | Place | float


@dataclass(slots=True)
class _Window:
    """The first nodes of a queue that may matter. `passed` are looked past, and go back.

    `stopped`: why nothing behind them may be asked.
    """

    opens: list[Open] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    passed: list[_Queued] = field(default_factory=list)
    stopped: Reason | None = None

    @property
    def num_asked(self) -> int:
        return len(self.opens) + len(self.endings)

    @property
    def is_empty(self) -> bool:
        return not (self.opens or self.endings or self.passed)


class BestFirstSearch:
    """Owner of a search's queue."""

    def __init__(self, group: BestGroup, texts: Texts, max_open: int = MAX_OPEN) -> None:
        self._group = group
        self._texts = texts
        self._max_open = max_open
        self._endings = Endings(group.holes, texts)
        self._queue: list[tuple[float, int, _Queued]] = []
        self._order = count()
        self._found: list[Place] = []
        self._num_found = 0
        self._num_left = group.budget
        self._under_way: Sequence[Node] = ()
        self._dropped: list[tuple[Place, RouterError | None]] = []
        for node in group.nodes:
            self._push(node)
        for logprob in group.ended:
            self._push(logprob)

    def run(self) -> Asking[BestOutcome]:
        """The whole search."""
        while True:
            window = self._window()
            if window.endings:
                self._put_back([*window.opens, *window.passed])
                yield from self._land(window.endings)
                continue
            self._put_back(window.passed)
            if not window.opens:
                spent = Reason.BUDGET if window.passed else None
                return self.outcome(spent or window.stopped or Reason.COMPLETE)
            yield from self._probe(window.opens)

    def outcome(self, reason: Reason) -> BestOutcome:
        """What has come of the group by now."""
        queued = [each for _, _, each in sorted(self._queue, key=lambda entry: entry[:2])]
        ended = [*self._found, *(each for each in queued if self._is_result(each))]
        left = [each for each in queued if not self._is_result(each)]
        if reason is Reason.COMPLETE:
            left.clear()
        elif reason is Reason.BUDGET:
            del left[max(_MIN_LEFT, 4 * self._group.k) :]
        return BestOutcome(
            reason=reason,
            left=[*self._under_way, *(_made(each) for each in left if not isinstance(each, float))],
            ended=[place for place in ended if isinstance(place, Place)][: self._group.k],
            dropped=self._dropped,
        )

    def report(self) -> BestOutcome:
        """What is being asked, and what was found."""
        return BestOutcome(reason=Reason.COMPLETE, left=self._under_way, ended=self._found)

    def _hole(self, beam: Beam) -> Hole:
        return self._group.holes[beam.hole]

    # The queue

    def _push(self, each: _Queued) -> None:
        heapq.heappush(self._queue, (-_rank(each), next(self._order), each))

    def _put_back(self, taken: Sequence[_Queued]) -> None:
        for each in taken:
            self._push(each)

    def _is_result(self, each: _Queued) -> TypeGuard[Place | float]:
        """Whether it is a trace at its end."""
        if isinstance(each, Place):
            return self._hole(each.beam).is_last
        return isinstance(each, float)

    def _window(self) -> _Window:
        """Takes the first nodes off the queue; results that are the first of all are found."""
        window = _Window()
        if len(self._queue) > self._max_open:
            window.stopped = Reason.FULL
        while window.stopped is None and window.num_asked < self._group.width:
            window.stopped = self._next(window)
        return window

    def _next(self, window: _Window) -> Reason | None:
        """The queue's first node into the window; or why it stays."""
        if not self._queue:
            return Reason.HOLE if self._group.bound > -math.inf else Reason.COMPLETE
        rank, _, each = self._queue[0]
        if -rank < self._group.bound:
            return Reason.HOLE
        if self._is_result(each):
            return self._pass_result(window, each)
        if isinstance(each, Place | float):
            # Its hole has ended, and it is no result.
            return Reason.HOLE
        node = self._node(each)
        if isinstance(node, Ending):
            window.endings.append(node)
        elif self._num_left > len(window.opens):
            window.opens.append(node)
        elif not self._num_left and self._wants_more(window):
            # Nobody asks for its tokens any more, but of what is behind it some may have ended.
            window.passed.append(node)
        else:
            return Reason.BUDGET
        heapq.heappop(self._queue)
        return None

    def _pass_result(self, window: _Window, each: Place | float) -> Reason | None:
        if window.is_empty:
            self._num_found += 1
            if isinstance(each, Place):
                self._found.append(each)
        elif self._wants_more(window):
            # What is asked may still turn out better.
            window.passed.append(each)
        else:
            return Reason.COMPLETE
        heapq.heappop(self._queue)
        return Reason.COMPLETE if self._num_found == self._group.k else None

    def _wants_more(self, window: _Window) -> bool:
        """Whether what is behind the window may be among the results, as far as one can see."""
        num_passed = sum(not (isinstance(each, Open) and each.known) for each in window.passed)
        return self._num_found + num_passed + 1 < self._group.k

    def _node(self, each: Node | Alternative) -> Node:
        node = _made(each)
        assert not isinstance(node, Place), "a place is no node that is to be asked"
        if isinstance(node, Open) and not node.known and self._is_ended(node.beam):
            return Ending(node.beam)
        return node

    def _is_ended(self, beam: Beam) -> bool:
        return self._texts.is_ended(self._hole(beam), beam.output_ids)

    # What nodes lead to

    def _probe(self, opens: Sequence[Open]) -> Asking[None]:
        self._num_left -= len(opens)
        self._under_way = opens
        asks = [Probe(node.beam, self._num_tops(node)) for node in opens]
        told = yield asks
        self._under_way = ()
        for node, ask, answer in zip(opens, asks, told, strict=True):
            if isinstance(answer, Dead):
                self._dropped.append((Place(node.beam), answer.error))
            elif isinstance(answer, Probed):
                for each in self._behind(node, answer, ask.num_tops or 0):
                    self._push(each)

    def _num_tops(self, node: Open) -> int:
        return min(4 * len(node.known) or self._group.num_tops, _MAX_TOPS)

    def _behind(self, node: Open, told: Probed, num_tops: int) -> Iterator[_Queued]:
        """The tokens beyond those that are known, and the rest of them if there is one.

        Known by their ids: equally probable ones may come in another order when they are asked
        for again, of another shard even with other log-probabilities.
        """
        beam, known = node.beam, frozenset(node.known)
        every = alternatives(beam, self._hole(beam), told)
        new = [each for each in every if each.token_id not in known]
        yield from new
        if len(told.tokens) < num_tops or num_tops >= _MAX_TOPS:
            return
        left = 1.0 - sum(math.exp(logprob) for _, logprob in told.tokens)
        # Each other one is at most as probable as the last one told, and as all of them together.
        most = min(told.tokens[-1][1], math.log(max(left, 1e-6)))
        yield Open(beam, (*node.known, *(each.token_id for each in new)), beam.logprob + most)

    def _land(self, endings: Sequence[Ending]) -> Asking[None]:
        """Whether the texts are as they must be: then they are places, else dropped."""
        self._under_way = endings
        by_token = [ending.beam for ending in endings if ending.by_token]
        by_length = [ending.beam for ending in endings if not ending.by_token]
        landed: list[tuple[Place, Dead | None]] = []
        if by_token:
            landed += yield from self._endings.by_token(by_token)
        if by_length:
            landed += yield from self._endings.by_length(by_length)
        self._under_way = ()
        for place, dead in landed:
            if dead is None and is_kept(place):
                self._push(place)
            else:
                self._dropped.append((place, None if dead is None else dead.error))


def _made(each: Node | Alternative | Place) -> Node | Place:
    if not isinstance(each, Alternative):
        return each
    return Ending(each.beam, each.is_end) if each.ends_hole else Open(each.beam)


def _rank(each: _Queued) -> float:
    """The log-probability of what is best of it, at most."""
    if isinstance(each, float):
        return each
    if isinstance(each, Alternative):
        return each.rank_by
    return each.beam.logprob if isinstance(each, Place) else each.logprob
