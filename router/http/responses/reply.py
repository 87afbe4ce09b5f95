"""The Response object and its output items."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from proto.contract import FinishReason
from router.http.logprobs import ChatLogprobs
from router.http.responses.items import (
    FunctionCall,
    MessageItem,
    message_fields,
    new_item_id,
    output_part,
)
from router.http.responses.schema import ResponseBody, echoed_choice
from router.http.server_info import constraint_fields
from router.http.tools.calls import CallArguments, CallBegun, CallFormat, TextPiece
from router.http.tools.calls import Piece as Read
from router.request.request import Finished, TokenGenerated


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the message, with its tokens' log-probabilities."""

    text: str
    logprobs: list[dict[str, Any]]


Piece = Text | CallBegun | CallArguments


class Output:
    """One answer as it grows. Owner of its items.

    Without `calls` it is text. Of the tokens that are calls no log-probabilities are returned.
    """

    def __init__(self, calls: CallFormat | None, logprobs: ChatLogprobs | None) -> None:
        self.message_id = new_item_id("msg")
        self.calls: list[FunctionCall] = []
        self._call_format = calls
        self._reader = None if calls is None else calls.reader()
        self._logprobs = logprobs
        self._said: list[str] = []
        # Of the text so far, and of tokens whose text is held back.
        self._reported: list[dict[str, Any]] = []
        self._held: list[dict[str, Any]] = []

    def token(self, event: TokenGenerated) -> list[Piece]:
        """What a token tells."""
        if self._logprobs is not None:
            self._held += logprobs_of((event,), self._logprobs)
        return self._take(event.text)

    def finish(self, end: Finished) -> list[Piece]:
        """What was held back."""
        pieces = self._take(end.tail) if end.tail else []
        if self._reader is not None:
            pieces += [self._piece(read) for read in self._reader.finish()]
        if not self._calls_have_begun:
            self._reported += self._held
        return pieces

    @property
    def has_begun(self) -> bool:
        """Whether there is any of it yet."""
        return bool(self._said or self.calls)

    def whole(self, tokens: Sequence[TokenGenerated], end: Finished) -> None:
        """All of an answer at once."""
        for event in tokens:
            self.token(event)
        self.finish(end)

    def settled(self, end: Finished) -> Finished:
        """The end as clients see it, once all is taken."""
        return end if self._reader is None else self._reader.settled(end)

    def items(self, status: str) -> tuple[MessageItem | FunctionCall, ...]:
        """What there is so far; `status` is that of an answer that ends here."""
        calls = list(self.calls)
        if calls and self._reader is not None and self._reader.is_cut:
            calls[-1] = replace(calls[-1], status="incomplete")
        said = "".join(self._said)
        if calls and not said:
            return tuple(calls)
        message = MessageItem(
            self.message_id, "assistant", (said,), "completed" if calls else status
        )
        return (message, *calls)

    def fields(self, status: str) -> list[dict[str, Any]]:
        """The items as OpenAI tells them."""
        return [self._fields(item) for item in self.items(status)]

    @property
    def _calls_have_begun(self) -> bool:
        return self._reader is not None and self._reader.has_begun

    def _take(self, text: str) -> list[Piece]:
        if self._reader is None:
            return [self._piece(TextPiece(text))] if text or self._held else []
        return [self._piece(read) for read in self._reader.push(text)]

    def _piece(self, read: Read) -> Piece:
        if isinstance(read, TextPiece):
            self._said.append(read.text)
            released, self._held = self._held, []
            self._reported += released
            return Text(read.text, released)
        if isinstance(read, CallBegun):
            assert self._call_format is not None
            call_id = self._call_format.new_id("call_")
            self.calls.append(FunctionCall(new_item_id("fc"), call_id, read.name, ""))
        else:
            call = self.calls[-1]
            self.calls[-1] = replace(call, arguments=call.arguments + read.text)
        return read

    def _fields(self, item: MessageItem | FunctionCall) -> dict[str, Any]:
        if not isinstance(item, MessageItem):
            return item.fields()
        parts = [output_part(item.parts[0], self._reported)]
        return message_fields(item.item_id, item.role, item.status, parts)


def logprobs_of(tokens: Sequence[TokenGenerated], logprobs: ChatLogprobs) -> list[dict[str, Any]]:
    """The log-probabilities of tokens as in chats, but that what is no text has no bytes."""
    entries: list[dict[str, Any]] = logprobs.of(tokens)["content"]
    for entry in entries:
        for token in (entry, *entry["top_logprobs"]):
            token["bytes"] = token["bytes"] or []
    return entries


_INCOMPLETE = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.DEADLINE: "deadline",
    # Nobody can ask for a pause here; it would be a limit on tokens.
    FinishReason.PAUSED: "max_output_tokens",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """One response to be. `created_s` is in Unix time."""

    response_id: str
    created_s: int
    model: str
    body: ResponseBody

    def in_progress(self) -> dict[str, Any]:
        """Before there is any output."""
        return self.unfinished("in_progress", [])

    def unfinished(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """While there is some, or where it was cancelled."""
        return self._fields(status, output)

    def failed(self, message: str) -> dict[str, Any]:
        """The bad end of a stream."""
        fields = self._fields("failed", [])
        return {**fields, "error": {"code": "server_error", "message": message}}

    def ended(
        self, end: Finished, output: list[dict[str, Any]], completed_s: int
    ) -> dict[str, Any]:
        """The whole response; `completed_s` is in Unix time."""
        reason = _INCOMPLETE.get(end.reason)
        fields = self._fields(status_of(end), output)
        return {
            **fields,
            "completed_at": None if reason else completed_s,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": _usage(end),
            **constraint_fields(end),
        }

    def _fields(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """All fields, in about OpenAI's order; what was not given has OpenAI's defaults."""
        body = self.body
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_s,
            "completed_at": None,
            "status": status,
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "prompt_cache_retention": body.prompt_cache_retention,
            "reasoning": {"effort": body.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.is_stored,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": _text(body),
            "tool_choice": echoed_choice(body.tool_choice),
            "tools": [tool.echoed() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
        }


def _text(body: ResponseBody) -> dict[str, Any]:
    form = None if body.text is None else body.text.format
    fields = {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)
    return {"format": fields, "verbosity": body.verbosity or "medium"}


def status_of(end: Finished) -> str:
    """OpenAI's word for how a response or its message ended."""
    return "incomplete" if end.reason in _INCOMPLETE else "completed"


def _usage(end: Finished) -> dict[str, Any]:
    """Nobody pays for what is put into the cache, and nothing is thought apart from the answer."""
    return {
        "input_tokens": end.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": end.num_generated_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.num_prompt_tokens + end.num_generated_tokens,
        "work_details": end.work.fields(),
    }
