"""Backtracking decoding of one trace, hole by hole; argmax and sample run independent ones.

    X -> Y -> Z    a check fails on Z:  Z is requested again, excluding its text
                   no text is left for Z, or it was requested `tries` times: back to the last hole
                   that affects later ones, excluding its text; holes behind it are dropped

A hole affects later ones if its conditions mention them, or if it belongs to a nested query whose
value conditions mention. A text is excluded only behind the same earlier texts. One trace
backtracks at most `tries` times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from client.query.conditions.bounds import names_of
from client.query.errors import NotSatisfied, QueryError, Unsatisfiable
from client.query.running.decoding import Rejected, TraceEnd, gather_or_cancel
from client.query.running.request_sender import RequestSender
from client.query.running.traces import AtHole, Start, Trace


@dataclass(slots=True)
class HoleAttempt:
    """A hole on the path, and the texts that failed there."""

    at: AtHole
    num_asked: int = 0
    last: str = ""
    refused: list[str] = field(default_factory=list)

    @property
    def affects_later_holes(self) -> bool:
        """Whether its text may make later holes impossible."""
        deferred = self.at.plan.deferred
        return self.at.has_outer_conditions or any(
            self.at.hole.name in names_of(check) for check in deferred
        )

    def again(self) -> AtHole:
        """The hole without the failed texts. Raises Unsatisfiable if no other text is possible."""
        if not self.refused:
            return self.at
        at = self.at.refusing(self.refused)
        is_same = at.score_call is None and at.call == self.at.call
        if is_same and not self.may_vary:
            what = f"[{at.hole.name}] would be the same again: a schema leaves out no text"
            raise Unsatisfiable(what, at.hole.place, at.source)
        return at

    @property
    def may_vary(self) -> bool:
        """Whether a repeated request may give another text, without a constraint."""
        sampling = self.at.call.sampling
        return sampling.temperature > 0 and sampling.seed is None


class BacktrackingDecoder:
    """Owner of the path of one trace."""

    def __init__(self, sender: RequestSender, tries: int) -> None:
        self._sender = sender
        self._tries = tries
        self._path: list[HoleAttempt] = []
        self._num_back = 0
        self._num_rejected = 0
        # The unresolved error (preferably a rejected text), and the position of its hole on the
        # path.
        self._wrong: Rejected | Unsatisfiable | None = None
        self._wrong_at = 0

    async def to_end(self, trace: Trace) -> TraceEnd:
        """Decode to the end. Raises NotSatisfied if checks failed on every try, Unsatisfiable if
        there was no text to try.
        """
        while not isinstance(trace, TraceEnd):
            self._path.append(HoleAttempt(trace))
            trace = await self._fill_last_hole()
        return trace

    async def _fill_last_hole(self) -> Trace:
        """The trace behind the path's last hole, or behind one reached by backtracking."""
        while True:
            attempt = self._path[-1]
            try:
                at = attempt.again()
                attempt.num_asked += 1
                answer = await self._sender.fill(at)
            except Unsatisfiable as error:
                self._path.pop()
                self._backtrack(error)
                continue
            attempt.last = answer.text
            try:
                behind = await at.answered(answer)
            except Rejected as error:
                self._wrong = error
                self._wrong_at = len(self._path)
                self._num_rejected += 1
                self._ask_again(attempt, error)
            except Unsatisfiable as error:
                # The next hole is impossible behind this text or an earlier one.
                self._mark_filled()
                if self._wrong is None:
                    self._wrong = error
                    self._wrong_at = len(self._path) + 1
                self._backtrack(error)
            else:
                self._mark_filled()
                return behind

    def _mark_filled(self) -> None:
        """Clear the errors of the path's last hole, which is filled now."""
        if len(self._path) == self._wrong_at:
            self._wrong = None
            self._num_rejected = 0

    def _ask_again(self, attempt: HoleAttempt, error: Rejected) -> None:
        """Try the same hole again if useful, else backtrack."""
        is_repeated = attempt.last in attempt.refused and not attempt.may_vary
        if attempt.num_asked < self._tries and not is_repeated:
            attempt.refused.append(attempt.last)
            return
        self._path.pop()
        self._backtrack(error)

    def _backtrack(self, error: QueryError) -> None:
        """Go back to the last hole that affects later ones and may be requested again."""
        while self._path and self._num_back < self._tries:
            attempt = self._path[-1]
            if attempt.affects_later_holes and attempt.num_asked < self._tries:
                attempt.refused.append(attempt.last)
                self._num_back += 1
                return
            self._path.pop()
        self._give_up(error)

    def _give_up(self, error: QueryError) -> NoReturn:
        cause = self._wrong or error
        rejected = cause if isinstance(cause, Rejected) else None
        if rejected is None and self._num_back == 0:
            raise error
        raise NotSatisfied(
            f"{cause.message}{self._tried()}{_why_no_more(error, cause)}",
            None if rejected is None else rejected.value,
            cause.place,
            cause.source,
        ) from error

    def _tried(self) -> str:
        """The number of tries, for the end of a message."""
        if not self._num_rejected:
            return f" (behind {self._num_back} other texts before it, too; tries={self._tries})"
        if self._num_rejected == 1:
            return f", the one text that was tried (tries={self._tries})"
        return f", the last of {self._num_rejected} texts that were tried (tries={self._tries})"


def _why_no_more(error: QueryError, cause: QueryError) -> str:
    """The reason for no further try, unless it is the message itself or the number of tries."""
    is_new = error.message != cause.message and isinstance(error, Unsatisfiable)
    return f"; {error.message}" if is_new else ""


async def decode_trace(start: Start, index: int, sender: RequestSender, tries: int) -> TraceEnd:
    """Decode trace `index` to its end."""
    return await BacktrackingDecoder(sender, tries).to_end(await _started(start, index))


async def _started(start: Start, index: int) -> Trace:
    """The trace at its first hole. A check that fails before it is final."""
    try:
        return await start(index)
    except Rejected as error:
        raise no_tries_left(error) from error


def no_tries_left(error: QueryError) -> QueryError:
    """The final error: NotSatisfied for a rejected text."""
    if isinstance(error, Rejected):
        return NotSatisfied(error.message, error.value, error.place, error.source)
    return error


# The most concurrent traces; more than servers run at once.
_MAX_CONCURRENT = 1024


@dataclass(frozen=True, slots=True)
class IndependentTraces:
    """`num_traces` concurrent traces with one request for each hole; the server batches them.

    The requests' temperature decides between sampling and greedy decoding.
    """

    num_traces: int = 1
    tries: int = 10

    async def decode(self, start: Start, sender: RequestSender) -> Sequence[TraceEnd]:
        """All traces, in the order of their seeds."""
        left = iter(range(self.num_traces))
        made: dict[int, TraceEnd] = {}

        async def decode_remaining() -> None:
            for index in left:
                made[index] = await decode_trace(start, index, sender, self.tries)

        await gather_or_cancel(
            decode_remaining() for _ in range(min(self.num_traces, _MAX_CONCURRENT))
        )
        return [made[index] for index in range(self.num_traces)]
