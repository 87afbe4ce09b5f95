"""A trace in the middle of a hole, the unit of beam search.

The program's side of it is here: where a trace comes to behind a hole. The tokens are the server's
to look for, which is asked for many branches at once; so their words for it are here, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from client.beams import BeamHole, BeamState
from client.query.errors import NotSatisfied, Unsatisfiable
from client.query.running.decoding import Asker, AtHole, HoleAnswer, Rejected, Trace, TraceEnd

# What ends a branch and is no fault of the program's: nothing may follow, or a check fails.
DEAD = (Unsatisfiable, Rejected, NotSatisfied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A trace at a hole, and the tokens that it has of it.

    `logprob` and `num_tokens` are of the whole trace, end tokens among them.
    """

    at: AtHole
    logprob: float = 0.0
    num_tokens: int = 0
    output: tuple[int, ...] = ()
    output_logprob: float = 0.0

    def state(self, hole: int) -> BeamState:
        """In the words of a call that has its hole under this number."""
        return BeamState(
            hole=hole,
            output=self.output,
            logprob=self.logprob,
            num_tokens=self.num_tokens,
            output_logprob=self.output_logprob,
        )

    def filled(self, text: str) -> HoleAnswer:
        """The hole's text, if its output ends here and says this."""
        return HoleAnswer(text=text, logprob=self.output_logprob, num_tokens=len(self.output))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBranch:
    """A trace at its end, with what it is judged by."""

    trace: TraceEnd
    logprob: float
    num_tokens: int


AnyBranch = Branch | FinishedBranch


async def branch_after(
    trace: Trace, asker: Asker, logprob: float = 0.0, num_tokens: int = 0
) -> AnyBranch:
    """Where a trace comes to that is searched: holes of distributions are filled.

    Raises what is in DEAD.
    """
    while not isinstance(trace, TraceEnd):
        if trace.score_call is None:
            return Branch(at=trace, logprob=logprob, num_tokens=num_tokens)
        answer = await asker.fill(trace)
        logprob, num_tokens = logprob + answer.logprob, num_tokens + answer.num_tokens
        trace = await trace.answered(answer)
    return FinishedBranch(trace=trace, logprob=logprob, num_tokens=num_tokens)


async def advance(branch: Branch, text: str, asker: Asker) -> AnyBranch:
    """Where the trace comes to once its hole has this text. Raises what is in DEAD."""
    trace = await branch.at.answered(branch.filled(text))
    return await branch_after(trace, asker, branch.logprob, branch.num_tokens)


# In the words of a call


def distinct_holes(branches: Sequence[Branch]) -> list[AtHole]:
    """The holes that they stand at, each once."""
    return list({id(branch.at): branch.at for branch in branches}.values())


def beam_hole(at: AtHole, *, is_last: bool) -> BeamHole:
    """The hole, asked from its beginning."""
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
    """What an answer says of one, at the holes that were asked about."""
    return Branch(
        at=ats[state.hole],
        logprob=state.logprob,
        num_tokens=state.num_tokens,
        output=state.output,
        output_logprob=state.output_logprob,
    )
