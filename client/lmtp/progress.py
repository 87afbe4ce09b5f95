"""The progress of one call over as many requests as it needs, when connections are lost.

    first request   | prompt |                         -> tokens 0 .. k, then the connection is lost
    next request    | prompt | output: tokens 0..k-1 | -> token k again, k+1 ..

Draws depend on the seed and the position alone, so the second request generates what the first
would have; where the caller gave no seed, one is drawn here. The last token is requested again:
it may have been the end, of which only the reason was lost, and nothing follows an end. It also
shows that both requests generate the same output.
"""

from collections.abc import Callable
from dataclasses import replace

from client.calls import Answer, GenerateCall, GeneratedToken, Usage
from client.errors import ServerFailed
from client.lmtp.frames import StreamEnd


class GenerateProgress:
    """The tokens received of one GenerateCall. `clock` is in seconds."""

    def __init__(
        self, call: GenerateCall, *, draw_seed: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        if call.sampling.temperature > 0 and call.sampling.seed is None:
            call = replace(call, sampling=replace(call.sampling, seed=draw_seed()))
        self._call = call
        self._clock = clock
        self._started_s = clock()
        self._tokens: list[GeneratedToken] = []
        self._repeated: GeneratedToken | None = None
        self._is_different = False
        self._num_known = 0
        self._known_text = ""
        self._known_thought = ""

    def request(self) -> GenerateCall:
        """The call for the missing rest."""
        call = self._call
        tokens = self._tokens
        self._repeated = tokens[-1] if tokens and not self._is_different else None
        known = tokens[:-1] if self._repeated else tokens
        self._num_known = len(known)
        self._known_text = "".join(token.text for token in known)
        self._known_thought = "".join(token.thought or "" for token in known)
        if call.timeout_s is not None:
            left_s = call.timeout_s - (self._clock() - self._started_s)
            call = replace(call, timeout_s=max(left_s, 0.001))
        output = (*call.output, *(token.token_id for token in known))
        return replace(call, output=output)

    def record(self, token: GeneratedToken) -> GeneratedToken | None:
        """Records a token; None: it is known. Raises ServerFailed if it differs from that one."""
        if self._repeated is None:
            self._tokens.append(token)
            return token
        before = self._repeated
        self._repeated = None
        if before.token_id != token.token_id:
            self._is_different = True
            raise ServerFailed(
                f"the output cannot be taken up again: token {len(self._tokens) - 1} was "
                f"{before.token_id} and is {token.token_id} now",
                "not_resumable",
                is_retryable=self._can_go_on,
            )
        return None

    @property
    def _can_go_on(self) -> bool:
        """Whether tokens may follow the last one, so that a difference does no harm."""
        call = self._call
        num_tokens = len(self._tokens)
        is_full = call.max_tokens is not None and len(call.output) + num_tokens >= call.max_tokens
        return not (is_full or self._tokens[-1].is_end)

    def answer(self, end: StreamEnd) -> Answer:
        """The whole answer, with the usage of a single request."""
        num_prompt_tokens = end.usage.num_prompt_tokens - self._num_known
        usage = Usage(
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=min(end.usage.num_cached_tokens, num_prompt_tokens),
            num_output_tokens=len(self._tokens),
        )
        return Answer(
            text=self._known_text + end.text,
            tokens=tuple(self._tokens),
            finish_reason=end.finish_reason,
            usage=usage,
            stop_string=end.stop_string,
            constraint_satisfied=end.constraint_satisfied,
            violation=end.violation,
            seed=self._call.sampling.seed if end.seed is None else end.seed,
            thought=self._known_thought + end.thought,
        )
