"""OpenAI's event streams: chunks of text and of tool calls, ended by `[DONE]`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import orjson

from router.http.errors import problem_of
from router.http.logprobs import ChatLogprobs
from router.http.openai.reply import FINISH_REASONS, Envelope, RunningUsage, Usage
from router.http.request_validator import RequestRecord
from router.http.server.errors import Dialect
from router.http.server_info import constraint_fields
from router.http.tools.calls import CallArguments, Calling, Piece, TextPiece
from router.request.errors import RouterError
from router.request.events import Event, Failed, Finished, PromptScored, TokenGenerated

_DONE = b"data: [DONE]\n\n"
# The end of a chunk, and of nothing else: JSON's texts hold no line breaks.
_NO_USAGE = b'"usage":null}\n\n'


class ChoiceFrames(Protocol):
    """The chunks of one choice; empty bytes when there is nothing to say."""

    def scored(self, event: PromptScored, /) -> bytes:
        """The prompt's log-probabilities."""

    def token(self, event: TokenGenerated, /) -> bytes:
        """A token."""

    def finished(self, event: Finished, /) -> bytes:
        """The end."""


class OpenAiFrames:
    """Frames of one stream. `choices` are in the order of the draws.

    With `running` each chunk tells the usage so far, in the place of null.
    """

    def __init__(
        self,
        record: RequestRecord,
        envelope: Envelope,
        choices: Sequence[ChoiceFrames],
        usage: Usage,
        *,
        includes_usage: bool,
        running: RunningUsage | None = None,
    ) -> None:
        self._exchange = record
        self._envelope = envelope
        self._choices = choices
        self._usage = usage
        self._includes_usage = includes_usage
        self._running = running

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """The chunks of what happened to a choice."""
        if self._running is not None:
            return b"".join([self._counted(index, event, self._running) for event in burst])
        if len(burst) == 1:
            return self._chunks(index, burst[0])
        return b"".join([self._chunks(index, event) for event in burst])

    def fail(self, error: RouterError) -> bytes:
        """An error event, then the end."""
        problem = problem_of(error, Dialect.OPENAI)
        self._exchange.error_type = problem.error_type
        return problem.frame() + _DONE

    def end(self) -> bytes:
        """The usage, if it was asked for, and the end."""
        if not self._includes_usage:
            return _DONE
        usage = orjson.dumps(self._usage.fields())
        return self._envelope.chunk_head() + b'],"usage":' + usage + b"}\n\n" + _DONE

    def _counted(self, index: int, event: Event, running: RunningUsage) -> bytes:
        if isinstance(event, TokenGenerated):
            running.add_token()
        usage = b'"usage":' + orjson.dumps(running.fields()) + b"}\n\n"
        return self._chunks(index, event).replace(_NO_USAGE, usage)

    def _chunks(self, index: int, event: Event) -> bytes:
        choice = self._choices[index]
        if isinstance(event, TokenGenerated):
            return choice.token(event)
        if isinstance(event, Finished):
            self._usage.add(index, event)
            self._exchange.finished(event)
            return choice.finished(event)
        if isinstance(event, Failed):
            raise event.error
        return choice.scored(event)


class ChatChoiceFrames:
    """The chunks of one choice: the role, deltas of text, the finish reason.

    With `prompt_ids` they go out with the role, and each token's id with the token. `echoed` is
    text that goes before the answer's.
    """

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        logprobs: ChatLogprobs | None,
        *,
        echoed: str,
        prompt_ids: tuple[int, ...] | None,
        has_usage: bool,
    ) -> None:
        head = envelope.chunk_head() + b'{"index":%d,"delta":' % index
        end = b',"usage":null}\n\n' if has_usage else b"}\n\n"
        tail = b"]" + end
        plain = b',"logprobs":null,"finish_reason":null}'
        fields = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        self._open = head + b'{"content":'
        self._plain = b"}" + plain + tail
        self._null_reason = b',"finish_reason":null'
        self._end = head + b'{},"logprobs":null,'
        self._tail = b"}" + tail
        self._logprobs = logprobs
        self._tells_ids = prompt_ids is not None
        # Sent with the first token, so that a client's first chunk means a first token.
        role = b'{"role":"assistant","content":"","refusal":null}'
        self._role = head + role + plain + b"]" + fields + end + self._text(echoed)

    def scored(self, event: PromptScored) -> bytes:
        """Nothing: streamed chats do not tell of their prompt."""
        return b""

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._logprobs is None and not self._tells_ids:
            return self._begin() + self._text(event.text)
        logprobs = b"null"
        if self._logprobs is not None:
            logprobs = orjson.dumps(self._logprobs.of([event]))
        ids = b',"token_ids":[%d]' % event.token.token_id if self._tells_ids else b""
        text = orjson.dumps(event.text)
        chunk = self._open + text + b'},"logprobs":' + logprobs + self._null_reason + ids
        return self._begin() + chunk + self._tail

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty delta with the reason."""
        reason = {"finish_reason": FINISH_REASONS[event.reason], **constraint_fields(event)}
        end = self._end + orjson.dumps(reason)[1:-1] + self._tail
        return self._begin() + self._text(event.tail) + end

    def _begin(self) -> bytes:
        role, self._role = self._role, b""
        return role

    def _text(self, text: str) -> bytes:
        return self._open + orjson.dumps(text) + self._plain if text else b""


_OLD_REASONS: Mapping[bool, str] = MappingProxyType({True: "function_call", False: "tool_calls"})


@dataclass(frozen=True, slots=True)
class ChatCalling:
    """How a chat's answer calls: in the new words or the old ones."""

    calling: Calling
    is_old: bool

    def reason(self, end: Finished, num_calls: int) -> str:
        """The finish reason: calls are one, unless they were cut. `end` is settled."""
        fields = FINISH_REASONS[end.reason]
        return _OLD_REASONS[self.is_old] if num_calls and fields == "stop" else fields

    def message(self, text: str, echoed: str) -> tuple[dict[str, Any], int]:
        """The message that a whole answer is, and how many calls it has."""
        said, calls = self.calling.read(text)
        content = echoed + said
        fields = [{"name": call.name, "arguments": call.arguments} for call in calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if calls else ""),
            "refusal": None,
        }
        if calls and self.is_old:
            message["function_call"] = fields[0]
        elif calls:
            message["tool_calls"] = [
                {"id": self.new_id(), "type": "function", "function": call} for call in fields
            ]
        return message, len(calls)

    def new_id(self) -> str:
        """What a call of this answer is called by."""
        return self.calling.new_id("call_")

    def delta(self, piece: Piece) -> dict[str, Any]:
        """What a piece adds to a message."""
        if isinstance(piece, TextPiece):
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
        fields = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        role = {"role": "assistant", "content": None, "refusal": None}
        self._role = self._chunk(role, after=fields)
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
        fields = self._chunk(first, logprobs=logprobs, ids=ids)
        return self._begin() + fields + b"".join([self._chunk(delta) for delta in others])

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty delta with the reason."""
        pieces = self._reader.push(event.tail) + self._reader.finish()
        rest = b"".join([self._chunk(self._calling.delta(piece)) for piece in pieces])
        reason = self._calling.reason(self._reader.settled(event), self._reader.num_calls)
        satisfied = constraint_fields(event)
        fields = orjson.dumps({"finish_reason": reason, **satisfied})[1:-1]
        last = self._head + b'{},"logprobs":null,' + fields + b"}]" + self._end
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
