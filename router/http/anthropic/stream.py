"""The events of an answer by Anthropic's Messages: blocks of text and of calls of tools."""

from typing import Any

import orjson

from router.http.anthropic.reply import TOOL_ID_PREFIX, ending, message, usage, usage_of
from router.http.server.errors import Problem
from router.http.tools.calls import CallArguments, CallFormat, Piece, TextPiece
from router.request.errors import RouterError
from router.request.request import Finished, TokenGenerated

_TEXT_BLOCK = {"type": "text", "text": ""}


class MessageEncoder:
    """Encodes the events of one message. Without `calls` it is one block of text."""

    def __init__(
        self, message_id: str, model: str, num_prompt_tokens: int, calls: CallFormat | None
    ) -> None:
        self._message_id = message_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._calls = calls
        self._reader = None if calls is None else calls.reader()
        # The type of the open block, and the number of blocks so far.
        self._open: str | None = None
        self._num_blocks = 0

    def opening(self) -> bytes:
        """The message without its content. The number of cached tokens comes at the end."""
        counts = usage(self._num_prompt_tokens, 0, 0)
        start = message(self._message_id, self._model, [], ending(None), counts)
        block = self._start_block(_TEXT_BLOCK) if self._reader is None else b""
        return _event("message_start", {"message": start}) + block + _event("ping", {})

    def token(self, event: TokenGenerated) -> bytes:
        """The text and calls that the token completes; nothing while they are held back."""
        return self._text_or_calls(event.text)

    def finished(self, event: Finished) -> bytes:
        """What was held back, why it stopped, and the whole usage."""
        rest, end, num_calls = self._text_or_calls(event.tail), event, 0
        if self._reader is not None:
            rest += b"".join([self._piece(piece) for piece in self._reader.finish()])
            end, num_calls = self._reader.settled(event), self._reader.num_calls
        if self._num_blocks == 0:
            rest += self._start_block(_TEXT_BLOCK)
        fields = {"delta": ending(end, num_calls), "usage": usage_of(event)}
        return b"".join(
            [rest, self._stop_block(), _event("message_delta", fields), _event("message_stop", {})]
        )

    def failed(self, error: RouterError, problem: Problem) -> bytes:
        """An error event."""
        return b"event: error\ndata: " + problem.body + b"\n\n"

    def _text_or_calls(self, text: str) -> bytes:
        if self._reader is None:
            return self._piece(TextPiece(text)) if text else b""
        return b"".join([self._piece(piece) for piece in self._reader.push(text)])

    def _piece(self, piece: Piece) -> bytes:
        if isinstance(piece, TextPiece):
            begun = b"" if self._open == "text" else self._start_block(_TEXT_BLOCK)
            return begun + self._delta({"type": "text_delta", "text": piece.text})
        if isinstance(piece, CallArguments):
            return self._delta({"type": "input_json_delta", "partial_json": piece.text})
        assert self._calls is not None
        call_id = self._calls.new_id(TOOL_ID_PREFIX)
        return self._start_block(
            {"type": "tool_use", "id": call_id, "name": piece.name, "input": {}}
        )

    def _start_block(self, block: dict[str, Any]) -> bytes:
        stopped = self._stop_block()
        self._open = block["type"]
        self._num_blocks += 1
        fields = {"index": self._num_blocks - 1, "content_block": block}
        return stopped + _event("content_block_start", fields)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._num_blocks - 1, "delta": delta})

    def _stop_block(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", {"index": self._num_blocks - 1})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    data = orjson.dumps({"type": name, **fields})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
