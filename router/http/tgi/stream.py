"""TGI's stream: one server-sent event for each token.

    data: {"index", "token", "top_tokens"?, "generated_text": null, "details": null}     each token
    data: {"index", "token", "top_tokens"?, "generated_text": str, "details": {...}}     the last

No `[DONE]`: the stream just ends. Keys are in TGI's order.
"""

from collections.abc import Iterator, Sequence

import orjson

from router.http.errors import problem_of
from router.http.request_validator import RequestRecord
from router.http.server.errors import Dialect
from router.http.server_info import constraint_fields
from router.http.tgi.reply import FINISH_REASONS, token_fields
from router.request.errors import RouterError
from router.request.request import Event, Failed, Finished, TokenGenerated, TokenLogprob

_FRAME = (
    b'data: {"index":%d,"token":{"id":%d,"text":%b,"logprob":%b,"special":%b}%b,'
    b'"generated_text":%b,"details":%b}\n\n'
)
# A sequence can end without a token of its own, by its deadline; clients still look for one.
_NO_TOKEN = TokenGenerated(TokenLogprob(0, "", None, special=True), "")


class GenerateFrames:
    """Frames of one stream. `prefix` is the prompt if the whole text was asked for, else ""."""

    def __init__(self, record: RequestRecord, *, with_details: bool, prefix: str) -> None:
        self._record = record
        self._with_details = with_details
        self._prefix = prefix
        self._num_tokens = 0

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """One frame for each token; a Finished joins the token before it in the burst."""
        return b"".join(self._frames(burst))

    def fail(self, error: RouterError) -> bytes:
        """An error event."""
        problem = problem_of(error, Dialect.TGI)
        self._record.error_type = problem.error_type
        return problem.frame()

    def end(self) -> bytes:
        """Nothing: TGI's streams just end."""
        return b""

    def _frames(self, burst: Sequence[Event]) -> Iterator[bytes]:
        held: TokenGenerated | None = None
        for event in burst:
            if isinstance(event, TokenGenerated):
                if held is not None:
                    yield self._frame(held)
                held = event
            elif isinstance(event, Finished):
                yield self._last_frame(held or _NO_TOKEN, event)
                held = None
            elif isinstance(event, Failed):
                raise event.error
        if held is not None:
            yield self._frame(held)

    def _frame(
        self, event: TokenGenerated, tail: str = "", text: bytes = b"null", details: bytes = b"null"
    ) -> bytes:
        self._num_tokens += 1
        token = event.token
        # Clients skip the texts of special tokens, so what is left of the answer must not be one.
        is_unseen = token.special and tail != ""
        return _FRAME % (
            self._num_tokens,
            token.token_id,
            orjson.dumps(tail if is_unseen else _shown(event) + tail),
            orjson.dumps(token.logprob),
            b"true" if token.special and not is_unseen else b"false",
            _top_tokens_field(event.top_tokens) if event.top_tokens else b"",
            text,
            details,
        )

    def _last_frame(self, event: TokenGenerated, end: Finished) -> bytes:
        self._record.finished(end)
        details = {
            "finish_reason": FINISH_REASONS[end.reason],
            "generated_tokens": end.num_generated_tokens,
            "seed": end.seed,
            "input_length": end.num_prompt_tokens,
            **constraint_fields(end),
        }
        return self._frame(
            event,
            end.tail,
            orjson.dumps(self._prefix + end.text),
            orjson.dumps(details) if self._with_details else b"null",
        )


def _shown(event: TokenGenerated) -> str:
    """A token's text in a stream: special ones included, nothing past a stop string."""
    return event.token.text if event.token.special else event.text


def _top_tokens_field(top_tokens: Sequence[TokenLogprob]) -> bytes:
    return b',"top_tokens":' + orjson.dumps([token_fields(token) for token in top_tokens])
