"""The events of an answer by Anthropic's Messages, with and without tool calls."""

from typing import Any

import orjson

from router.http.anthropic.reply import ending, message, usage, usage_of
from router.http.server.errors import Problem
from router.http.tools.calls import CallArguments, CallBegun, Calling, Piece
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


class MessageEncoder:
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


_PREFIX = "toolu_"


def content_of(text: str, calling: Calling) -> tuple[list[dict[str, Any]], int]:
    """The blocks of a whole answer, and how many of them call.

    A call that was cut is none: its input is no object. Nor is one with a number that no float is.
    """
    said, calls = calling.read(text)
    blocks = [
        {"type": "tool_use", "id": calling.new_id(_PREFIX), "name": call.name, "input": given}
        for call in calls
        if call.is_whole and (given := _input_of(call.arguments)) is not None
    ]
    spoken = [{"type": "text", "text": said}] if said or not blocks else []
    return [*spoken, *blocks], len(blocks)


def _input_of(arguments: str) -> Any:
    """None where a grammar's JSON is not that of who reads it: 1e999."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None


def calling_ending(end: Finished, num_calls: int) -> dict[str, Any]:
    """Why it stopped: to have its tools used, unless it was cut. `end` is settled."""
    fields = ending(end)
    if num_calls and fields["stop_reason"] == "end_turn":
        fields["stop_reason"] = "tool_use"
    return fields


class ToolUseEncoder:
    """The events of one message that may call."""

    def __init__(
        self, message_id: str, model: str, num_prompt_tokens: int, calling: Calling
    ) -> None:
        self._message_id = message_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._calling = calling
        self._reader = calling.reader()
        # The kind of the block that is open, and how many there were.
        self._open: str | None = None
        self._num_blocks = 0

    def opening(self) -> bytes:
        """The message without its content. How much was cached shows at the end."""
        counts = usage(self._num_prompt_tokens, 0, 0)
        start = message(self._message_id, self._model, [], ending(None), counts)
        return _event("message_start", {"message": start}) + _event("ping", {})

    def token(self, event: TokenGenerated) -> bytes:
        """What the token tells."""
        return b"".join([self._told(piece) for piece in self._reader.push(event.text)])

    def finished(self, event: Finished) -> bytes:
        """What was held back, why it stopped, and the whole usage."""
        pieces = self._reader.push(event.tail) + self._reader.finish()
        rest = b"".join([self._told(piece) for piece in pieces])
        if self._num_blocks == 0:
            rest += self._begin("text", {"type": "text", "text": ""})
        stopped = calling_ending(self._reader.settled(event), self._reader.num_calls)
        delta = _event("message_delta", {"delta": stopped, "usage": usage_of(event)})
        return rest + self._close() + delta + _event("message_stop", {})

    def failed(self, error: RouterError, problem: Problem) -> bytes:
        """An error event."""
        return b"event: error\ndata: " + problem.body + b"\n\n"

    def _told(self, piece: Piece) -> bytes:
        if isinstance(piece, CallArguments):
            return self._delta({"type": "input_json_delta", "partial_json": piece.text})
        if isinstance(piece, CallBegun):
            block = {"type": "tool_use", "id": self._calling.new_id(_PREFIX), "name": piece.name}
            return self._begin("tool_use", {**block, "input": {}})
        begun = b""
        if self._open != "text":
            begun = self._begin("text", {"type": "text", "text": ""})
        return begun + self._delta({"type": "text_delta", "text": piece.text})

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._open = kind
        self._num_blocks += 1
        place = {"index": self._num_blocks - 1, "content_block": block}
        return closed + _event("content_block_start", place)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._num_blocks - 1, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", {"index": self._num_blocks - 1})
