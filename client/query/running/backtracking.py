"""One trace to its end, hole by hole, going back where a text turns out wrong: argmax and sample.

    X -> Y -> Z    a check fails on Z:  Z is asked again, its text refused
                   nothing is left of Z, or it was asked `tries` times: back to the last hole that
                   promised something, its text refused; what came behind it is forgotten

A hole has promised where its conditions speak of holes behind it, too, and where it is one of a
nested query of whose value conditions speak. A text is refused only behind the very texts that it
was tried behind. A walk goes back at most `tries` times.
"""

from dataclasses import dataclass, field
from typing import NoReturn

from client.query.errors import NotSatisfied, QueryError, Unsatisfiable
from client.query.running.decoding import Asker, AtHole, Rejected, Start, Trace, TraceEnd


@dataclass(slots=True)
class HoleAttempt:
    """A hole on the path, as it was come to, and the texts that were wrong there."""

    at: AtHole
    num_asked: int = 0
    last: str = ""
    refused: list[str] = field(default_factory=list)

    @property
    def affects_later_holes(self) -> bool:
        """Holes behind this one may turn out impossible because of its text."""
        deferred = self.at.plan.deferred
        return self.at.has_outer_conditions or any(
            self.at.hole.name in check.names for check in deferred
        )

    def again(self) -> AtHole:
        """The hole without these texts. Raises Unsatisfiable where nothing else can come."""
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
        """Asked again, another text may come, even if no constraint keeps the last one out."""
        sampling = self.at.call.sampling
        return sampling.temperature > 0 and sampling.seed is None


class BacktrackingDecoder:
    """Owner of one walk's path."""

    def __init__(self, asker: Asker, tries: int) -> None:
        self._asker = asker
        self._tries = tries
        self._path: list[HoleAttempt] = []
        self._num_back = 0
        self._num_rejected = 0
        # What is wrong still, a rejected text before all else, and where on the path its hole is.
        self._wrong: Rejected | Unsatisfiable | None = None
        self._wrong_at = 0

    async def to_end(self, trace: Trace) -> TraceEnd:
        """Raises NotSatisfied when checks failed on every try, Unsatisfiable when nothing was
        there to try.
        """
        while not isinstance(trace, TraceEnd):
            self._path.append(HoleAttempt(trace))
            trace = await self._fill_last_hole()
        return trace

    async def _fill_last_hole(self) -> Trace:
        """The trace behind the path's last hole, or behind one that was gone back to."""
        while True:
            attempt = self._path[-1]
            try:
                at = attempt.again()
                attempt.num_asked += 1
                answer = await self._asker.fill(at)
            except Unsatisfiable as error:
                self._path.pop()
                self._backtrack(error)
                continue
            attempt.last = answer.text
            try:
                behind = await at.answered(answer)
            except Rejected as error:
                self._wrong, self._wrong_at = error, len(self._path)
                self._num_rejected += 1
                self._ask_again(attempt, error)
            except Unsatisfiable as error:
                # The next hole is impossible behind this text, or behind one before it.
                self._mark_filled()
                if self._wrong is None:
                    self._wrong, self._wrong_at = error, len(self._path) + 1
                self._backtrack(error)
            else:
                self._mark_filled()
                return behind

    def _mark_filled(self) -> None:
        """The path's last hole is filled: its earlier errors no longer matter."""
        if len(self._path) == self._wrong_at:
            self._wrong = None
            self._num_rejected = 0

    def _ask_again(self, attempt: HoleAttempt, error: Rejected) -> None:
        """The same hole, if a try is left and may help."""
        is_repeated = attempt.last in attempt.refused and not attempt.may_vary
        if attempt.num_asked < self._tries and not is_repeated:
            attempt.refused.append(attempt.last)
            return
        self._path.pop()
        self._backtrack(error)

    def _backtrack(self, error: QueryError) -> None:
        """To the last hole of the path that promised something and may be asked again."""
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
        """How much was tried, for the end of a message."""
        if not self._num_rejected:
            return f" (behind {self._num_back} other texts before it, too; tries={self._tries})"
        if self._num_rejected == 1:
            return f", the one text that was tried (tries={self._tries})"
        return f", the last of {self._num_rejected} texts that were tried (tries={self._tries})"


def _why_no_more(error: QueryError, cause: QueryError) -> str:
    """Why no further try was made, where it is neither the message nor the number of tries."""
    is_new = error.message != cause.message and isinstance(error, Unsatisfiable)
    return f"; {error.message}" if is_new else ""


async def decode_trace(start: Start, index: int, asker: Asker, tries: int) -> TraceEnd:
    """Trace `index` to its end."""
    return await BacktrackingDecoder(asker, tries).to_end(await _started(start, index))


async def _started(start: Start, index: int) -> Trace:
    """The trace at its first hole. Behind a check that fails before there is nothing to ask."""
    try:
        return await start(index)
    except Rejected as error:
        raise no_tries_left(error) from error


def no_tries_left(error: QueryError) -> QueryError:
    """The error where nothing is left to try: NotSatisfied of a rejected text."""
    if isinstance(error, Rejected):
        return NotSatisfied(error.message, error.value, error.place, error.source)
    return error
