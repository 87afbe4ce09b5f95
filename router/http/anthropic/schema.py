"""Anthropic's bodies: turns of strings or blocks, tools and the choice among them.

Of blocks this server reads those of text, of calls of tools and of their results; every other one
is refused by its place and type. A result is a turn by itself, as chat templates have it.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from constraints.spec import Kind
from router.engine.validation import Limits, RawParams
from router.http.conversation import ChatPrompt, Setting, Turn, read_role, read_text, read_texts
from router.http.request_validator import normalize
from router.http.schema import Harmless, Schema, StrictSchema, object_schema
from router.http.tools.functions import Name, check_names
from router.http.tools.grammar import AllowedTool, AllowedTools, arguments_schema
from router.request.errors import InvalidRequest, Unsupported, quoted, wrong
from router.request.parameters import RawGrammar

_ROLES = ("user", "assistant", "system")
# Between turns of one side that are joined, which Anthropic promises and templates may need.
_JOINT = "\n\n"


def _read_text(value: Any, place: str) -> str:
    return "".join(read_texts(value, place, ("text",), "block"))


def _read_turns(value: Any) -> tuple[Turn, ...]:
    if not isinstance(value, list) or not value:
        raise wrong("messages", "must be a list of at least one message", value)
    turns = [
        turn
        for index, message in enumerate(value)
        for turn in _read_message(message, f"messages[{index}]")
    ]
    joined: list[Turn] = []
    for (role, is_text), neighbours in groupby(turns, key=lambda turn: (turn.role, _is_text(turn))):
        if is_text:
            joined.append(Turn(role, _JOINT.join(turn.text for turn in neighbours)))
        else:
            joined += neighbours
    return tuple(joined)


def _is_text(turn: Turn) -> bool:
    return not turn.calls and turn.call_id is None


def _read_message(message: Any, place: str) -> list[Turn]:
    if not isinstance(message, dict):
        raise wrong(place, "must be an object with `role` and `content`", message)
    role = read_role(message, place, _ROLES)
    content, place = message.get("content"), f"{place}.content"
    if not isinstance(content, list):
        return [Turn(role, _read_text(content, place))]
    turns: list[Turn] = []
    calls: list[dict[str, Any]] = []
    text = ""
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use" and role == "assistant":
            calls.append(_read_call(block, f"{place}[{index}]"))
        elif kind == "tool_result" and role == "user":
            turns += [Turn(role, text)] if text else []
            turns.append(_read_result(block, f"{place}[{index}]"))
            text = ""
        else:
            text += read_text(block, f"{place}[{index}]", ("text",), "block")
    return [*turns, Turn(role, text, tuple(calls))] if text or calls or not turns else turns


def _read_call(block: dict[str, Any], place: str) -> dict[str, Any]:
    """The call in OpenAI's form."""
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    for field, value, kind, rule in (
        ("id", call_id, str, "must be a string"),
        ("name", name, str, "must be a string"),
        ("input", given, dict, "must be an object"),
    ):
        if not isinstance(value, kind):
            raise wrong(f"{place}.{field}", rule, value)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


def _read_result(block: dict[str, Any], place: str) -> Turn:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str):
        raise wrong(f"{place}.tool_use_id", "must be a string", call_id)
    text = "" if content is None else _read_text(content, f"{place}.content")
    return Turn("tool", text, call_id=call_id)


def _read_system(value: Any) -> str:
    return _read_text(value, "system")


