"""best_k: the most probable traces of a program, found best-first.

    nodes:  | -0.7 open | -1.2 hole that has ended | -1.9 open | -2.3 trace at its end | ...
    the first is   open             the server is asked, for it and those behind it at once
                   a hole's text    the program runs on: to its next hole, or its end
                   a trace's end    it is a result

The server searches among all open ones until a hole has ended behind which the program goes on, or
until it knows the results. So a program of one hole is one request, as far as the budget goes.

A trace's log-probability only falls as it grows. So no node can become better than a trace that
ended and is first: the results come in their order, and they are the best of all. That holds within
the budget; where it is spent before, the rest of the results is what had ended, and then the most
probable branches, each completed by the most probable tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from client.query.running.backtracking import exhausted
from client.query.running.best_nodes import Filled, Nodes, Open
from client.query.running.best_requests import Requests
from client.query.running.branches import DEAD, Finished, Landed, behind, landed
from client.query.running.completing import Completion
from client.query.running.concurrently import gather_or_cancel
from client.query.running.decoding import Asker, Ended, Start

# Open ones that one request tells of; the server comes back when it needs those behind them.
_MAX_TOLD = 512


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
        found = await self._search(asker, trusts_last=True).run(start)
        if found is None:
            # A hole was not the last one after all: the server is to stop at each.
            found = await self._search(asker, trusts_last=False).run(start)
        assert found is not None, "traces that ended by their programs have ended"
        return found

    def _search(self, asker: Asker, *, trusts_last: bool) -> "_Search":
        requests = Requests(asker, budget=self.budget, width=self.width, trusts_last=trusts_last)
        return _Search(self.k, asker, requests)


class _Search:
    """One search of a program. Owner of its results."""

    def __init__(self, k: int, asker: Asker, requests: Requests) -> None:
        self._k = k
        self._asker = asker
        self._requests = requests
        self._nodes = Nodes()
        self._found: list[Finished] = []
        self._is_misled = False

    async def run(self, start: Start) -> Sequence[Ended] | None:
        """The results. None: a program did not end with the hole that was to be its last."""
        try:
            self._nodes.push(await landed(await start(0), self._asker))
        except DEAD as error:
            self._requests.failure = error
        while self._nodes and self._num_missing > 0 and not self._is_misled:
            self._found += self._nodes.take_results(self._num_missing)
            near = self._nodes.take_near(self._num_missing)
            if near:
                await self._run_on(near)
            elif self._requests.num_left <= 0:
                await self._complete()
                break
            elif self._num_missing > 0 and self._nodes:
                await self._ask()
                await self._nodes.close_left()
        if self._is_misled:
            return None
        if not self._found and self._requests.failure is not None:
            raise exhausted(self._requests.failure)
        return [found.trace for found in self._found]

    @property
    def _num_missing(self) -> int:
        return self._k - len(self._found)

    # The program's part

    async def _run_on(self, filled: Sequence[Filled]) -> None:
        for place in await gather_or_cancel(self._behind(each) for each in filled):
            if place is not None:
                self._nodes.push(place)

    async def _behind(self, filled: Filled) -> Landed | None:
        place = None
        try:
            place = await behind(filled.branch, filled.text, self._asker)
        except DEAD as error:
            self._requests.failure = error
        if self._requests.is_last(filled.branch.at) and not isinstance(place, Finished):
            # The server has counted it among the results.
            self._is_misled = True
        return place

    # The server's part

    async def _ask(self) -> None:
        """One request for the best open branches, which are in front of all else."""
        opens: list[Open] = []
        ended: list[Finished] = []
        bound = None
        for node in self._nodes.in_order():
            if isinstance(node, Filled) or len(opens) == _MAX_TOLD:
                self._nodes.push(node)
                bound = node.logprob
                break
            if isinstance(node, Open):
                opens.append(node)
                continue
            ended.append(node)
            if len(ended) == self._num_missing:
                break
        for node in ended:
            self._nodes.push(node)
        for told in await self._requests.search(opens, self._num_missing, ended, bound):
            self._nodes.push(told)

    # When the budget is spent

    async def _complete(self) -> None:
        """What is missing then."""
        await self._run_on_behind_last_holes()
        rest = list(self._nodes.in_order())
        ended = [node for node in rest if isinstance(node, Finished)]
        self._found += ended[: self._num_missing]
        completion = Completion(self._asker, self._requests)
        late: list[Finished] = []
        for node in rest:
            if len(late) == self._num_missing:
                break
            if isinstance(node, Finished) or (isinstance(node, Open) and node.known):
                continue
            if (completed := await completion.completed(node)) is not None:
                late.append(completed)
        self._found += sorted(late, key=lambda found: -found.logprob)

    async def _run_on_behind_last_holes(self) -> None:
        """These traces have ended; their programs do not know yet."""
        lasts: list[Filled] = []
        for node in list(self._nodes.in_order()):
            if isinstance(node, Filled) and self._requests.is_last(node.branch.at):
                lasts.append(node)
            else:
                self._nodes.push(node)
        await self._run_on(lasts)
