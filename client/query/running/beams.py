"""Scripted beam search: the best traces of a whole program, over its holes and its branches.

    live:  n traces, each in the middle of a hole     one request each, for one token: batched
    step:  all traces' next tokens, by the log-probability of the whole trace
           a token that finishes a hole    the program runs on: to its next hole, or its end
           any other token                 the trace with it
    the n best live ones are kept; those that ended keep their place by score

With one hole it is the beam search that transformers' `generate(num_beams=n)` does, token for
token; of traces that end, those count that are among the n best of a step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    landed,
    probed,
)
from client.query.running.decoding import Asker, Ended, Start
from client.query.running.together import together
from client.query.running.walking import exhausted
from client.words import Answer

# Besides n tokens that go on, a step may bring so many that end: a model has that many at most.
_MAX_ENDS = 8
EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Beam:
    """The `n` best traces that beams of `n` find, the best first.

    A trace's score is its log-probability / (its tokens ** length_penalty): 0 compares plain sums.
    The search is over when no live trace can take the place of the worst of n ended ones:
        early_stopping False     at its present length; exact for a length_penalty of 0
                       True      as soon as n have ended
                       "never"   at any length it may still get, `max_len` at most
    """

    n: int
    length_penalty: float = 0.0
    early_stopping: EarlyStopping = False
    max_len: int | None = None

    async def decode(self, start: Start, asker: Asker) -> Sequence[Ended]:
        """Fewer than n where the program has no more traces. Raises as argmax if it has none."""
        search = _Search(self, asker)
        await search.begin(start)
        while not search.is_over:
            await search.step()
        return search.results()

    def score(self, logprob: float, num_tokens: int) -> float:
        """What traces are compared by in the end."""
        return logprob / math.pow(max(num_tokens, 1), self.length_penalty)


class _Search:
    """Owner of one search's traces."""

    def __init__(self, beam: Beam, asker: Asker) -> None:
        self._beam = beam
        self._asker = asker
        self._live: list[Branch] = []
        self._ended: list[tuple[float, Finished]] = []
        self._failure: QueryError | None = None

    async def begin(self, start: Start) -> None:
        try:
            self._keep(await landed(await start(0), self._asker), is_among_best=True)
        except DEAD as error:
            self._failure = error

    @property
    def is_over(self) -> bool:
        """Nothing is live, or nothing live can still be among the results."""
        if not self._live:
            return True
        if len(self._ended) < self._beam.n:
            return False
        if self._beam.early_stopping is True:
            return True
        worst = self._ended[-1][0]
        return all(self._possible(branch) <= worst for branch in self._live)

    def results(self) -> Sequence[Ended]:
        if not self._ended and self._failure is not None:
            raise exhausted(self._failure)
        return [ended.trace for _, ended in self._ended]

    async def step(self) -> None:
        """One token for every live trace."""
        probes = await together(self._probe(branch) for branch in self._live)
        before, self._live = self._live, []
        found: list[Alternative] = []
        num_ends = 1
        for probe in probes:
            if isinstance(probe, Finished):
                self._keep(probe, is_among_best=True)
            elif probe is not None:
                found += alternatives(*probe)
                num_ends = max(num_ends, len(probe[1].standing.end_token_ids))
        found.sort(key=lambda alternative: -alternative.logprob)
        await self._select(found, (1 + num_ends) * self._beam.n)
        kept = {id(branch.at) for branch in self._live}
        for branch in before:
            if id(branch.at) not in kept:
                branch.at.close()

    async def _select(self, found: Sequence[Alternative], num_considered: int) -> None:
        """The best n that go on, of so many that are considered; what ends must be among n."""
        rank, num_tried = 0, 0
        while rank < num_considered and num_tried < len(found):
            tried = found[num_tried : num_tried + num_considered - rank]
            num_tried += len(tried)
            for place in await together(self._behind(each) for each in tried):
                if place is None:
                    continue
                if len(self._live) == self._beam.n:
                    return
                self._keep(place, is_among_best=rank < self._beam.n)
                rank += 1

    @property
    def _width(self) -> int:
        """Alternatives that are asked for: as many of one trace as a step looks at of all."""
        return min(2 * self._beam.n + _MAX_ENDS, MAX_WIDTH)

    async def _probe(self, branch: Branch) -> tuple[Branch, Answer] | Finished | None:
        """None: nothing may follow."""
        try:
            return await probed(branch, self._asker, self._width)
        except DEAD as error:
            self._failure = error
            return None

    async def _behind(self, alternative: Alternative) -> Landed | None:
        """None: its text fails a check, or makes the next hole impossible."""
        try:
            return await behind(alternative, self._asker)
        except DEAD as error:
            self._failure = error
            return None

    def _keep(self, place: Landed, *, is_among_best: bool) -> None:
        if isinstance(place, Branch):
            self._live.append(place)
        elif is_among_best:
            score = self._beam.score(place.logprob, place.num_tokens)
            self._ended.append((score, place))
            self._ended.sort(key=lambda pair: -pair[0])
            del self._ended[self._beam.n :]

    def _possible(self, branch: Branch) -> float:
        """The best score that a live trace may come to end with."""
        beam = self._beam
        if beam.early_stopping != "never" or beam.length_penalty <= 0:
            return beam.score(branch.logprob, branch.num_tokens)
        if beam.max_len is None:
            return math.inf
        return beam.score(branch.logprob, beam.max_len)
