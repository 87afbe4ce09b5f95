"""A trace in the middle of a hole, the unit of beam search.

This is the program's side: the place that a trace reaches behind a hole. The server searches for
the tokens of many branches at once; the conversions for its calls are here, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from client.beams import BeamHole, BeamState
from client.query.errors import NotSatisfied, Unsatisfiable
from client.query.running.decoding import Asker, AtHole, HoleAnswer, Rejected, Trace, TraceEnd

# Errors that end a branch but not the search: no text is possible, or a check fails.
DEAD = (Unsatisfiable, Rejected, NotSatisfied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A trace at a hole, and its tokens of the hole so far.

    `logprob`, `num_tokens`: of the whole trace, with end tokens.
    """

    at: AtHole
    logprob: float = 0.0
    num_tokens: int = 0
    output: tuple[int, ...] = ()
    output_logprob: float = 0.0

    def state(self, hole: int) -> BeamState:
        """As a BeamState of a call that has its hole under this number."""
        return BeamState(
            hole=hole,
            output=self.output,
            logprob=self.logprob,
            num_tokens=self.num_tokens,
            output_logprob=self.output_logprob,
        )

    def filled(self, text: str) -> HoleAnswer:
        """The answer if the output ends here with this text."""
        return HoleAnswer(text=text, logprob=self.output_logprob, num_tokens=len(self.output))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBranch:
    """An ended trace, with the values for its score."""

    trace: TraceEnd
    logprob: float
    num_tokens: int


AnyBranch = Branch | FinishedBranch


async def branch_after(
    trace: Trace, asker: Asker, logprob: float = 0.0, num_tokens: int = 0
) -> AnyBranch:
    """The branch of a trace; fills holes of distributions first.

    Raises the errors in DEAD.
    """
    while not isinstance(trace, TraceEnd):
        if trace.score_call is None:
            return Branch(at=trace, logprob=logprob, num_tokens=num_tokens)
        answer = await asker.fill(trace)
        logprob += answer.logprob
        num_tokens += answer.num_tokens
        trace = await trace.answered(answer)
    return FinishedBranch(trace=trace, logprob=logprob, num_tokens=num_tokens)


async def advance(branch: Branch, text: str, asker: Asker) -> AnyBranch:
    """The branch behind a hole with this text. Raises the errors in DEAD."""
    trace = await branch.at.answered(branch.filled(text))
    return await branch_after(trace, asker, branch.logprob, branch.num_tokens)


# Conversions for calls


def distinct_holes(branches: Sequence[Branch]) -> list[AtHole]:
    return list({id(branch.at): branch.at for branch in branches}.values())


def beam_hole(at: AtHole, *, is_last: bool) -> BeamHole:
    """The hole as a BeamHole, from its start."""
    call = at.call
    return BeamHole(
        prompt=call.prompt,
        max_tokens=call.max_tokens,
        constraint=call.constraint,
        stop=call.stop,
        keeps_stop=call.keeps_stop,
        is_last=is_last,
    )


def branch_of(state: BeamState, ats: Sequence[AtHole]) -> Branch:
    """The branch of a BeamState; `ats`: the holes of the call."""
    return Branch(
        at=ats[state.hole],
        logprob=state.logprob,
        num_tokens=state.num_tokens,
        output=state.output,
        output_logprob=state.output_logprob,
    )
