"""A trace in the middle of a hole: the next tokens that it may take, and how the hole ends.

    branch: | prompt | output so far |  probe -> | token: log-probability | ...
                                                   |- an end token, or the last of the budget:
                                                   |  the hole is finished, the program runs on
                                                   `- any other: a branch with one token more

What searches over tokens (beams, best-first) is made of these. A branch costs one request for one
token, behind a prompt that the server's prefix cache holds, whichever branch computed it.

A hole ends by an end token, which has all the probability where nothing else may follow. Where the
text itself ends the output, at a phrase that is dropped, the server says so when it is to go on
with it; then the last token was the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from client.errors import InvalidRequest
from client.query.errors import NotSatisfied, Unsatisfiable
from client.query.running.decoding import Asker, AtHole, Ended, HoleAnswer, Rejected, Trace
from client.words import Answer, GenerateCall, Sampling

# What ends a branch and is no fault of the program's: nothing may follow, or a check fails.
DEAD = (Unsatisfiable, Rejected, NotSatisfied)
# What servers tell of alternatives to one token; those beyond are not looked at.
MAX_WIDTH = 256
# More than any model's scores differ by, among tokens that it thinks of at all.
_CERTAIN = 100.0


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

    def call(self, width: int) -> GenerateCall:
        """The request for its next token with `width` alternatives."""
        call = self.at.call
        sampling = replace(call.sampling, temperature=0.0)
        return replace(call, sampling=sampling, output=self.output, num_steps=1, top_logprobs=width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A token that a branch may take. `ends_hole`: the hole is finished with it."""

    branch: Branch
    token_id: int
    token_logprob: float
    answer: Answer
    is_end: bool
    ends_hole: bool

    @property
    def logprob(self) -> float:
        """Of the whole trace, this token included."""
        return self.branch.logprob + self.token_logprob

    @property
    def num_tokens(self) -> int:
        """As `logprob`."""
        return self.branch.num_tokens + 1

    def branch_with_it(self) -> Branch:
        """The branch with this token, where the hole goes on."""
        branch = self.branch
        return replace(
            branch,
            logprob=self.logprob,
            num_tokens=self.num_tokens,
            output=(*branch.output, self.token_id),
            output_logprob=branch.output_logprob + self.token_logprob,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A trace at its end, with what it is judged by."""

    trace: Ended
    logprob: float
    num_tokens: int


Landed = Branch | Finished


def alternatives(branch: Branch, answer: Answer) -> Iterator[Alternative]:
    """What may follow, the most probable first."""
    (token, *_) = answer.tokens
    end_ids = answer.standing.end_token_ids | ({token.token_id} if token.is_end else frozenset())
    most = branch.at.call.max_tokens
    is_last = answer.finish_reason == "length" or most == len(branch.output) + 1
    for token_id, logprob in sorted(token.top_logprobs.items(), key=lambda pair: -pair[1]):
        is_end = token_id in end_ids
        yield Alternative(
            branch=branch,
            token_id=token_id,
            token_logprob=logprob,
            answer=answer,
            is_end=is_end,
            ends_hole=is_end or is_last,
        )


async def landed(trace: Trace, asker: Asker, logprob: float = 0.0, num_tokens: int = 0) -> Landed:
    """Where a trace comes to that is asked token by token: holes of distributions are filled.

    Raises what is in DEAD.
    """
    while not isinstance(trace, Ended):
        if trace.score_call is None:
            return Branch(at=trace, logprob=logprob, num_tokens=num_tokens)
        answer = await asker.fill(trace)
        logprob, num_tokens = logprob + answer.logprob, num_tokens + answer.num_tokens
        trace = await trace.answered(answer)
    return Finished(trace=trace, logprob=logprob, num_tokens=num_tokens)


async def behind(taken: Alternative, asker: Asker) -> Landed:
    """Where the trace comes to with this token. Raises what is in DEAD."""
    if not taken.ends_hole:
        return taken.branch_with_it()
    if not taken.is_end:
        return await closed(taken.branch_with_it(), asker)
    standing = taken.answer.standing
    return await _filled(
        taken.branch,
        standing.text + standing.tail,
        asker,
        taken.logprob,
        taken.num_tokens,
        taken.branch.output_logprob + taken.token_logprob,
    )


async def closed(branch: Branch, asker: Asker) -> Landed:
    """The same for a branch whose last token finished its hole.

    Its text is known from whoever takes that token, so it is taken once more, for certain.
    """
    *before, last = branch.output
    call = replace(
        branch.at.call,
        sampling=Sampling(logit_bias={last: _CERTAIN}),
        output=tuple(before),
        num_steps=1,
        top_logprobs=0,
    )
    answer = await asker.generate(branch.at, call)
    if answer.constraint_satisfied is False:
        hole = branch.at.hole
        what = f"the conditions of [{hole.name}] are not kept within its tokens"
        raise NotSatisfied(what, answer.text, hole.place, branch.at.source)
    text = answer.standing.text + answer.text
    return await _filled(
        branch, text, asker, branch.logprob, branch.num_tokens, branch.output_logprob
    )


async def probed(branch: Branch, asker: Asker, width: int) -> tuple[Branch, Answer] | Finished:
    """The branch's next tokens; of the hole behind it, if its last token finished this one.

    Raises what is in DEAD.
    """
    while True:
        try:
            return branch, await asker.generate(branch.at, branch.call(width))
        except InvalidRequest as error:
            if error.field != "output" or not branch.output:
                raise
        place = await closed(branch, asker)
        if isinstance(place, Finished):
            return place
        branch = place


async def _filled(
    branch: Branch,
    text: str,
    asker: Asker,
    logprob: float,
    num_tokens: int,
    hole_logprob: float,
) -> Landed:
    answer = HoleAnswer(text=text, logprob=hole_logprob, num_tokens=len(branch.output))
    return await landed(await branch.at.answered(answer), asker, logprob, num_tokens)
