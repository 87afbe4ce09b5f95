"""TGI's answers that do not stream, as plain dicts and JSON. Keys are in TGI's order."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from proto.contract import FinishReason
from router.engine.infer import Completion
from router.http.server_info import constraint_fields
from router.request.request import TokenLogprob
from router.text.tokenizer import TokenSpan

FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "length",
        FinishReason.EOS: "eos_token",
        FinishReason.STOP_TOKEN: "stop_sequence",
        FinishReason.STOP_STRING: "stop_sequence",
        FinishReason.CONSTRAINT_COMPLETE: "eos_token",
        FinishReason.DEADLINE: "deadline",
        # No request of TGI's can ask for a pause; it would be a limit on tokens.
        FinishReason.PAUSED: "length",
    }
)
_SPANS_AT_ONCE = 2000


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
        "finish_reason": FINISH_REASONS[end.reason],
        "generated_tokens": end.num_generated_tokens,
        "seed": end.seed,
        **constraint_fields(end),
        "prefill": [
            {"id": token.token_id, "text": token.text, "logprob": token.logprob}
            for token in prefill
        ],
        "tokens": [token_fields(event.token) for event in completion.tokens],
    }
    if any(event.top_tokens for event in completion.tokens):
        details["top_tokens"] = [
            [token_fields(token) for token in event.top_tokens] for event in completion.tokens
        ]
    return details


def token_fields(token: TokenLogprob) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "text": token.text,
        "logprob": token.logprob,
        "special": token.special,
    }


async def spans_json(spans: Sequence[TokenSpan]) -> bytes:
    """The tokens of a text as JSON, for the routes that tokenize."""
    if len(spans) <= _SPANS_AT_ONCE:
        return _spans_json(spans)
    # A body can hold a million tokens: they are written in pieces, beside the event loop.
    return await asyncio.to_thread(_many_spans_json, spans)


def _many_spans_json(spans: Sequence[TokenSpan]) -> bytes:
    starts = range(0, len(spans), _SPANS_AT_ONCE)
    pieces = (_spans_json(spans[start : start + _SPANS_AT_ONCE])[1:-1] for start in starts)
    return b"[" + b",".join(pieces) + b"]"


def _spans_json(spans: Sequence[TokenSpan]) -> bytes:
    return orjson.dumps(
        [
            {"id": span.token_id, "text": span.text, "start": span.start, "stop": span.stop}
            for span in spans
        ]
    )
