"""Anthropic's Messages: /v1/messages and /v1/messages/count_tokens.

    turns of strings or blocks, tools --MessagesBody--> ChatPrompt, RawParams
    an answer --message | MessageEncoder--> one Message, or events of its blocks

Of blocks this server reads those of text, of images, of thoughts, of calls of tools and of their
results; every other one is refused by its place and type. A result is a turn by itself, as chat
templates have it.
`anthropic-version` may say anything or be absent: there is one version so far.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby
from random import Random
from types import MappingProxyType
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator
from starlette.requests import Request
from starlette.responses import Response

from constraints.spec import Kind
from proto.contract import FinishReason
from router.engine.validation import Limits, RawParams
from router.http.answers import Answer, Reading, Said, Thought, new_id
from router.http.bodies import json_response
from router.http.conversation import (
    AnswerFrames,
    AnswerService,
    ChatPrompt,
    PartForm,
    Setting,
    Turn,
    images_in,
    read_part,
    read_parts,
    read_role,
)
from router.http.errors import Dialect, Problem
from router.http.images import URL_SCHEMA, Part, block_image, joined, text_of
from router.http.openai.schema import normalize, with_defaults
from router.http.request_record import RequestRecord
from router.http.schema import Harmless, Schema, StrictSchema, object_schema
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs, Tag
from router.http.server_info import constraint_fields
from router.http.thinking import NO_WISHES, Thinking, ThinkingField
from router.http.tools import AllowedTool, AllowedTools, Name, arguments_schema, check_names
from router.request.errors import InvalidRequest, RouterError, wrong
from router.request.parameters import RawGrammar
from router.request.request import Finished, TokenGenerated
from router.text.answer_reader import CallArguments, CallBegun, Piece, TextPiece, ThoughtPiece

_ROLES = ("user", "assistant", "system")
# Between turns of one side that are joined, which Anthropic promises and templates may need.
_JOINT = "\n\n"
_TEXT_BLOCKS = PartForm("block", ("text",))
_BLOCKS = PartForm("block", ("text",), "image", block_image)
_THOUGHT = "thinking"
# Another server's secret.
_REDACTED = "redacted_thinking"


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` as turns, the places of thoughts in them, and of what is left out."""

    turns: tuple[Turn, ...]
    thoughts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def _read_messages(value: Any) -> Conversation:
    if not isinstance(value, list) or not value:
        raise wrong("messages", "must be a list of at least one message", value)
    turns = [
        turn
        for index, message in enumerate(value)
        for turn in _read_message(message, f"messages[{index}]")
    ]
    merged: list[Turn] = []
    for (role, is_text), neighbours in groupby(turns, key=lambda turn: (turn.role, _is_text(turn))):
        if is_text:
            merged.append(Turn(role, joined(_between(neighbours))))
        else:
            merged += neighbours
    return Conversation(tuple(merged), _places(value, _THOUGHT), _places(value, _REDACTED))


def _places(messages: Sequence[Any], kind: str) -> tuple[str, ...]:
    """Of the assistant's blocks of this type."""
    return tuple(
        f"messages[{index}].content[{number}]"
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and isinstance(message["content"], list)
        for number, block in enumerate(message["content"])
        if block["type"] == kind
    )


def _between(turns: Iterable[Turn]) -> Iterator[Part]:
    """The parts of turns that become one."""
    for index, turn in enumerate(turns):
        yield from (_JOINT,) if index else ()
        yield from turn.parts


def _read_content(value: Any, place: str) -> str | tuple[Part, ...]:
    return joined(read_parts(value, place, _BLOCKS))


def _is_text(turn: Turn) -> bool:
    return not turn.calls and turn.call_id is None and not turn.thought


