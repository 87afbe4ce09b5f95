"""TGI's stream and reply, made from events. Bytes for streams, plain dicts for replies.

    data: {"index", "token", "top_tokens"?, "generated_text": null, "details": null}     each token
    data: {"index", "token", "top_tokens"?, "generated_text": str, "details": {...}}     the last

No `[DONE]`: the stream just ends. Keys are in TGI's order.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from proto.contract import FinishReason
from router.engine.infer import Completion
from router.http.errors import Dialect, Problem
from router.http.server.request_record import RequestRecord
from router.http.server_info import constraint_fields
from router.request.errors import RouterError
from router.request.events import Event, Failed, Finished, TokenGenerated, TokenLogprob
from router.text.tokenizer import TokenSpan

_FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "length",
        FinishReason.EOS: "eos_token",
        FinishReason.STOP_TOKEN: "stop_sequence",
        FinishReason.STOP_STRING: "stop_sequence",
        FinishReason.CONSTRAINT_COMPLETE: "eos_token",
        FinishReason.DEADLINE: "deadline",
        # Nobody can ask for a pause here; it would be a limit on tokens.
        FinishReason.PAUSED: "length",
    }
)
_FRAME = (
    b'data: {"index":%d,"token":{"id":%d,"text":%b,"logprob":%b,"special":%b}%b,'
    b'"generated_text":%b,"details":%b}\n\n'
)


_SPANS_AT_ONCE = 2000
# A sequence can end without a token of its own, by its deadline; clients still look for one.
_NO_TOKEN = TokenGenerated(TokenLogprob(0, "", None, special=True), "")


class NativeFrames:
    """Frames of one stream. `prefix` is the prompt if the whole text was asked for, else ""."""

    def __init__(self, record: RequestRecord, *, with_details: bool, prefix: str) -> None:
        self._exchange = record
        self._with_details = with_details
        self._prefix = prefix
        self._num_tokens = 0

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """One frame for each token; a Finished joins the token before it in the burst."""
        return b"".join(self._frames(burst))

    def fail(self, error: RouterError) -> bytes:
        """An error event."""
        problem = Problem.of(error, Dialect.TGI)
        self._exchange.error_type = problem.error_type
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
        self._exchange.finished(end)
        details = {
            "finish_reason": _FINISH_REASONS[end.reason],
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


def reply(completions: Sequence[Completion], *, with_details: bool, prefix: str) -> dict[str, Any]:
    """The answer to a request that does not stream; `completions` are best first."""
    best, *others = completions
    answer: dict[str, Any] = {"generated_text": prefix + best.finished.text}
    if with_details:
        details = _details(best)
        if others:
            details["best_of_sequences"] = [
                {"generated_text": prefix + other.finished.text, **_details(other)}
                for other in others
            ]
        # TGI writes its optional lists last.
        top_tokens = details.pop("top_tokens", None)
        answer["details"] = details if top_tokens is None else {**details, "top_tokens": top_tokens}
    return answer


def _details(completion: Completion) -> dict[str, Any]:
    end = completion.finished
    prefill = completion.prompt.tokens if completion.prompt is not None else ()
    details: dict[str, Any] = {
        "finish_reason": _FINISH_REASONS[end.reason],
        "generated_tokens": end.num_generated_tokens,
        "seed": end.seed,
        **constraint_fields(end),
        "prefill": [
            {"id": token.token_id, "text": token.text, "logprob": token.logprob}
            for token in prefill
        ],
        "tokens": [_token(event.token) for event in completion.tokens],
    }
    if any(event.top_tokens for event in completion.tokens):
        details["top_tokens"] = [
            [_token(token) for token in event.top_tokens] for event in completion.tokens
        ]
    return details


def _shown(event: TokenGenerated) -> str:
    """A token's text in a stream: special ones included, nothing past a stop string."""
    return event.token.text if event.token.special else event.text


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "text": token.text,
        "logprob": token.logprob,
        "special": token.special,
    }


def _top_tokens_field(top_tokens: Sequence[TokenLogprob]) -> bytes:
    return b',"top_tokens":' + orjson.dumps([_token(token) for token in top_tokens])


async def spans_shown(spans: Sequence[TokenSpan]) -> bytes:
    """The tokens of a text as JSON, as the routes that tokenize answer them."""
    if len(spans) <= _SPANS_AT_ONCE:
        return _spans_shown(spans)
    # A body can hold a million tokens: they are told in pieces, beside the event loop.
    return await asyncio.to_thread(_many_spans_shown, spans)


def _many_spans_shown(spans: Sequence[TokenSpan]) -> bytes:
    starts = range(0, len(spans), _SPANS_AT_ONCE)
    pieces = (_spans_shown(spans[start : start + _SPANS_AT_ONCE])[1:-1] for start in starts)
    return b"[" + b",".join(pieces) + b"]"


def _spans_shown(spans: Sequence[TokenSpan]) -> bytes:
    return orjson.dumps(
        [
            {"id": span.token_id, "text": span.text, "start": span.start, "stop": span.stop}
            for span in spans
        ]
    )
