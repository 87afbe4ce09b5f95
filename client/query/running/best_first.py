"""best_k: the most probable traces of a program, found best-first.

    queue:  | -0.7 branch | -1.2 trace at its end | -1.9 branch | -2.3 the rest of a branch | ...
    the first is taken:  a branch is asked for its next tokens, each a branch of its own
                         the rest of a branch is asked for more of them
                         a trace at its end is a result

A trace's log-probability only falls as it grows. So nothing in the queue can become better than a
trace that ended and is first in it: the results come in their order, and they are the best of all.
That holds within the budget; where it is spent before, the rest of the results is what had ended,
and then the most probable branches, each completed by the most probable tokens.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from client.errors import InvalidRequest
from client.query.errors import QueryError
from client.query.running.branches import (
    DEAD,
    MAX_WIDTH,
    Alternative,
    Branch,
    Finished,
    Landed,
    alternatives,
    behind,
    closed,
    landed,
    probed,
)
from client.query.running.decoding import Asker, Ended, HoleAnswer, Start
from client.query.running.together import together
from client.query.running.walking import exhausted
from client.words import Answer

# Branches that are asked at once, for a server that computes them as fast as one.
_LANES = 8
_WHOLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Rest:
    """The alternatives of a branch's next token beyond the first `num_known`."""

    branch: Branch
    num_known: int
    logprob: float


Node: TypeAlias = Branch | Rest | Alternative | Finished


@dataclass(frozen=True, slots=True)
class BestK:
    """The `k` most probable traces, the best first, in at most `budget` requests for a token.

    `width`: so many alternatives are asked for at first.
    """

    k: int
    budget: int = 512
    width: int = 16

    async def decode(self, start: Start, asker: Asker) -> Sequence[Ended]:
        """Fewer than k where the program has no more traces. Raises as argmax if it has none."""
        search = _Search(self, asker)
        await search.begin(start)
        return await search.results()


class _Search:
    """Owner of one search's queue."""

    def __init__(self, best: BestK, asker: Asker) -> None:
        self._best = best
        self._asker = asker
        self._queue: list[tuple[float, int, Node]] = []
        self._order = count()
        self._num_left = best.budget
        self._found: list[Finished] = []
        self._failure: QueryError | None = None

    async def begin(self, start: Start) -> None:
        try:
            self._push(await landed(await start(0), self._asker))
        except DEAD as error:
            self._failure = error

    async def results(self) -> Sequence[Ended]:
        while self._queue and len(self._found) < self._best.k and self._num_left > 0:
            asked = await self._first_to_ask()
            for nodes in await together(self._asked(node) for node in asked):
                for node in nodes:
                    self._push(node)
        if len(self._found) < self._best.k:
            await self._complete()
        if not self._found and self._failure is not None:
            raise exhausted(self._failure)
        return [found.trace for found in self._found]

    def _push(self, node: Node) -> None:
        heapq.heappush(self._queue, (-node.logprob, next(self._order), node))

    async def _first_to_ask(self) -> list[Branch | Rest]:
        """The first branches of the queue; traces at their ends before them are results."""
        asked: list[Branch | Rest] = []
        most = min(_LANES, self._num_left)
        while self._queue and len(asked) < most and len(self._found) < self._best.k:
            node = self._queue[0][-1]
            if isinstance(node, Finished) and asked:
                # What is asked may still turn out better.
                break
            heapq.heappop(self._queue)
            if isinstance(node, Finished):
                self._found.append(node)
            elif isinstance(node, Alternative):
                await self._follow(node)
            else:
                asked.append(node)
        return asked

    async def _follow(self, node: Alternative) -> None:
        place = await self._behind(node)
        if place is not None:
            self._push(place)

    async def _asked(self, node: Branch | Rest) -> Sequence[Node]:
        """What a branch, or the rest of one, leads to."""
        self._num_left -= 1
        branch, num_known, width = node, 0, min(self._best.width, MAX_WIDTH)
        if isinstance(node, Rest):
            branch, num_known = node.branch, node.num_known
            width = min(4 * num_known, MAX_WIDTH)
        assert isinstance(branch, Branch)
        try:
            probe = await probed(branch, self._asker, width)
        except DEAD as error:
            self._failure = error
            return ()
        return [probe] if isinstance(probe, Finished) else [*_nodes(*probe, num_known, width)]

    async def _behind(self, alternative: Alternative) -> Landed | None:
        try:
            return await behind(alternative, self._asker)
        except DEAD as error:
            self._failure = error
            return None

    async def _complete(self) -> None:
        """What is missing when the budget is spent."""
        rest = [node for _, _, node in sorted(self._queue, key=lambda entry: entry[:2])]
        ended = [node for node in rest if isinstance(node, Finished)]
        self._found += ended[: self._best.k - len(self._found)]
        late: list[Finished] = []
        for node in rest:
            if len(self._found) + len(late) == self._best.k:
                break
            if isinstance(node, Branch | Alternative):
                late += await self._completed(node)
        self._found += sorted(late, key=lambda found: -found.logprob)

    async def _completed(self, node: Branch | Alternative) -> Sequence[Finished]:
        """The trace with the most probable tokens from here on; none if it fails."""
        try:
            place: Landed = node if isinstance(node, Branch) else await behind(node, self._asker)
            while isinstance(place, Branch):
                place = await self._filled(place)
        except DEAD as error:
            self._failure = error
            return ()
        return (place,)

    async def _filled(self, branch: Branch) -> Landed:
        """The branch's hole with the most probable tokens."""
        call = replace(branch.call(0), num_steps=_WHOLE)
        try:
            answer = await self._asker.generate(branch.at, call)
        except InvalidRequest as error:
            if error.field != "output" or not branch.output:
                raise
            return await closed(branch, self._asker)
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


def _nodes(branch: Branch, answer: Answer, num_known: int, width: int) -> Iterator[Node]:
    """The alternatives beyond the first `num_known`, and the rest of them if there is one."""
    told = list(alternatives(branch, answer))
    for alternative in told[num_known:]:
        yield alternative if alternative.ends_hole else alternative.branch_with_it()
    if len(told) < width or width >= MAX_WIDTH:
        return
    left = 1.0 - sum(math.exp(alternative.token_logprob) for alternative in told)
    # Each of the others is at most as probable as the last one told, and as all of them together.
    most = min(told[-1].token_logprob, math.log(max(left, 1e-6)))
    yield Rest(branch, len(told), branch.logprob + most)