def _read_message(message: Any, place: str) -> list[Turn]:
    if not isinstance(message, dict):
        raise wrong(place, "must be an object with `role` and `content`", message)
    role = read_role(message, place, _ROLES)
    content = message.get("content")
    place = f"{place}.content"
    if not isinstance(content, list):
        return [Turn(role, _read_content(content, place))]
    turns: list[Turn] = []
    calls: list[dict[str, Any]] = []
    parts: list[Part] = []
    thought = ""
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use" and role == "assistant":
            calls.append(_read_call(block, f"{place}[{index}]"))
        elif kind == "tool_result" and role == "user":
            turns += [Turn(role, joined(parts))] if any(parts) else []
            turns.append(_read_result(block, f"{place}[{index}]"))
            parts = []
        elif kind == _THOUGHT and role == "assistant":
            thought += _read_thought(block, f"{place}[{index}]")
        elif kind == _REDACTED and role == "assistant":
            continue
        else:
            form = _BLOCKS if role == "user" else _TEXT_BLOCKS
            parts.append(read_part(block, f"{place}[{index}]", form))
    if turns and not any(parts) and not calls:
        return turns
    return [*turns, Turn(role, joined(parts), tuple(calls), thought=thought)]


def _read_thought(block: dict[str, Any], place: str) -> str:
    """Whoever has signed it: a client may say anything of what the model thought."""
    thought = block.get("thinking")
    if not isinstance(thought, str):
        raise wrong(f"{place}.thinking", "must be a string", thought)
    return thought


def _read_call(block: dict[str, Any], place: str) -> dict[str, Any]:
    call_id = block.get("id")
    name = block.get("name")
    given = block.get("input")
    for field, value, kind, rule in (
        ("id", call_id, str, "must be a string"),
        ("name", name, str, "must be a string"),
        ("input", given, dict, "must be an object"),
    ):
        if not isinstance(value, kind):
            raise wrong(f"{place}.{field}", rule, value)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def _read_result(block: dict[str, Any], place: str) -> Turn:
    call_id = block.get("tool_use_id")
    content = block.get("content")
    if not isinstance(call_id, str):
        raise wrong(f"{place}.tool_use_id", "must be a string", call_id)
    content = "" if content is None else _read_content(content, f"{place}.content")
    return Turn("tool", content, call_id=call_id)


def _read_system(value: Any) -> str:
    return text_of(read_parts(value, "system", _TEXT_BLOCKS))


_CUSTOM = "custom"
_STRING: dict[str, Any] = {"type": "string"}
_TEXT_BLOCK_SCHEMA = object_schema({"type": {"const": "text"}, "text": _STRING})
_TEXT_SCHEMA: dict[str, Any] = {"anyOf": [_STRING, {"type": "array", "items": _TEXT_BLOCK_SCHEMA}]}
_IMAGE_SOURCE: dict[str, Any] = {
    "anyOf": [
        object_schema({"type": {"const": "base64"}, "media_type": _STRING, "data": _STRING}),
        object_schema({"type": {"const": "url"}, "url": URL_SCHEMA}),
    ]
}
_IMAGE_SCHEMA = object_schema({"type": {"const": "image"}, "source": _IMAGE_SOURCE})
_RESULT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _STRING,
        {"type": "array", "items": {"anyOf": [_TEXT_BLOCK_SCHEMA, _IMAGE_SCHEMA]}},
        {"type": "null"},
    ]
}
_CALL_BLOCK = object_schema(
    {"type": {"const": "tool_use"}, "id": _STRING, "name": _STRING, "input": {"type": "object"}}
)
_RESULT_BLOCK = object_schema(
    {"type": {"const": "tool_result"}, "tool_use_id": _STRING},
    content=_RESULT_SCHEMA,
)
_THOUGHT_SCHEMA = object_schema({"type": {"const": _THOUGHT}, "thinking": _STRING})
_REDACTED_SCHEMA = object_schema({"type": {"const": _REDACTED}})
_BLOCK_SCHEMAS = (
    _TEXT_BLOCK_SCHEMA,
    _IMAGE_SCHEMA,
    _CALL_BLOCK,
    _RESULT_BLOCK,
    _THOUGHT_SCHEMA,
    _REDACTED_SCHEMA,
)
_BLOCKS_SCHEMA = {"type": "array", "items": {"anyOf": [*_BLOCK_SCHEMAS]}}
_TURNS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": object_schema(
        {"role": {"enum": [*_ROLES]}, "content": {"anyOf": [_STRING, _BLOCKS_SCHEMA]}}
    ),
}
Messages = Annotated[Conversation, PlainValidator(_read_messages), WithJsonSchema(_TURNS_SCHEMA)]
System = Annotated[str, PlainValidator(_read_system), WithJsonSchema(_TEXT_SCHEMA)]


