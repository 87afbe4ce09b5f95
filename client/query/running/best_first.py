"""best_k: the most probable traces of a program, found best-first.

    queue:  | -0.7 open | -1.2 hole that has ended | -1.9 open | -2.3 trace at its end | ...
    the first is   open             the server is asked, for it and those behind it at once
                   a hole's text    the program runs on: to its next hole, or its end
                   a trace's end    it is a result

The server searches among all open ones until a hole has ended behind which the program goes on, or
until it knows the results. So a program of one hole is one request, as far as the budget goes.

A trace's log-probability only falls as it grows. So nothing in the queue can become better than a
trace that ended and is first in it: the results come in their order, and they are the best of all.
That holds within the budget; where it is spent before, the rest of the results is what had ended,
and then the most probable branches, each completed by the most probable tokens.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from client.beams import BeamState, BestCall
from client.errors import InvalidRequest
from client.query.errors import QueryError
from client.query.running.branches import (
    DEAD,
    Branch,
    Finished,
    Landed,
    beam_hole,
    behind,
    branch_of,
    landed,
    numbered,
)
from client.query.running.decoding import Asker, AtHole, Ended, HoleAnswer, Start
from client.query.running.together import together
from client.query.running.walking import exhausted

# What servers tell of alternatives to one token; those beyond are not looked at.
_MAX_WIDTH = 256
# Programs run on behind the ends of holes among so many open branches: where these are so near, one
# of the programs is likely to be the next, and then a request is spared.
_NUM_NEAR = 8
# Open ones that one request tells of; the server comes back when it needs those behind them.
_MAX_TOLD = 512
_WHOLE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Open:
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
class _Filled:
    """A branch whose hole has this text; its program is still to be told."""

    branch: Branch
    text: str

    @property
    def logprob(self) -> float:
        return self.branch.logprob


_Node: TypeAlias = _Open | _Filled | Finished


@dataclass(frozen=True, slots=True)
class BestK:
    """The `k` most probable traces, the best first, asking for a next token `budget` times at most.

    `width`: so many alternatives are asked for at first.
    """

    k: int
    budget: int = 512
    width: int = 16

    async def decode(self, start: Start, asker: Asker) -> Sequence[Ended]:
        """Fewer than k where the program has no more traces. Raises as argmax if it has none."""
        found = await _Search(self, asker).run(start)
        if found is None:
            # A hole was not the last one after all: the server is to stop at each.
            found = await _Search(self, asker, trusts_last=False).run(start)
        assert found is not None, "traces that ended by their programs have ended"
        return found


class _Search:
    """Owner of one search's queue, and of the runs that wait at its holes."""

    def __init__(self, best: BestK, asker: Asker, *, trusts_last: bool = True) -> None:
        self._best = best
        self._trusts_last = trusts_last
        self._is_misled = False
        self._asker = asker
        self._queue: list[tuple[float, int, _Node]] = []
        self._order = count()
        # Holes at which a run may wait.
        self._open: list[AtHole] = []
        self._num_left = best.budget
        self._found: list[Finished] = []
        self._failure: QueryError | None = None

    async def run(self, start: Start) -> Sequence[Ended] | None:
        """The results. None: a program did not end with the hole that was to be its last."""
        try:
            self._push(await landed(await start(0), self._asker))
        except DEAD as error:
            self._failure = error
        while self._queue and self._num_missing > 0 and not self._is_misled:
            near = self._take_near()
            if near:
                await self._run_on(near)
            elif self._num_left <= 0:
                await self._complete()
                break
            elif self._num_missing > 0 and self._queue:
                await self._ask()
                await self._close_left()
        if self._is_misled:
            return None
        if not self._found and self._failure is not None:
            raise exhausted(self._failure)
        return [found.trace for found in self._found]

    @property
    def _num_missing(self) -> int:
        return self._best.k - len(self._found)

    def _push(self, place: Landed | _Open | _Filled) -> None:
        node: _Node = place if not isinstance(place, Branch) else self._opened(place)
        heapq.heappush(self._queue, (-node.logprob, next(self._order), node))

    def _opened(self, branch: Branch) -> _Open:
        self._open.append(branch.at)
        return _Open(branch)

    async def _close_left(self) -> None:
        """Ends the runs at holes from which nothing goes on any more."""
        nodes = (node for _, _, node in self._queue)
        kept = {id(node.branch.at) for node in nodes if not isinstance(node, Finished)}
        left = [at for at in self._open if id(at) not in kept]
        self._open = [at for at in self._open if id(at) in kept]
        await together(at.close() for at in left)

    def _in_order(self) -> Iterator[_Node]:
        """Takes the nodes off the queue, the best first."""
        while self._queue:
            yield heapq.heappop(self._queue)[-1]

    # The program's part

    def _take_near(self) -> list[_Filled]:
        """Holes that have ended, near the first open branches; traces before all are results."""
        near: list[_Filled] = []
        # With their numbers: among equals they stay in front of what was not looked at.
        passed: list[tuple[float, int, _Node]] = []
        num_open = num_ended = 0
        while self._queue:
            entry = heapq.heappop(self._queue)
            node = entry[-1]
            if isinstance(node, Finished) and not (near or passed):
                self._found.append(node)
            elif isinstance(node, _Filled):
                near.append(node)
            else:
                passed.append(entry)
                num_ended += isinstance(node, Finished)
                num_open += isinstance(node, _Open)
            if num_open == _NUM_NEAR or num_ended + len(near) >= self._num_missing:
                break
        for entry in passed:
            heapq.heappush(self._queue, entry)
        return near

    async def _run_on(self, filled: Sequence[_Filled]) -> None:
        for place in await together(self._behind(each) for each in filled):
            if place is not None:
                self._push(place)

    async def _behind(self, filled: _Filled) -> Landed | None:
        place = None
        try:
            place = await behind(filled.branch, filled.text, self._asker)
        except DEAD as error:
            self._failure = error
        if self._is_last(filled.branch.at) and not isinstance(place, Finished):
            # The server has counted it among the results.
            self._is_misled = True
        return place

    def _is_last(self, at: AtHole) -> bool:
        return self._trusts_last and at.is_last

    # The server's part

    async def _ask(self) -> None:
        """One request for the best open branches, which are in front of all else."""
        opens: list[_Open] = []
        ended: list[Finished] = []
        bound = None
        for node in self._in_order():
            if isinstance(node, _Filled) or len(opens) == _MAX_TOLD:
                self._push(node)
                bound = node.logprob
                break
            if isinstance(node, _Open):
                opens.append(node)
                continue
            ended.append(node)
            if len(ended) == self._num_missing:
                break
        for node in ended:
            self._push(node)
        for node in await self._searched(opens, ended, bound):
            self._push(node)

    async def _searched(
        self,
        opens: Sequence[_Open],
        ended: Sequence[Finished] = (),
        bound: float | None = None,
    ) -> Sequence[_Open | _Filled]:
        """What the server makes of them."""
        ats = numbered([each.branch for each in opens])
        numbers = {id(at): number for number, at in enumerate(ats)}
        call = BestCall(
            k=self._num_missing,
            budget=max(self._num_left, 0),
            num_alternatives=min(self._best.width, _MAX_WIDTH),
            holes=tuple(beam_hole(at, is_last=self._is_last(at)) for at in ats),
            beams=tuple(each.state(numbers[id(each.branch.at)]) for each in opens),
            sampling=ats[0].call.sampling,
            ended=tuple(each.logprob for each in ended),
            bound=bound,
        )
        answer, failures = await self._asker.search(ats, call)
        for failure in failures:
            self._failure = failure
        self._num_left -= answer.usage.num_output_tokens
        return [_node(state, ats) for state in (*answer.ended, *answer.beams)]

    # When the budget is spent

    async def _complete(self) -> None:
        """What is missing then."""
        await self._run_on_behind_last_holes()
        rest = list(self._in_order())
        ended = [node for node in rest if isinstance(node, Finished)]
        self._found += ended[: self._num_missing]
        late: list[Finished] = []
        for node in rest:
            if len(late) == self._num_missing:
                break
            if not isinstance(node, Finished) and not (isinstance(node, _Open) and node.known):
                late += await self._completed(node)
        self._found += sorted(late, key=lambda found: -found.logprob)

    async def _run_on_behind_last_holes(self) -> None:
        """These traces have ended; their programs do not know yet."""
        rest = list(self._in_order())
        lasts = [
            node for node in rest if isinstance(node, _Filled) and self._is_last(node.branch.at)
        ]
        for node in rest:
            if node not in lasts:
                self._push(node)
        await self._run_on(lasts)

    async def _completed(self, node: _Open | _Filled) -> Sequence[Finished]:
        """The trace with the most probable tokens from here on; none if it fails."""
        try:
            place = await self._place(node)
            while isinstance(place, Branch):
                place = await self._to_its_end(place)
        except DEAD as error:
            self._failure = error
            return ()
        return () if place is None else (place,)

    async def _place(self, node: _Open | _Filled) -> Landed | None:
        """Where it stands; None: its text is not as it must be."""
        if isinstance(node, _Filled):
            return await behind(node.branch, node.text, self._asker)
        return node.branch if node.ended_by is None else await self._judged(node)

    async def _judged(self, node: _Open) -> Landed | None:
        """Where it comes to, now that its hole has ended."""
        for told in await self._searched([node]):
            if isinstance(told, _Filled):
                return await behind(told.branch, told.text, self._asker)
        return None

    async def _to_its_end(self, branch: Branch) -> Landed | None:
        """The branch's hole with the most probable tokens."""
        sampling = replace(branch.at.call.sampling, temperature=0.0)
        call = replace(branch.at.call, sampling=sampling, output=branch.output, num_steps=_WHOLE)
        try:
            answer = await self._asker.generate(branch.at, call)
        except InvalidRequest as error:
            if error.field != "output" or not branch.output:
                raise
            return await self._judged(_Open(branch, ended_by="length"))
        made = HoleAnswer(
            text=answer.standing.text + answer.text,
            logprob=branch.output_logprob + answer.logprob,
            num_tokens=len(branch.output) + sum(not token.is_end for token in answer.tokens),
        )
        return await landed(
            await branch.at.answered(made),
            self._asker,
            branch.logprob + answer.logprob,
            branch.num_tokens + len(answer.tokens),
        )


def _node(state: BeamState, ats: Sequence[AtHole]) -> _Open | _Filled:
    branch = branch_of(state, ats)
    if state.is_ended:
        return _Filled(branch, state.text)
    return _Open(branch, state.ended_by, state.known, state.most)
