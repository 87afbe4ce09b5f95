"""Answers that may call tools: whole messages, and the chunks of a stream.

What is text and what is a call, `CallReader` tells; here it gets OpenAI's words, the present ones
(`tool_calls`) or the old ones (`function_call`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from router.http.openai.logprobs import ChatLogprobs
from router.http.openai.reply import FINISH_REASONS, Envelope
from router.http.server_info import constraint_fields
from router.http.tools.calls import CallArguments, Calling, Piece, Said
from router.request.events import Finished, PromptScored, TokenGenerated

_OLD_REASONS: Mapping[bool, str] = MappingProxyType({True: "function_call", False: "tool_calls"})


@dataclass(frozen=True, slots=True)
class ChatCalling:
    """How a chat's answer calls: in the new words or the old ones."""

    calling: Calling
    is_old: bool

    def reason(self, end: Finished, num_calls: int) -> str:
        """The finish reason: calls are one, unless they were cut. `end` is settled."""
        told = FINISH_REASONS[end.reason]
        return _OLD_REASONS[self.is_old] if num_calls and told == "stop" else told

    def message(self, text: str, echoed: str) -> tuple[dict[str, Any], int]:
        """The message that a whole answer is, and how many calls it has."""
        said, calls = self.calling.read(text)
        content = echoed + said
        told = [{"name": call.name, "arguments": call.arguments} for call in calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if calls else ""),
            "refusal": None,
        }
        if calls and self.is_old:
            message["function_call"] = told[0]
        elif calls:
            message["tool_calls"] = [
                {"id": self.new_id(), "type": "function", "function": call} for call in told
            ]
        return message, len(calls)

    def new_id(self) -> str:
        """What a call of this answer is called by."""
        return self.calling.new_id("call_")

    def delta(self, piece: Piece) -> dict[str, Any]:
        """What a piece adds to a message."""
        if isinstance(piece, Said):
            return {"content": piece.text}
        if isinstance(piece, CallArguments):
            added: dict[str, Any] = {"arguments": piece.text}
            if self.is_old:
                return {"function_call": added}
            return {"tool_calls": [{"index": piece.index, "function": added}]}
        begun = {"name": piece.name, "arguments": ""}
        if self.is_old:
            return {"function_call": begun}
        call = {
            "index": piece.index,
            "id": self.new_id(),
            "type": "function",
            "function": begun,
        }
        return {"tool_calls": [call]}


class CallingFrames:
    """The chunks of one choice that may call: the role, text, calls and their arguments."""

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        calling: ChatCalling,
        logprobs: ChatLogprobs | None,
        *,
        echoed: str,
        prompt_ids: tuple[int, ...] | None,
        has_usage: bool,
    ) -> None:
        self._head = envelope.chunk_head() + b'{"index":%d,"delta":' % index
        self._end = b',"usage":null}\n\n' if has_usage else b"}\n\n"
        self._calling = calling
        self._reader = calling.calling.reader()
        self._logprobs = logprobs
        self._tells_ids = prompt_ids is not None
        told = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        role = {"role": "assistant", "content": None, "refusal": None}
        self._role = self._chunk(role, after=told)
        if echoed:
            self._role += self._chunk({"content": echoed})

    def scored(self, event: PromptScored) -> bytes:
        """Nothing: streamed chats do not tell of their prompt."""
        return b""

    def token(self, event: TokenGenerated) -> bytes:
        """What the token tells; what is asked of the token itself goes with the first chunk."""
        deltas = [self._calling.delta(piece) for piece in self._reader.push(event.text)]
        if self._logprobs is None and not self._tells_ids:
            return self._begin() + b"".join([self._chunk(delta) for delta in deltas])
        logprobs, ids = b"null", b""
        if self._logprobs is not None:
            logprobs = orjson.dumps(self._logprobs.of([event]))
        if self._tells_ids:
            ids = b',"token_ids":[%d]' % event.token.token_id
        first, *others = deltas or [{}]
        told = self._chunk(first, logprobs=logprobs, ids=ids)
        return self._begin() + told + b"".join([self._chunk(delta) for delta in others])

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty delta with the reason."""
        pieces = self._reader.push(event.tail) + self._reader.finish()
        rest = b"".join([self._chunk(self._calling.delta(piece)) for piece in pieces])
        reason = self._calling.reason(self._reader.settled(event), self._reader.num_calls)
        satisfied = constraint_fields(event)
        told = orjson.dumps({"finish_reason": reason, **satisfied})[1:-1]
        last = self._head + b'{},"logprobs":null,' + told + b"}]" + self._end
        return self._begin() + rest + last

    def _begin(self) -> bytes:
        role, self._role = self._role, b""
        return role

    def _chunk(
        self,
        delta: Mapping[str, Any],
        *,
        logprobs: bytes = b"null",
        ids: bytes = b"",
        after: bytes = b"",
    ) -> bytes:
        return (
            self._head
            + orjson.dumps(delta)
            + b',"logprobs":'
            + logprobs
            + b',"finish_reason":null'
            + ids
            + b"}]"
            + after
            + self._end
        )
