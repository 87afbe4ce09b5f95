"""Anthropic's stream: typed events, each with its name on a line of its own.

    message_start content_block_start ping content_block_delta* content_block_stop message_delta
    message_stop, or error

What happens with every token is one constant, the text as JSON, and another constant.
"""

from typing import Any

import orjson

from router.http.anthropic.reply import ending, message, usage, usage_of
from router.http.server.errors import Problem
from router.request.errors import RouterError
from router.request.events import Finished, TokenGenerated

_BLOCK_START = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
    b'event: ping\ndata: {"type":"ping"}\n\n'
)
_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":'
)
_DELTA_END = b"}}\n\n"
_BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


class MessageWords:
    """The events of one message."""

    def __init__(self, message_id: str, model: str, num_prompt_tokens: int) -> None:
        self._message_id = message_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens

    def opening(self) -> bytes:
        """The message without its content. How much was cached shows at the end."""
        counts = usage(self._num_prompt_tokens, 0, 0)
        start = message(self._message_id, self._model, [], ending(None), counts)
        return _event("message_start", {"message": start}) + _BLOCK_START

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        return self._text(event.text)

    def finished(self, event: Finished) -> bytes:
        """What was held back, why it stopped, and the whole usage."""
        delta = _event("message_delta", {"delta": ending(event), "usage": usage_of(event)})
        return self._text(event.tail) + _BLOCK_STOP + delta + _STOP

    def failed(self, error: RouterError, problem: Problem) -> bytes:
        """An error event."""
        return b"event: error\ndata: " + problem.body + b"\n\n"

    def _text(self, text: str) -> bytes:
        return _DELTA + orjson.dumps(text) + _DELTA_END if text else b""


def _event(name: str, fields: dict[str, Any]) -> bytes:
    data = orjson.dumps({"type": name, **fields})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
