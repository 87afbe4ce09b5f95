"""Anthropic's Message: its content, its end and its usage."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from proto.contract import FinishReason
from router.http.tools.calls import CallFormat
from router.request.request import Finished

TOOL_ID_PREFIX = "toolu_"
STOP_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "max_tokens",
        FinishReason.EOS: "end_turn",
        FinishReason.STOP_TOKEN: "end_turn",
        FinishReason.STOP_STRING: "stop_sequence",
        FinishReason.CONSTRAINT_COMPLETE: "end_turn",
        # The answer goes on when it is sent back as the last message.
        FinishReason.DEADLINE: "pause_turn",
        FinishReason.PAUSED: "pause_turn",
    }
)


def message(
    message_id: str,
    model: str,
    content: list[dict[str, Any]],
    ending: Mapping[str, Any],
    usage: Mapping[str, int],
) -> dict[str, Any]:
    """A Message, with its fields in Anthropic's order."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **ending,
        "usage": usage,
    }


def ending(end: Finished | None, num_calls: int = 0) -> dict[str, Any]:
    """The fields of the end, null while there is none: with calls, to have its tools used.

    Under a constraint, also whether the text satisfies it. `end` is settled.
    """
    satisfied = None if end is None else end.constraint_satisfied
    constraint = {} if satisfied is None else {"constraint_satisfied": satisfied}
    reason = None if end is None else STOP_REASONS[end.reason]
    return {
        "stop_reason": "tool_use" if num_calls and reason == "end_turn" else reason,
        "stop_sequence": None if end is None else end.stop_string,
        **constraint,
    }


def content_of(text: str, calls: CallFormat | None) -> tuple[list[dict[str, Any]], int]:
    """The blocks of a whole answer, and how many of them are calls.

    A call that was cut is none: its input is no object. Nor is one with a number beyond floats.
    """
    if calls is None:
        return [{"type": "text", "text": text}], 0
    said, found = calls.read(text)
    blocks = [
        {"type": "tool_use", "id": calls.new_id(TOOL_ID_PREFIX), "name": call.name, "input": given}
        for call in found
        if call.is_whole and (given := _input_of(call.arguments)) is not None
    ]
    texts = [{"type": "text", "text": said}] if said or not blocks else []
    return [*texts, *blocks], len(blocks)


def _input_of(arguments: str) -> Any:
    """The arguments; None where the grammar's JSON is not orjson's: 1e999."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None


def usage(num_prompt_tokens: int, num_cached_tokens: int, num_generated_tokens: int) -> Any:
    """Anthropic counts cached tokens beside the others, not among them.

    What is put into the cache is not distinguished from what is computed.
    """
    return {
        "input_tokens": num_prompt_tokens - num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached_tokens,
        "output_tokens": num_generated_tokens,
    }


def usage_of(end: Finished) -> Any:
    """The usage of a finished answer."""
    return usage(end.num_prompt_tokens, end.num_cached_tokens, end.num_generated_tokens)
