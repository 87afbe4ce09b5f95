"""Parts of OpenAI's replies and chunks: envelope, usage, finish reasons, calls of tools."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from proto.contract import FinishReason
from router.engine.infer import Completion
from router.http.logprobs import prompt_logprobs
from router.http.openai.fields import OpenAiBody
from router.http.tools.calls import CallArguments, CallFormat, Piece, TextPiece
from router.request.request import NO_WORK, Finished, GenerateRequest

_CALL_ID_PREFIX = "call_"
FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "length",
        FinishReason.EOS: "stop",
        FinishReason.STOP_TOKEN: "stop",
        FinishReason.STOP_STRING: "stop",
        FinishReason.CONSTRAINT_COMPLETE: "stop",
        FinishReason.DEADLINE: "deadline",
        # Nobody can ask for a pause here; it would be a limit on tokens.
        FinishReason.PAUSED: "length",
    }
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every reply or chunk of one record repeats. `created_s` is in Unix time.

    `service_tier` is the one that served, shown to clients that chose one.
    """

    reply_id: str
    kind: str
    created_s: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None

    def fields(self) -> dict[str, Any]:
        """The envelope's own fields, in OpenAI's order."""
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        return {
            "id": self.reply_id,
            "object": self.kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            **tier,
        }

    def chunk_head(self) -> bytes:
        """The beginning of a chunk's frame, up to where its choices go."""
        return b"data: " + orjson.dumps(self.fields())[:-1] + b',"choices":['


class Usage:
    """Counts tokens over the draws of one call: a prompt once, however many its draws are.

    Without `counts_generated` the drawn tokens are dropped, and do not count.
    """

    def __init__(self, num_draws: int, *, counts_generated: bool = True) -> None:
        self._num_draws = num_draws
        self.counts_generated = counts_generated
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generated_tokens = 0
        self._work = NO_WORK

    @property
    def num_generated_tokens(self) -> int:
        """The drawn tokens that count."""
        return self._num_generated_tokens

    def add(self, index: int, end: Finished) -> None:
        """A draw's end; draws are numbered prompt by prompt."""
        if index % self._num_draws == 0:
            self._num_prompt_tokens += end.num_prompt_tokens
            self._num_cached_tokens += end.num_cached_tokens
        self._work = self._work.plus(end.work)
        if self.counts_generated:
            self._num_generated_tokens += end.num_generated_tokens

    def fields(self) -> dict[str, Any]:
        """OpenAI's fields, and ours. There is no audio, no prediction and no reasoning."""
        return {
            **token_counts(self._num_prompt_tokens, self._num_generated_tokens),
            "prompt_tokens_details": {"cached_tokens": self._num_cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
            "work_details": self._work.fields(),
        }


def token_counts(num_prompt_tokens: int, num_generated_tokens: int) -> dict[str, Any]:
    """The usage without details, as vLLM has it in each chunk."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_generated_tokens,
        "total_tokens": num_prompt_tokens + num_generated_tokens,
    }


def prompt_fields(
    body: OpenAiBody, request: GenerateRequest, completion: Completion
) -> dict[str, Any]:
    """vLLM's fields about the prompt, as far as `body` asks for them."""
    fields: dict[str, Any] = {}
    if body.prompt_logprobs is not None and completion.prompt is not None:
        fields["prompt_logprobs"] = prompt_logprobs(completion.prompt, body.prompt_logprobs)
    if body.return_token_ids:
        fields["prompt_token_ids"] = request.prompt_ids
    return fields


def completion_reason(end: Finished, *, only_scores: bool) -> str:
    """The finish reason of a completion; where only the prompt is scored, its token is dropped."""
    if only_scores and end.reason is not FinishReason.DEADLINE:
        return FINISH_REASONS[FinishReason.LENGTH]
    return FINISH_REASONS[end.reason]


def calls_reason(end: Finished, num_calls: int) -> str:
    """The finish reason: that of calls, unless they were cut. `end` is settled."""
    reason = FINISH_REASONS[end.reason]
    return "tool_calls" if num_calls and reason == "stop" else reason


def calls_message(calls: CallFormat, text: str, echoed: str) -> tuple[dict[str, Any], int]:
    """The message of a whole answer that may call, and its number of calls."""
    said, found = calls.read(text)
    content = echoed + said
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or (None if found else ""),
        "refusal": None,
    }
    if found:
        message["tool_calls"] = [
            {
                "id": calls.new_id(_CALL_ID_PREFIX),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in found
        ]
    return message, len(found)


def calls_delta(calls: CallFormat, piece: Piece) -> dict[str, Any]:
    """The delta of a piece of an answer that may call."""
    if isinstance(piece, TextPiece):
        return {"content": piece.text}
    if isinstance(piece, CallArguments):
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}
    call = {
        "index": piece.index,
        "id": calls.new_id(_CALL_ID_PREFIX),
        "type": "function",
        "function": {"name": piece.name, "arguments": ""},
    }
    return {"tool_calls": [call]}
