"""One output over as many requests as it takes: what came of it, what is still to be asked.

    first request   | prompt |                         -> tokens 0 .. k, then the connection is lost
    next request    | prompt | output: tokens 0..k-1 | -> token k again, k+1 ..

Draws depend on the seed and the position alone, so the second request gives what the first would
have given; a seed is drawn here where the caller gave none. The last token is asked for again
because it may have been the end, of which only the reason was lost; behind an end nothing can be
asked for. It also shows that both requests make the same output.
"""

from collections.abc import Callable
from dataclasses import replace

from client.beams import (
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    BeamState,
    score_of,
)
from client.errors import ServerFailed
from client.lmtp.frames import Ended
from client.words import Answer, GenerateCall, TokenMade, Usage


class Progress:
    """Owner of what was received of one GenerateCall. `clock` is in seconds."""

    def __init__(
        self, call: GenerateCall, *, draw_seed: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        if call.sampling.temperature > 0 and call.sampling.seed is None:
            call = replace(call, sampling=replace(call.sampling, seed=draw_seed()))
        self._call = call
        self._clock = clock
        self._begun_s = clock()
        self._tokens: list[TokenMade] = []
        self._repeats: TokenMade | None = None
        self._differs = False
        self._num_known = 0
        self._known_text = ""

    def request(self) -> GenerateCall:
        """The call for what is missing."""
        call, made = self._call, self._tokens
        self._repeats = made[-1] if made and not self._differs else None
        known = made[:-1] if self._repeats else made
        self._num_known = len(known)
        self._known_text = "".join(token.text for token in known)
        if call.timeout_s is not None:
            left_s = call.timeout_s - (self._clock() - self._begun_s)
            call = replace(call, timeout_s=max(left_s, 0.001))
        if call.num_steps is not None:
            call = replace(call, num_steps=call.num_steps - len(known))
        output = (*call.output, *(token.token_id for token in known))
        return replace(call, output=output)

    def take(self, token: TokenMade) -> TokenMade | None:
        """Notes a token; None: it is known. Raises ServerFailed if it is not the one it was."""
        if self._repeats is None:
            self._tokens.append(token)
            return token
        before, self._repeats = self._repeats, None
        if before.token_id != token.token_id:
            self._differs = True
            raise ServerFailed(
                f"the output cannot be taken up again: token {len(self._tokens) - 1} was "
                f"{before.token_id} and is {token.token_id} now",
                "not_resumable",
                is_retryable=self._may_go_on,
            )
        return None

    @property
    def _may_go_on(self) -> bool:
        """Behind the last token there is room: what differs by a rounding error can be gone on
        with as it is."""
        call, num_made = self._call, len(self._tokens)
        is_full = call.max_tokens is not None and len(call.output) + num_made >= call.max_tokens
        return not (is_full or call.num_steps == num_made or self._tokens[-1].is_end)

    def answer(self, ended: Ended, end_token_ids: frozenset[int] = frozenset()) -> Answer:
        """The whole of it, with the usage of a request that was never cut."""
        before = ended.standing.text.removesuffix(self._known_text)
        num_prompt_tokens = ended.usage.num_prompt_tokens - self._num_known
        usage = Usage(
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=min(ended.usage.num_cached_tokens, num_prompt_tokens),
            num_output_tokens=len(self._tokens),
        )
        return Answer(
            text=self._known_text + ended.text,
            tokens=tuple(self._tokens),
            finish_reason=ended.finish_reason,
            usage=usage,
            stop_string=ended.stop_string,
            constraint_satisfied=ended.constraint_satisfied,
            violation=ended.violation,
            seed=self._call.sampling.seed if ended.seed is None else ended.seed,
            standing=replace(ended.standing, text=before, end_token_ids=end_token_ids),
        )


class BeamProgress:
    """Owner of what was reported of one search: another request goes on from there.

    A search draws nothing, so it makes the same of the same beams.
    """

    def __init__(self, call: BeamsCall) -> None:
        self._call = call
        # Of the requests before, and of the one under way.
        self._before: tuple[BeamState, ...] = ()
        self._last: BeamsReport | None = None

    def request(self) -> BeamsCall:
        """The call for what is missing."""
        call, last = self._call, self._last
        if last is None or not last.beams:
            return call
        self._before, self._last = (*self._before, *last.ended), None
        scores = (*call.ended, *(_score(call, beam) for beam in self._before))
        best = tuple(sorted(scores, reverse=True)[: call.width])
        beams = tuple(replace(beam, text="") for beam in last.beams)
        # The step that had no end to its candidates is over.
        self._call = replace(call, beams=beams, num_candidates=None)
        return replace(call, beams=beams, num_candidates=None, ended=best)

    def take(self, report: BeamsReport) -> BeamsReport:
        """Notes a report; with all that has ended since the call."""
        self._last = report
        return replace(report, ended=(*self._before, *report.ended))

    def answer(self, answer: BeamsAnswer) -> BeamsAnswer:
        """With all that has ended since the call."""
        return replace(answer, ended=(*self._before, *answer.ended))


def _score(call: BeamsCall, beam: BeamState) -> float:
    return score_of(beam.logprob, beam.num_tokens, call.length_penalty)