_STRING: dict[str, Any] = {"type": "string"}
_TEXT_BLOCK = object_schema({"type": {"const": "text"}, "text": _STRING})
_TEXT_SCHEMA: dict[str, Any] = {"anyOf": [_STRING, {"type": "array", "items": _TEXT_BLOCK}]}
_CALL_BLOCK = object_schema(
    {"type": {"const": "tool_use"}, "id": _STRING, "name": _STRING, "input": {"type": "object"}}
)
_RESULT_BLOCK = object_schema(
    {"type": {"const": "tool_result"}, "tool_use_id": _STRING},
    content={"anyOf": [_TEXT_SCHEMA, {"type": "null"}]},
)
_BLOCKS_SCHEMA = {
    "type": "array",
    "items": {"anyOf": [_TEXT_BLOCK, _CALL_BLOCK, _RESULT_BLOCK]},
}
_TURNS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": object_schema(
        {"role": {"enum": [*_ROLES]}, "content": {"anyOf": [_STRING, _BLOCKS_SCHEMA]}}
    ),
}

Turns = Annotated[tuple[Turn, ...], PlainValidator(_read_turns), WithJsonSchema(_TURNS_SCHEMA)]
System = Annotated[str, PlainValidator(_read_system), WithJsonSchema(_TEXT_SCHEMA)]


class Tool(Schema):
    """A tool of the client's; Anthropic's own types of tools are refused."""

    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

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


def _allowed_tools(tools: Sequence[Tool], choice: ToolChoiceBody | None) -> AllowedTools | None:
    """The tools that may be called; None: none.

    Raises InvalidRequest for what contradicts itself, Unsupported for tools of other types.
    """
    check_names([tool.name for tool in tools])
    allowed = tuple(_allowed_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
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
    if tool.type not in (None, "custom"):
        rule = "must be `custom`: types of Anthropic's own are not served"
        raise Unsupported(f"`{place}.type` {rule}. Given: {quoted(tool.type)}", f"{place}.type")
    schema = tool.input_schema
    if schema is None:
        raise InvalidRequest(f"`{place}.input_schema` is required", f"{place}.input_schema")
    place = f"{place}.input_schema"
    return AllowedTool(tool.name, arguments_schema(schema, place), place)


_MAX_TEMPERATURE = 1.0

_COUNTED: Mapping[str, Harmless] = MappingProxyType(
    {
        "speed": ("standard",),
        # Adaptive thinking may be none.
        "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
    }
)
_UNSUPPORTED: Mapping[str, Harmless] = MappingProxyType(
    {**_COUNTED, "container": (), "diagnostics": {}, "inference_geo": ()}
)


class Metadata(Schema):
    """`metadata`, which has no effect."""

    user_id: str | None = None


class OutputFormat(Schema):
    """`output_config.format`: JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Schema):
    """`output_config`."""

    model_config = ConfigDict(extra="forbid")

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountBody(StrictSchema):
    """Body of /v1/messages/count_tokens."""

    unsupported = _COUNTED

    messages: Turns
    model: str | None = None
    output_config: OutputConfig | None = None
    system: System | None = None
    cache_control: dict[str, Any] | None = None

    tool_choice: ToolChoiceBody | None = None
    tools: list[Tool] | None = Field(default=None, fail_fast=True)

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served, or counted."""
        self.refuse_unsupported()
        _ = self.allowed_tools

    @property
    def allowed_tools(self) -> AllowedTools | None:
        """What may be called; None: nothing. Raises InvalidRequest."""
        return _allowed_tools(self.tools or (), self.tool_choice)

    @property
    def chat_prompt(self) -> ChatPrompt:
        """What the chat template renders. A last turn of the assistant is Anthropic's prefill."""
        turns, last = self.messages, self.messages[-1]
        if self.system:
            turns = (Turn("system", self.system), *turns)
        effort = None if self.output_config is None else self.output_config.effort
        return ChatPrompt(
            messages=[turn.for_template() for turn in turns],
            settings=(Setting("reasoning_effort", "output_config.effort", effort, is_hint=True),),
            tools=[tool.for_template() for tool in self.tools or ()],
            may_call=self.allowed_tools is not None,
            continues=last.role == "assistant" and not last.calls,
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
            grammar=None if form is None else RawGrammar(Kind.JSON_SCHEMA, form.schema_),
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
            },
        )
        return normalize(raw, limits)
