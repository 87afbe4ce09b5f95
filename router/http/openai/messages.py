"""A chat's messages and tools as clients send them, and as the chat template sees them.

body --types--> Message --check--> what this server can read --for_template--> plain dicts
"""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from router.http.schema import Schema, object_schema
from router.http.tools.functions import Function
from router.request.errors import InvalidRequest, Unsupported, quoted, wrong

# Roles whose messages are nothing without a content.
_SPEAKERS = frozenset({"system", "developer", "user", "tool", "function"})
_TEXT_KEYS = {"text": "text", "refusal": "refusal"}
_MEDIA = frozenset(
    {
        "image_url", "image", "input_image", "image_embeds", "image_pil", "input_audio", "audio",
        "audio_url", "audio_embeds", "video", "video_url", "file", "input_file",
    }
)  # fmt: skip


def _content(value: Any) -> str | list[Any] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return value
    raise ValueError("must be a string or a list of one or more parts")


def _arguments(value: Any) -> str | dict[str, Any] | None:
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("must be an object, as JSON text or as it is")


_PART_SCHEMA = object_schema({"type": {"const": "text"}, "text": {"type": "string"}})
_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": _PART_SCHEMA, "minItems": 1},
        {"type": "null"},
    ]
}
_ARGUMENTS_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}

Content = Annotated[
    str | list[Any] | None, PlainValidator(_content), WithJsonSchema(_CONTENT_SCHEMA)
]
Arguments = Annotated[
    str | dict[str, Any] | None, PlainValidator(_arguments), WithJsonSchema(_ARGUMENTS_SCHEMA)
]


class MessageFunctionCall(Schema):
    """What an assistant called. TGI says `parameters` too."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: Arguments = None
    parameters: Arguments = None

    def for_template(self) -> dict[str, Any]:
        """As OpenAI has it."""
        shown = self.model_dump(exclude_none=True)
        parameters = shown.pop("parameters", None)
        return (
            shown
            if "arguments" in shown or parameters is None
            else shown | {"arguments": parameters}
        )


class ToolCall(Schema):
    """A call of an assistant's message."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    type: str = "function"
    function: MessageFunctionCall | None = None

    def for_template(self) -> dict[str, Any]:
        """As the chat template sees it."""
        shown = self.model_dump(exclude_none=True, exclude={"function"})
        return (
            shown if self.function is None else shown | {"function": self.function.for_template()}
        )


class Message(Schema):
    """One turn. Fields beyond these reach the chat template as they came."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Content = None
    tool_calls: list[ToolCall] | None = Field(default=None, fail_fast=True)
    function_call: MessageFunctionCall | None = None
    refusal: str | None = None

    @property
    def is_continuable(self) -> bool:
        """An assistant's text, which an answer may go on with."""
        return self.role == "assistant" and self.content is not None and not self.tool_calls

    @property
    def text(self) -> str:
        """The content, its parts joined as TGI joins them."""
        if isinstance(self.content, list):
            return "".join(part[_TEXT_KEYS[part["type"]]] for part in self.content)
        return self.content or self.refusal or ""

    def check(self, place: str) -> None:
        """Raises InvalidRequest for what says nothing, Unsupported for what is no text."""
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            _check_part(part, f"{place}.content[{index}]")
        for index, call in enumerate(self.tool_calls or ()):
            _check_call(call, f"{place}.tool_calls[{index}]")
        if self.content is not None:
            return
        acts = bool(self.tool_calls) or self.function_call is not None or self.refusal is not None
        if self.role in _SPEAKERS or (self.role == "assistant" and not acts):
            unless = " unless there are `tool_calls`" if self.role == "assistant" else ""
            raise InvalidRequest(
                f"`{place}.content` is required of the role `{self.role}`{unless}",
                f"{place}.content",
            )

    def for_template(self) -> dict[str, Any]:
        """What the chat template sees; nulls, which some clients send, are left out."""
        shown = self.model_dump(
            exclude_none=True, exclude={"content", "tool_calls", "function_call"}
        )
        if self.content is not None or self.refusal is not None:
            shown["content"] = self.text
        if self.tool_calls:
            shown["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.function_call is not None:
            shown["function_call"] = self.function_call.for_template()
        return shown


def _check_part(part: Any, place: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _MEDIA:
        raise Unsupported(f"`{place}` is of type `{kind}`: this model reads text alone", place)
    key = _TEXT_KEYS.get(kind) if isinstance(kind, str) else None
    if key is None or not isinstance(part.get(key), str):
        given = f"the type {quoted(kind)}" if kind else quoted(part)
        if key is not None:
            given = f"the {key} {quoted(part.get(key))}"
        raise InvalidRequest(
            f'`{place}` must be like {{"type": "text", "text": "..."}}. Given: {given}', place
        )


def _check_call(call: ToolCall, place: str) -> None:
    if call.type != "function":
        rule = f"must be `function`: others are not served. Given: {quoted(call.type)}"
        raise Unsupported(f"`{place}.type` {rule}", f"{place}.type")
    if call.function is None:
        raise InvalidRequest(f"`{place}.function` is required", f"{place}.function")


class ChatTool(Schema):
    """A tool; only functions are served."""

    model_config = ConfigDict(extra="allow")

    type: str
    function: Function | None = None


def check_tools(tools: Sequence[ChatTool]) -> None:
    """Raises Unsupported for tools of other types, InvalidRequest for one without a function."""
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type == "custom":
            raise Unsupported(f"`{place}` is of type `custom`: only functions are served", place)
        if tool.type != "function":
            raise wrong(f"{place}.type", "must be `function`", tool.type)
        if tool.function is None:
            raise InvalidRequest(f"`{place}.function` is required", f"{place}.function")
