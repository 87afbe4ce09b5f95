"""The Response object, its output items, and its stream: typed, numbered, named events.

    created in_progress (output_item.added ... output_item.done)+ (completed | incomplete)
      a thought:  reasoning_text.delta* reasoning_text.done
      a message:  content_part.added output_text.delta* output_text.done content_part.done
      a call:     function_call_arguments.delta* function_call_arguments.done
    or, at any time, error failed

What happens with every token is a constant, the text as JSON, and its number. No `[DONE]`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

import orjson

from proto.contract import FinishReason
from router.http.answers import Reading, new_id
from router.http.errors import Problem
from router.http.images import text_of
from router.http.logprobs import ChatLogprobs
from router.http.responses.schema import (
    FunctionCall,
    MessageItem,
    ReasoningItem,
    ResponseBody,
    echoed_choice,
    message_fields,
    output_part,
    reasoning_fields,
)
from router.http.server_info import constraint_fields
from router.request.errors import RouterError
from router.request.request import Finished, TokenGenerated
from router.text.answer_reader import CallArguments, CallBegun, TextPiece, ThoughtPiece
from router.text.answer_reader import Piece as Read

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


Piece = ThoughtPiece | Text | CallBegun | CallArguments


class _Growing:
    """A thought or a message as it grows; `reported` are its tokens' log-probabilities."""

    def __init__(self, item_id: str) -> None:
        self.item_id = item_id
        self.texts: list[str] = []
        self.reported: list[dict[str, Any]] = []


class _Thought(_Growing):
    def item(self, status: str) -> ReasoningItem:
        return ReasoningItem(self.item_id, "".join(self.texts), status)


class _Message(_Growing):
    def item(self, status: str) -> MessageItem:
        return MessageItem(self.item_id, "assistant", ("".join(self.texts),), status)


_G = TypeVar("_G", _Thought, _Message)


