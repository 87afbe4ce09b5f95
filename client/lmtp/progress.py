"""One output over as many requests as it takes: what came of it, what is still to be asked.

    first request   | prompt |                       -> tokens 0 .. k-1, lost
    next request    | prompt | output: tokens 0..k-1 -> tokens k ..

Draws depend on the seed and the position alone, so the second request gives what the first would
have given; a seed is drawn here where the caller gave none.
"""

from collections.abc import Callable
from dataclasses import replace

from client.errors import ServerFailed
from client.lmtp.frames import Ended
from client.words import Answer, GenerateCall, TokenMade


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
        self._known_text = ""

    def request(self) -> GenerateCall:
        """The call for what is missing.

        Where nothing is left but the end's reason, the last token is asked for again.
        """
        call, made = self._call, self._tokens
        self._repeats = made[-1] if made and self._is_exhausted() else None
        known = made[:-1] if self._repeats else made
        self._known_text = "".join(token.text for token in known)
        if call.timeout_s is not None:
            left_s = call.timeout_s - (self._clock() - self._begun_s)
            call = replace(call, timeout_s=max(left_s, 0.001))
        if call.num_steps is not None:
            call = replace(call, num_steps=call.num_steps - len(known))
        output = (*call.output, *(token.token_id for token in known))
        return replace(call, output=output)

    def _is_exhausted(self) -> bool:
        call, num_made = self._call, len(self._tokens)
        return (
            self._tokens[-1].is_end
            or call.num_steps == num_made
            or (call.max_tokens is not None and len(call.output) + num_made >= call.max_tokens)
        )

    def take(self, token: TokenMade) -> TokenMade | None:
        """Notes a token; None: it is known. Raises ServerFailed if it is not the one it was."""
        if self._repeats is None:
            self._tokens.append(token)
            return token
        before, self._repeats = self._repeats, None
        if before.token_id != token.token_id:
            raise ServerFailed(
                f"the output cannot be taken up again: token {len(self._tokens) - 1} was "
                f"{before.token_id} and is {token.token_id} now",
                "not_resumable",
            )
        return None

    def answer(self, ended: Ended) -> Answer:
        """The whole of it."""
        usage = replace(ended.usage, num_output_tokens=len(self._tokens))
        return Answer(
            text=self._known_text + ended.text,
            tokens=tuple(self._tokens),
            finish_reason=ended.finish_reason,
            usage=usage,
            stop_string=ended.stop_string,
            constraint_satisfied=ended.constraint_satisfied,
            violation=ended.violation,
            seed=self._call.sampling.seed if ended.seed is None else ended.seed,
        )
