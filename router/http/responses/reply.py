"""The Response object, its output items, and its stream: typed, numbered, named events.

    created in_progress (output_item.added ... output_item.done)+ (completed | incomplete)
      a message:  content_part.added output_text.delta* output_text.done content_part.done
      a call:     function_call_arguments.delta* function_call_arguments.done
    or, at any time, error failed

What happens with every token is a constant, the text as JSON, and its number. No `[DONE]`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from proto.contract import FinishReason
from router.http.errors import Problem
from router.http.logprobs import ChatLogprobs
from router.http.responses.schema import (
    FunctionCall,
    MessageItem,
    ResponseBody,
    echoed_choice,
    message_fields,
    new_item_id,
    output_part,
)
from router.http.server_info import constraint_fields
from router.http.tools.calls import CallArguments, CallBegun, CallFormat, TextPiece
from router.http.tools.calls import Piece as Read
from router.request.errors import RouterError
from router.request.request import Finished, TokenGenerated

_INCOMPLETE = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.DEADLINE: "deadline",
    # Nobody can ask for a pause here; it would be a limit on tokens.
    FinishReason.PAUSED: "max_output_tokens",
}


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
            released = self._held
            self._held = []
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


@dataclass(frozen=True, slots=True)
class Reply:
    """One response to be. `created_s` is in Unix time."""

    response_id: str
    created_s: int
    model: str
    body: ResponseBody

    def failed(self, message: str) -> dict[str, Any]:
        """The bad end of a stream."""
        fields = self.fields("failed", [])
        return {**fields, "error": {"code": "server_error", "message": message}}

    def ended(
        self, end: Finished, output: list[dict[str, Any]], completed_s: int
    ) -> dict[str, Any]:
        """The whole response; `completed_s` is in Unix time."""
        reason = _INCOMPLETE.get(end.reason)
        fields = self.fields(status_of(end), output)
        return {
            **fields,
            "completed_at": None if reason else completed_s,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": _usage(end),
            **constraint_fields(end),
        }

    def fields(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """All fields of a response that has not ended, in about OpenAI's order.

        What was not given has OpenAI's defaults.
        """
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
            "tools": [tool.echoed() for tool in body.functions.values()],
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


class ResponseEncoder:
    """The events of one response.

    `keep` gets the response as it ended, with its status, before the client.
    """

    def __init__(
        self,
        reply: Reply,
        output: Output,
        keep: Callable[[dict[str, Any], str], None],
    ) -> None:
        self._reply = reply
        self._output = output
        self._keep = keep
        self._num_items = 0
        self._num_events = 0
        place = orjson.dumps(self._part_place())
        self._delta = (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            + place[1:-1]
            + b',"delta":'
        )

    def opening(self) -> bytes:
        """The response without output, twice: it was made, it has begun."""
        response = {"response": self._reply.fields("in_progress", [])}
        return self._event("response.created", response) + self._event(
            "response.in_progress", response
        )

    def token(self, event: TokenGenerated) -> bytes:
        """What the token tells; nothing while it is held back."""
        return b"".join([self._events_of(piece) for piece in self._output.token(event)])

    def finished(self, event: Finished) -> bytes:
        """What was held back, then the open item and the response, whole."""
        events = [self._events_of(piece) for piece in self._output.finish(event)]
        if self._num_items == 0:
            events.append(self._begin_message())
        end = self._output.settled(event)
        status = status_of(end)
        output = self._output.fields(status)
        events.append(self._close(output))
        response = self._reply.ended(end, output, int(time.time()))
        self._keep(response, status)
        events.append(self._event(f"response.{status}", {"response": response}))
        return b"".join(events)

    def failed(self, error: RouterError, problem: Problem) -> bytes:
        """An error event, then the response as failed."""
        fault = {"code": problem.error_type, "message": str(error), "param": None}
        response = self._reply.failed(str(error))
        self._keep(response, "failed")
        return self._event("error", fault) + self._event("response.failed", {"response": response})

    def _events_of(self, piece: Piece) -> bytes:
        if isinstance(piece, Text):
            return self._text(piece)
        if isinstance(piece, CallBegun):
            return self._begin_call(piece.index)
        item_id = self._output.calls[piece.index].item_id
        place = {"item_id": item_id, "output_index": self._num_items - 1}
        return self._event("response.function_call_arguments.delta", place | {"delta": piece.text})

    def _text(self, piece: Text) -> bytes:
        begin = b"" if self._num_items else self._begin_message()
        number = self._num_events
        self._num_events += 1
        return b'%b%b%b,"logprobs":%b,"sequence_number":%d}\n\n' % (
            begin,
            self._delta,
            orjson.dumps(piece.text),
            orjson.dumps(piece.logprobs),
            number,
        )

    def _begin_message(self) -> bytes:
        """The message and its part, before their first text."""
        item = message_fields(self._output.message_id, "assistant", "in_progress", [])
        added = {**self._part_place(), "part": output_part("", [])}
        return self._begin(item) + self._event("response.content_part.added", added)

    def _begin_call(self, index: int) -> bytes:
        """A call without its arguments, after the end of what came before it."""
        closed = self._close(self._output.fields("completed"))
        call = replace(self._output.calls[index], arguments="", status="in_progress")
        return closed + self._begin(call.fields())

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._num_items += 1
        place = {"output_index": self._num_items - 1, "item": item}
        return self._event("response.output_item.added", place)

    def _close(self, output: list[dict[str, Any]]) -> bytes:
        """The end of the last item that was begun, which is whole in `output`."""
        if self._num_items == 0:
            return b""
        item = output[self._num_items - 1]
        place = {"item_id": item["id"], "output_index": self._num_items - 1}
        if item["type"] == "function_call":
            done = {**place, "name": item["name"], "arguments": item["arguments"]}
            ends = self._event("response.function_call_arguments.done", done)
        else:
            (part,) = item["content"]
            events = {"text": part["text"], "logprobs": part["logprobs"]}
            place = self._part_place()
            ends = self._event("response.output_text.done", place | events)
            ends += self._event("response.content_part.done", place | {"part": part})
        done = {"output_index": self._num_items - 1, "item": item}
        return ends + self._event("response.output_item.done", done)

    def _part_place(self) -> dict[str, Any]:
        """Of the one part of the message, which is the first item if there is one."""
        return {"item_id": self._output.message_id, "output_index": 0, "content_index": 0}

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": name, **fields, "sequence_number": self._num_events})
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
