"""Scripted beam search: the best traces of a whole program, over its holes and its branches.

    active: n traces (branches), each in the middle of a hole    one request for all of them
    step:   all branches' next tokens, by the log-probability of the whole trace
            a token that finishes a hole    the program continues to its next hole, or its end
            any other token                 the branch with that token
    the n best active branches are kept; ended ones are ranked by score

The server makes the steps, and answers when a hole is finished behind which the program continues.
If no hole can follow, the server continues alone: so a program with one hole needs one request.

With one hole it equals transformers' `generate(num_beams=n)`, token for token; ended traces count
if they are among the n best of a step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from client.calls import BeamHole, BeamsAnswer, BeamsCall, BeamState, EarlyStopping, score_of
from client.query.errors import NotSatisfied, QueryError, Unsatisfiable
from client.query.running.backtracking import no_tries_left
from client.query.running.decoding import HoleAnswer, Rejected, TraceEnd, gather_or_cancel
from client.query.running.request_sender import RequestSender
from client.query.running.traces import AtHole, Start, Trace

# Errors that end a branch but not the search: no text is possible, or a check fails.
DEAD = (Unsatisfiable, Rejected, NotSatisfied)


@dataclass(frozen=True, slots=True)
class Branch:
    """A trace at a hole, and how far it is there; `state.hole` is its number in the last call."""

    at: AtHole
    state: BeamState

    async def answered(self, text: str) -> Trace:
        """The trace behind the hole, whose output ends here with this text."""
        state = self.state
        answer = HoleAnswer(text=text, logprob=state.output_logprob, num_tokens=len(state.output))
        return await self.at.answered(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBranch:
    """An ended trace, with the values for its score."""

    trace: TraceEnd
    logprob: float
    num_tokens: int


AnyBranch = Branch | FinishedBranch


async def branch_after(
    trace: Trace, sender: RequestSender, logprob: float = 0.0, num_tokens: int = 0
) -> AnyBranch:
    """The branch of a trace; fills holes of distributions first.

    Raises the errors in DEAD.
    """
    while not isinstance(trace, TraceEnd):
        if trace.score_call is None:
            return Branch(trace, BeamState(logprob=logprob, num_tokens=num_tokens))
        answer = await sender.fill(trace)
        logprob += answer.logprob
        num_tokens += answer.num_tokens
        trace = await trace.answered(answer)
    return FinishedBranch(trace=trace, logprob=logprob, num_tokens=num_tokens)


def branch_of(state: BeamState, ats: Sequence[AtHole]) -> Branch:
    """The branch of a BeamState; `ats`: the holes of the call."""
    return Branch(ats[state.hole], state)


# The factor by which more candidates are requested if those received are not enough.
_MORE = 4


@dataclass(frozen=True, slots=True)
class Beam:
    """Beam search with `n` beams; returns the `n` best traces, best first.

    A trace's score is its log-probability / (its tokens ** length_penalty): 0 compares plain sums.
    The search ends when no active trace can replace the worst of n ended ones:
        early_stopping False     at its present length; exact for a length_penalty of 0
                       True      as soon as n have ended
                       "never"   at any length it may still get, `max_len` at most
    """

    n: int
    length_penalty: float = 0.0
    early_stopping: EarlyStopping = False
    max_len: int | None = None

    async def decode(self, start: Start, sender: RequestSender) -> Sequence[TraceEnd]:
        """Fewer than n if the program has no more traces. Raises like argmax if it has none."""
        return await _Search(self, sender).run(start)


@dataclass(frozen=True, slots=True)
class _Filled:
    """A trace with the text of its last hole, which its program has not received yet."""

    branch: Branch
    text: str


class _Search:
    """Owner of one search's traces and their waiting runs."""

    def __init__(self, beam: Beam, sender: RequestSender) -> None:
        self._beam = beam
        self._sender = sender
        self._active: list[Branch] = []
        # Holes with a run that may be waiting.
        self._open: list[AtHole] = []
        self._ended: list[tuple[float, FinishedBranch | _Filled]] = []
        self._failure: QueryError | None = None
        self._num_candidates: int | None = None

    async def run(self, start: Start) -> Sequence[TraceEnd]:
        """The results."""
        try:
            self._keep(self._track(await branch_after(await start(0), self._sender)))
        except DEAD as error:
            self._failure = error
        while self._active:
            await self._go_on()
            await self._close_dropped()
        if not self._ended and self._failure is not None:
            raise no_tries_left(self._failure)
        return await gather_or_cancel(_finish(trace) for _, trace in self._ended)

    async def _go_on(self) -> None:
        """Send one request and process its answer."""
        ats = [*{id(branch.at): branch.at for branch in self._active}.values()]
        answer, failures = await self._sender.search(ats, self._call(ats))
        for failure in failures:
            self._failure = failure
        for state in answer.ended:
            self._keep(_Filled(branch_of(state, ats), state.text))
        self._active = []
        if answer.finish_reason == "hole":
            await self._step(answer, ats)

    def _track(self, place: AnyBranch) -> AnyBranch:
        """Record a new branch's hole as open."""
        if isinstance(place, Branch):
            self._open.append(place.at)
        return place

    async def _close_dropped(self) -> None:
        """End the runs at holes without an active trace."""
        kept = {id(branch.at) for branch in self._active}
        dropped = [at for at in self._open if id(at) not in kept]
        self._open = [at for at in self._open if id(at) in kept]
        await gather_or_cancel(at.close() for at in dropped)

    def _call(self, ats: Sequence[AtHole]) -> BeamsCall:
        numbers = {id(at): number for number, at in enumerate(ats)}
        beam = self._beam
        return BeamsCall(
            width=beam.n,
            holes=tuple(BeamHole(call=at.call, is_last=at.is_last) for at in ats),
            beams=tuple(
                replace(branch.state, hole=numbers[id(branch.at)]) for branch in self._active
            ),
            sampling=ats[0].call.sampling,
            length_penalty=beam.length_penalty,
            early_stopping=beam.early_stopping,
            max_len=beam.max_len,
            ended=tuple(score for score, _ in self._ended if math.isfinite(score)),
            num_candidates=self._num_candidates,
        )

    # Processing a step

    async def _step(self, answer: BeamsAnswer, ats: Sequence[AtHole]) -> None:
        """Continue the programs whose holes are finished, and keep the best traces."""
        self._num_candidates = None
        if answer.candidates is None:
            for place in await gather_or_cancel(
                self._advance(state, ats) for state in answer.beams
            ):
                if place is not None:
                    self._keep(place)
            return
        kept, is_whole = await self._selected(answer.candidates, answer.num_considered, ats)
        if answer.has_more and not is_whole:
            self._num_candidates = _MORE * max(answer.num_considered, len(answer.candidates))
            self._active = [branch_of(state, ats) for state in answer.beams]
            return
        for place in kept:
            self._keep(place)

    async def _selected(
        self, candidates: Sequence[BeamState], num_considered: int, ats: Sequence[AtHole]
    ) -> tuple[Sequence[AnyBranch], bool]:
        """The best n active traces among those considered, and ended ones of rank below n.

        Also returns whether no further candidate can be one of them.
        """
        kept: list[AnyBranch] = []
        rank = num_tried = num_active = 0
        while rank < num_considered and num_tried < len(candidates) and num_active < self._beam.n:
            tried = candidates[num_tried : num_tried + num_considered - rank]
            num_tried += len(tried)
            for place in await gather_or_cancel(self._advance(each, ats) for each in tried):
                if place is None or num_active == self._beam.n:
                    continue
                if isinstance(place, Branch):
                    num_active += 1
                    kept.append(place)
                elif rank < self._beam.n:
                    kept.append(place)
                rank += 1
        return kept, rank == num_considered or num_active == self._beam.n

    async def _advance(self, state: BeamState, ats: Sequence[AtHole]) -> AnyBranch | None:
        """The branch behind a state.

        None: its text fails a check, or makes the next hole impossible.
        """
        branch = branch_of(state, ats)
        if not state.is_ended:
            return branch
        try:
            trace = await branch.answered(state.text)
            place = await branch_after(trace, self._sender, state.logprob, state.num_tokens)
            return self._track(place)
        except DEAD as error:
            self._failure = error
            return None

    def _keep(self, place: AnyBranch | _Filled) -> None:
        if isinstance(place, Branch):
            self._active.append(place)
            return
        at_end = place.branch.state if isinstance(place, _Filled) else place
        score = score_of(at_end.logprob, at_end.num_tokens, self._beam.length_penalty)
        self._ended.append((score, place))
        self._ended.sort(key=lambda each: -each[0])
        del self._ended[self._beam.n :]


async def _finish(trace: FinishedBranch | _Filled) -> TraceEnd:
    """The ended trace, after its program got the last text."""
    if isinstance(trace, FinishedBranch):
        return trace.trace
    ended = await trace.branch.answered(trace.text)
    assert isinstance(ended, TraceEnd), "no hole follows the last one"
    return ended
