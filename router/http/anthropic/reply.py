"""Anthropic's Message: what a whole answer is, and what a stream of events adds up to."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from proto.contract import FinishReason
from router.request.events import Finished

STOP_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "max_tokens",
        FinishReason.EOS: "end_turn",
        FinishReason.STOP_TOKEN: "end_turn",
        FinishReason.STOP_STRING: "stop_sequence",
        FinishReason.CONSTRAINT_COMPLETE: "end_turn",
        # Of Anthropic's words the one that says: send it back as the last message, and it goes on.
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


def ending(end: Finished | None) -> dict[str, Any]:
    """Why it stopped, None while it has not; under a constraint, whether the text satisfies it."""
    satisfied = None if end is None else end.constraint_satisfied
    constraint = {} if satisfied is None else {"constraint_satisfied": satisfied}
    return {
        "stop_reason": None if end is None else STOP_REASONS[end.reason],
        "stop_sequence": None if end is None else end.stop_string,
        **constraint,
    }


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