class Tool(Schema):
    """A tool. Of one whose type is Anthropic's own, only that is read: no other model knows it."""

    name: Name | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_foreign(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        return {"type": kind} if isinstance(kind, str) and kind != _CUSTOM else value

    @property
    def is_clients(self) -> bool:
        """Whether the client describes it, so that any model may call it."""
        return self.type in (None, _CUSTOM)

    def for_template(self) -> dict[str, Any]:
        """In the chat template's form."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoiceBody(Schema):
    """`tool_choice`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def _allowed_tools(tools: Mapping[str, Tool], choice: ToolChoiceBody | None) -> AllowedTools | None:
    """The tools, by their places, that may be called; None: none.

    Raises InvalidRequest for what contradicts itself.
    """
    allowed = tuple(_allowed_tool(tool, place) for place, tool in tools.items())
    check_names([tool.name for tool in allowed])
    choice = choice or ToolChoiceBody(type="auto")
    if choice.type == "tool":
        allowed = tuple(tool for tool in allowed if tool.name == choice.name)
        if not allowed:
            raise wrong("tool_choice.name", "must be the name of one of `tools`", choice.name)
    elif choice.type == "any" and not allowed:
        raise wrong("tool_choice.type", "asks for a call, but there are no `tools`", choice.type)
    if not allowed or choice.type == "none":
        return None
    may_repeat = choice.type != "tool" and not choice.disable_parallel_tool_use
    return AllowedTools(allowed, allows_text=choice.type == "auto", may_repeat=may_repeat)


def _allowed_tool(tool: Tool, place: str) -> AllowedTool:
    if tool.name is None:
        raise InvalidRequest(f"`{place}.name` is required", f"{place}.name")
    schema = tool.input_schema
    if schema is None:
        raise InvalidRequest(f"`{place}.input_schema` is required", f"{place}.input_schema")
    place = f"{place}.input_schema"
    return AllowedTool(tool.name, arguments_schema(schema, place), place, strict=bool(tool.strict))


class Metadata(Schema):
    """`metadata`, which has no effect."""

    user_id: str | None = None


class OutputFormat(Schema):
    """`output_config.format`: JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")

    @property
    def grammar(self) -> RawGrammar:
        """What the answer must be; the API has no `strict` for it."""
        return RawGrammar(Kind.JSON_SCHEMA, self.schema_, strict=False)


class OutputConfig(Schema):
    """`output_config`."""

    model_config = ConfigDict(extra="forbid")
    hints = frozenset({"task_budget"})

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: dict[str, Any] | None = None


# Tokens of a thought, Anthropic's rule.
_MIN_BUDGET = 1024


class CountBody(StrictSchema):
    """Body of /v1/messages/count_tokens."""

    hints = frozenset({"context_management", "mcp_servers"})

    messages: Messages
    model: str | None = None
    output_config: OutputConfig | None = None
    system: System | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = Field(default=None, fail_fast=True)
    speed: Literal["standard", "fast"] | None = None
    thinking: ThinkingField | None = None

    tool_choice: ToolChoiceBody | None = None
    tools: list[Tool] | None = Field(default=None, fail_fast=True)

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served, or counted."""
        self.refuse_unsupported()
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget < _MIN_BUDGET:
            rule = f"must be at least {_MIN_BUDGET}"
            raise wrong("thinking.budget_tokens", rule, budget)
        _ = self.allowed_tools

    def ignored_fields(self) -> list[str]:
        """Hints, the tools that are not the client's, and the blocks that are left out."""
        settings = []
        if self.speed == "fast":
            settings.append("speed")
        places = (f"tools[{index}]" for index in range(len(self.tools or ())))
        tools = [place for place in places if place not in self.client_tools]
        return [*super().ignored_fields(), *settings, *tools, *self.messages.left_out]

    @property
    def client_tools(self) -> Mapping[str, Tool]:
        """The tools that are offered to the model, by their places."""
        return {
            f"tools[{index}]": tool
            for index, tool in enumerate(self.tools or ())
            if tool.is_clients
        }

    @property
    def allowed_tools(self) -> AllowedTools | None:
        """What may be called; None: nothing. Raises InvalidRequest."""
        return _allowed_tools(self.client_tools, self.tool_choice)

    @property
    def chat_prompt(self) -> ChatPrompt:
        """What the chat template renders. A last turn of the assistant is Anthropic's prefill."""
        turns = self.messages.turns
        last = turns[-1]
        if self.system:
            turns = (Turn("system", self.system), *turns)
        effort = None if self.output_config is None else self.output_config.effort
        return ChatPrompt(
            messages=[turn.for_template() for turn in turns],
            images=images_in(turns),
            settings=(Setting("reasoning_effort", "output_config.effort", effort, is_hint=True),),
            tools=[tool.for_template() for tool in self.client_tools.values()],
            thinking=self._thinking,
            thought_places=self.messages.thoughts,
            may_call=self.allowed_tools is not None,
            continues=last.role == "assistant" and not last.calls,
        )

    @property
    def _thinking(self) -> Thinking:
        asked = self.thinking
        if asked is None:
            return NO_WISHES
        return Thinking(
            is_wanted=asked.is_wanted,
            budget=asked.budget_tokens,
            field="thinking",
            budget_field="thinking.budget_tokens",
            is_shown=asked.display != "omitted",
        )


_MAX_TEMPERATURE = 1.0
_UNSUPPORTED: Mapping[str, Harmless] = MappingProxyType(
    {"container": (), "diagnostics": {}, "inference_geo": ()}
)


class MessagesBody(CountBody):
    """Body of /v1/messages."""

    unsupported = _UNSUPPORTED

    max_tokens: int
    metadata: Metadata | None = None
    service_tier: str | None = None
    stop_sequences: list[str] | None = Field(default=None, fail_fast=True)
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served."""
        super().check()
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            rule = f"must be less than `max_tokens`, which is {self.max_tokens}"
            raise wrong("thinking.budget_tokens", rule, budget)
        if self.temperature is not None and not 0 <= self.temperature <= _MAX_TEMPERATURE:
            raise InvalidRequest(
                f"`temperature` must be between 0 and {_MAX_TEMPERATURE:g}. "
                f"Given: {self.temperature}",
                "temperature",
            )

    def to_raw(self, limits: Limits) -> RawParams:
        """The raw parameters. Raises InvalidRequest for what breaks a rule."""
        form = None if self.output_config is None else self.output_config.format
        raw = RawParams(
            grammar=None if form is None else form.grammar,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_new_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            keep_stop_string=False,
            names={
                "grammar": "output_config.format",
                "inputs": "messages",
                "max_new_tokens": "max_tokens",
                "stop": "stop_sequences",
                "thought_budget": "thinking.budget_tokens",
            },
        )
        return normalize(with_defaults(raw, limits), limits)


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
    constraint = {} if end is None else constraint_fields(end)
    reason = None if end is None else STOP_REASONS[end.reason]
    return {
        "stop_reason": "tool_use" if num_calls and reason == "end_turn" else reason,
        "stop_sequence": None if end is None else end.stop_string,
        **constraint,
    }


def content_of(answer: Answer, *, shows_thought: bool = True) -> list[dict[str, Any]]:
    """The blocks of a whole answer.

    A call that was cut is none: its input is no object. Nor is one with a number beyond floats.
    """
    blocks: list[dict[str, Any]] = []
    for part in answer.parts:
        if isinstance(part, Thought):
            shown = part.text if shows_thought else ""
            blocks.append({**_THOUGHT_BLOCK, "thinking": shown, "signature": signature(part.text)})
        elif isinstance(part, Said):
            blocks.append({"type": "text", "text": part.text})
        elif part.is_whole and (given := _input_of(part.arguments)) is not None:
            call = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": given}
            blocks.append(call)
    return blocks or [_TEXT_BLOCK]


def signature(thought: str) -> str:
    """What a block of thought is signed with; clients drop blocks without a signature.

    The same for the same text, so that a stream that is read again has the same bytes. It proves
    nothing: what a client sends back is its own anyway.
    """
    return b64encode(blake2b(thought.encode("utf-8", "surrogatepass")).digest()).decode()


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
    return usage(end.num_prompt_tokens, end.num_cached_tokens, end.num_generated_tokens)


_TEXT_BLOCK = {"type": "text", "text": ""}
_THOUGHT_BLOCK = {"type": "thinking", "thinking": "", "signature": ""}


class MessageEncoder:
    """Encodes the events of one message. Without `reading` it is one block of text."""

    def __init__(
        self,
        message_id: str,
        model: str,
        num_prompt_tokens: int,
        reading: Reading | None,
        ids: Random,
    ) -> None:
        self._message_id = message_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._reading = reading
        self._reader = None if reading is None else reading.reader()
        self._ids = ids
        # The type of the open block, and the number of blocks so far.
        self._open: str | None = None
        self._num_blocks = 0
        # Of the open block, for its signature.
        self._thought: list[str] = []

    def opening(self) -> bytes:
        """The message without its content. The number of cached tokens comes at the end."""
        counts = usage(self._num_prompt_tokens, 0, 0)
        start = message(self._message_id, self._model, [], ending(None), counts)
        block = self._start_block(_TEXT_BLOCK) if self._reader is None else b""
        return _event("message_start", {"message": start}) + block + _event("ping", {})

    def token(self, event: TokenGenerated) -> bytes:
        """What the token tells; nothing while it is held back."""
        if self._reader is None:
            return self._piece(TextPiece(event.text)) if event.text else b""
        return self._pieces(self._reader.token(event))

    def finished(self, event: Finished) -> bytes:
        """What was held back, why it stopped, and the whole usage."""
        end = event
        num_calls = 0
        if self._reader is None:
            rest = self._piece(TextPiece(event.tail)) if event.tail else b""
        else:
            rest = self._pieces(self._reader.finish(event))
            end = self._reader.settled(event)
            num_calls = self._reader.num_calls
        if self._num_blocks == 0:
            rest += self._start_block(_TEXT_BLOCK)
        fields = {"delta": ending(end, num_calls), "usage": usage_of(event)}
        return b"".join(
            [rest, self._stop_block(), _event("message_delta", fields), _event("message_stop", {})]
        )

    def failed(self, error: RouterError, problem: Problem) -> bytes:
        return b"event: error\ndata: " + problem.body + b"\n\n"

    def _pieces(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join([self._piece(piece) for piece in pieces])

    def _piece(self, piece: Piece) -> bytes:
        if isinstance(piece, ThoughtPiece):
            return self._think(piece.text)
        if isinstance(piece, CallArguments):
            return self._delta({"type": "input_json_delta", "partial_json": piece.text})
        if isinstance(piece, CallBegun):
            assert self._reading is not None
            call_id = self._reading.call_id(TOOL_ID_PREFIX, piece, self._ids)
            return self._start_block(
                {"type": "tool_use", "id": call_id, "name": piece.name, "input": {}}
            )
        begun = b"" if self._open == "text" else self._start_block(_TEXT_BLOCK)
        return begun + self._delta({"type": "text_delta", "text": piece.text})

    def _think(self, text: str) -> bytes:
        begun = b"" if self._open == "thinking" else self._start_block(_THOUGHT_BLOCK)
        self._thought.append(text)
        assert self._reading is not None
        if not self._reading.shows_thought:
            return begun
        return begun + self._delta({"type": "thinking_delta", "thinking": text})

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
        signed = b""
        if self._open == "thinking":
            text = "".join(self._thought)
            self._thought = []
            signed = self._delta({"type": "signature_delta", "signature": signature(text)})
        self._open = None
        return signed + _event("content_block_stop", {"index": self._num_blocks - 1})


def _event(name: str, fields: dict[str, Any]) -> bytes:
    data = orjson.dumps({"type": name, **fields})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


_MESSAGE = {
    "type": "object",
    "description": "Anthropic's Message",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
}
_EVENT = {
    "type": "object",
    "description": "An event of Anthropic's, by its type",
    "required": ["type"],
}
_COUNT = {"type": "object", "required": ["input_tokens"]}


class MessageRoutes:
    def __init__(self, service: AnswerService) -> None:
        self._service = service

    def routes(self) -> list[ApiRoute]:
        docs = partial(RouteDocs, tag=Tag.ANTHROPIC, failures=NO_MODEL)
        messages = docs(
            summary="Answer a conversation",
            body=MessagesBody,
            answer=_MESSAGE,
            events=_EVENT,
            generates=True,
        )
        count = docs(summary="Count a conversation's tokens", body=CountBody, answer=_COUNT)
        return [
            ApiRoute("POST", "/v1/messages", self.messages, messages),
            ApiRoute("POST", "/v1/messages/count_tokens", self.count_tokens, count),
        ]

    async def messages(self, request: Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        service = self._service
        record = service.validator.begin(request)
        body = await service.read(request, MessagesBody, self._admit)
        model = service.models.find(body.model)
        raw = replace(body.to_raw(service.limits), adapter_id=model.adapter_id)
        prompt = await service.render(record, lambda: body.chat_prompt)
        checked, reading = await service.check(record, prompt, raw, body.allowed_tools)
        message_id = f"msg_{new_id(record.ids)}"
        if body.stream:
            encoder = MessageEncoder(
                message_id, model.name, len(checked.prompt_ids), reading, record.ids
            )
            frames = AnswerFrames(record, encoder, Dialect.ANTHROPIC)
            return await service.stream(record, [checked], frames, _headers(record))
        (completion,) = await service.complete(request, [checked])
        end = completion.finished
        shows_thought = True
        if reading is None:
            answer = Answer((Said(end.text),), end)
        else:
            answer = reading.read(completion, TOOL_ID_PREFIX, record.ids)
            shows_thought = reading.shows_thought
        content = content_of(answer, shows_thought=shows_thought)
        num_calls = sum(block["type"] == "tool_use" for block in content)
        stopped = ending(answer.end, num_calls)
        shown = message(message_id, model.name, content, stopped, usage_of(end))
        return service.reply(record, shown, record.num_generated_tokens, _headers(record))

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the same conversation would have as a prompt."""
        body = await self._service.read(request, CountBody, self._admit)
        record = RequestRecord.of(request)
        prompt = await self._service.render(record, lambda: body.chat_prompt)
        num_tokens = await self._service.count(record, prompt, "messages")
        return json_response({"input_tokens": num_tokens}, _headers(record))

    def _admit(self, body: CountBody) -> None:
        """Raises HttpError for another model, InvalidRequest for what cannot be served."""
        self._service.models.find(body.model)
        body.check()


def _headers(record: RequestRecord) -> dict[str, str]:
    """The header in which Anthropic's clients find the request's id."""
    return {"request-id": record.request_id}