class Output:
    """One answer as it grows. Owner of its items.

    Without `reading` it is text. Of the tokens that are thoughts or calls no log-probabilities are
    returned. `shows_encrypted`: thoughts also as clients send them back.
    """

    def __init__(
        self,
        reading: Reading | None,
        logprobs: ChatLogprobs | None,
        ids: Random,
        *,
        shows_encrypted: bool = False,
    ) -> None:
        self._reading = reading
        self._reader = None if reading is None else reading.reader()
        self._logprobs = logprobs
        self._ids = ids
        self._shows_encrypted = shows_encrypted
        self._parts: list[_Thought | _Message | FunctionCall] = []
        # Of tokens whose text is held back.
        self._held: list[dict[str, Any]] = []

    def token(self, event: TokenGenerated) -> list[Piece]:
        """What a token tells."""
        if self._logprobs is not None:
            self._held += logprobs_of((event,), self._logprobs)
        if self._reader is None:
            text = event.text
            return [self._piece(TextPiece(text))] if text or self._held else []
        pieces = [self._piece(read) for read in self._reader.token(event)]
        if self._reader.in_thought:
            self._held = []
        return pieces

    def finish(self, end: Finished) -> list[Piece]:
        """What was held back."""
        if self._reader is None:
            pieces = [self._piece(TextPiece(end.tail))] if end.tail else []
        else:
            pieces = [self._piece(read) for read in self._reader.finish(end)]
        if not self._parts:
            self._parts.append(_Message(self._new_id("msg")))
        last = self._parts[-1]
        has_begun_calls = self._reader is not None and self._reader.has_begun_calls
        if isinstance(last, _Message) and not has_begun_calls:
            last.reported += self._held
        return pieces

    @property
    def has_begun(self) -> bool:
        """Whether there is any of it yet."""
        return bool(self._parts)

    @property
    def num_thought_tokens(self) -> int:
        return 0 if self._reader is None else self._reader.num_thought_tokens

    def whole(self, tokens: Sequence[TokenGenerated], end: Finished) -> None:
        """All of an answer at once."""
        for event in tokens:
            self.token(event)
        self.finish(end)

    def settled(self, end: Finished) -> Finished:
        """The end as clients see it, once all is taken."""
        return end if self._reader is None else self._reader.settled(end)

    def begun(self, index: int) -> dict[str, Any]:
        """An item as OpenAI tells it when it begins: nothing is in it yet."""
        part = self._parts[index]
        if isinstance(part, FunctionCall):
            return replace(part, arguments="", status="in_progress").fields()
        if isinstance(part, _Message):
            return message_fields(part.item_id, "assistant", "in_progress", [])
        return reasoning_fields(ReasoningItem(part.item_id, "", "in_progress"))

    def items(self, status: str) -> tuple[ReasoningItem | MessageItem | FunctionCall, ...]:
        """What there is so far; `status` is that of an answer that ends here."""
        items: list[ReasoningItem | MessageItem | FunctionCall] = []
        for part in self._parts:
            is_last = part is self._parts[-1]
            if not isinstance(part, FunctionCall):
                items.append(part.item(status if is_last else "completed"))
            elif is_last and self._reader is not None and self._reader.is_cut:
                items.append(replace(part, status="incomplete"))
            else:
                items.append(part)
        return tuple(items)

    def fields(self, status: str) -> list[dict[str, Any]]:
        """The items as OpenAI tells them."""
        pairs = zip(self._parts, self.items(status), strict=True)
        return [self._fields(part, item) for part, item in pairs]

    def _piece(self, read: Read) -> Piece:
        if isinstance(read, ThoughtPiece):
            self._growing(_Thought, "rs").texts.append(read.text)
            self._held = []
            return read
        if isinstance(read, TextPiece):
            message = self._growing(_Message, "msg")
            message.texts.append(read.text)
            released = self._held
            self._held = []
            message.reported += released
            return Text(read.text, released)
        if isinstance(read, CallBegun):
            assert self._reading is not None
            call_id = self._reading.call_id("call_", read, self._ids)
            self._parts.append(FunctionCall(self._new_id("fc"), call_id, read.name, ""))
        else:
            call = self._parts[-1]
            assert isinstance(call, FunctionCall)
            self._parts[-1] = replace(call, arguments=call.arguments + read.text)
        return read

    def _growing(self, kind: type[_G], prefix: str) -> _G:
        """The last part if it is of this kind, else a new one, which becomes the last."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, kind):
            return last
        new = kind(self._new_id(prefix))
        self._parts.append(new)
        return new

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{new_id(self._ids)}"

    def _fields(
        self,
        part: "_Thought | _Message | FunctionCall",
        item: ReasoningItem | MessageItem | FunctionCall,
    ) -> dict[str, Any]:
        if isinstance(item, FunctionCall):
            return item.fields()
        if isinstance(item, ReasoningItem):
            return reasoning_fields(item, shows_encrypted=self._shows_encrypted)
        assert isinstance(part, _Message)
        parts = [output_part(text_of(item.parts), part.reported)]
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
    """One response to be. `created_s` is in Unix time.

    `sampling_defaults` are the model's own, for what the client left out.
    """

    response_id: str
    created_s: int
    model: str
    body: ResponseBody
    sampling_defaults: Mapping[str, float]

    def failed(self, message: str) -> dict[str, Any]:
        """The bad end of a stream."""
        fields = self.fields("failed", [])
        return {**fields, "error": {"code": "server_error", "message": message}}

    def ended(
        self,
        end: Finished,
        output: list[dict[str, Any]],
        completed_s: int,
        num_thought_tokens: int = 0,
    ) -> dict[str, Any]:
        """The whole response; `completed_s` is in Unix time."""
        reason = _INCOMPLETE.get(end.reason)
        fields = self.fields(status_of(end), output)
        return {
            **fields,
            "completed_at": None if reason else completed_s,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": _usage(end, num_thought_tokens),
            **constraint_fields(end),
        }

    def fields(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """All fields of a response that has not ended, in about OpenAI's order.

        What was not given has the model's defaults, or OpenAI's.
        """
        body = self.body
        defaults = self.sampling_defaults
        temperature = defaults.get("temperature", 1.0)
        top_p = defaults.get("top_p", 1.0)
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
            "temperature": temperature if body.temperature is None else body.temperature,
            "text": _text(body),
            "tool_choice": echoed_choice(body.tool_choice),
            "tools": [tool.echoed() for tool in body.functions.values()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": top_p if body.top_p is None else body.top_p,
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


def _usage(end: Finished, num_thought_tokens: int) -> dict[str, Any]:
    """Nobody pays for what is put into the cache."""
    return {
        "input_tokens": end.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": end.num_generated_tokens,
        "output_tokens_details": {"reasoning_tokens": num_thought_tokens},
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
        # Of the last item that was begun: its type and place; of a message all of an event up to
        # its text.
        self._open = ""
        self._place: dict[str, Any] = {}
        self._delta = b""

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
            events.append(self._begin())
        end = self._output.settled(event)
        status = status_of(end)
        output = self._output.fields(status)
        events.append(self._close(output))
        num_thought = self._output.num_thought_tokens
        response = self._reply.ended(end, output, int(time.time()), num_thought)
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
        if isinstance(piece, CallBegun):
            return self._begin()
        if isinstance(piece, CallArguments):
            place = {**self._place, "delta": piece.text}
            return self._event("response.function_call_arguments.delta", place)
        if isinstance(piece, ThoughtPiece):
            begun = b"" if self._open == "reasoning" else self._begin()
            place = {**self._place, "content_index": 0, "delta": piece.text}
            return begun + self._event("response.reasoning_text.delta", place)
        begun = b"" if self._open == "message" else self._begin()
        number = self._num_events
        self._num_events += 1
        return b'%b%b%b,"logprobs":%b,"sequence_number":%d}\n\n' % (
            begun,
            self._delta,
            orjson.dumps(piece.text),
            orjson.dumps(piece.logprobs),
            number,
        )

    def _begin(self) -> bytes:
        """The next item, after the end of the one before it; a message with its part."""
        closed = b""
        if self._num_items:
            closed = self._close(self._output.fields("completed"))
        item = self._output.begun(self._num_items)
        self._open = item["type"]
        self._place = {"item_id": item["id"], "output_index": self._num_items}
        added = {"output_index": self._num_items, "item": item}
        self._num_items += 1
        begun = closed + self._event("response.output_item.added", added)
        if self._open != "message":
            return begun
        place = {**self._place, "content_index": 0}
        self._delta = (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            + orjson.dumps(place)[1:-1]
            + b',"delta":'
        )
        part = {**place, "part": output_part("", [])}
        return begun + self._event("response.content_part.added", part)

    def _close(self, output: list[dict[str, Any]]) -> bytes:
        """The end of the last item that was begun, which is whole in `output`."""
        item = output[self._num_items - 1]
        place = {**self._place, "content_index": 0}
        if item["type"] == "function_call":
            done = {**self._place, "name": item["name"], "arguments": item["arguments"]}
            ends = self._event("response.function_call_arguments.done", done)
        elif item["type"] == "reasoning":
            (part,) = item["content"]
            ends = self._event("response.reasoning_text.done", place | {"text": part["text"]})
        else:
            (part,) = item["content"]
            events = {"text": part["text"], "logprobs": part["logprobs"]}
            ends = self._event("response.output_text.done", place | events)
            ends += self._event("response.content_part.done", place | {"part": part})
        done = {"output_index": self._num_items - 1, "item": item}
        return ends + self._event("response.output_item.done", done)

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": name, **fields, "sequence_number": self._num_events})
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
