"""Anthropic's bodies, with tools and the choice among them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from constraints.spec import Kind
from router.http.anthropic.turns import System, Turns
from router.http.body import Schema
from router.http.conversation import Setting, Turn
from router.http.fields import Harmless, StrictSchema
from router.http.request_validator import normalize
from router.http.tools.grammar import AllowedTools, OfferedTool, arguments_schema
from router.request.errors import InvalidRequest, Unsupported, quoted, wrong
from router.request.grammar import RawGrammar
from router.request.validation import Limits, RawParams

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MOST = 128


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError("must be 1 to 128 letters, digits, `_` or `-`")


Name = Annotated[
    str,
    PlainValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]


class Tool(Schema):
    """A tool of the client's; those that Anthropic has types for are refused."""

    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates have it."""
        described = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **described, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoiceBody(Schema):
    """`tool_choice`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """What the template shows, and what may be called; None: nothing."""

    shown: list[dict[str, Any]]
    offer: AllowedTools | None


def offered_tools(tools: Sequence[Tool], choice: ToolChoiceBody | None) -> OfferedTools:
    """Raises InvalidRequest for what contradicts itself, Unsupported for tools of other kinds."""
    if len(tools) > _MOST:
        raise InvalidRequest(f"`tools` must be at most {_MOST}. Given: {len(tools)}", "tools")
    by_name: dict[str, OfferedTool] = {}
    for index, tool in enumerate(tools):
        if tool.name in by_name:
            raise InvalidRequest(f"`tools` has the name `{tool.name}` twice", "tools")
        by_name[tool.name] = _offered(tool, f"tools[{index}]")
    kind = "auto" if choice is None else choice.type
    wanted = tuple(by_name.values())
    if kind == "tool":
        name = "" if choice is None else choice.name or ""
        if name not in by_name:
            field = "tool_choice.name"
            raise wrong(field, "must be the name of one of `tools`", choice and choice.name)
        wanted = (by_name[name],)
    elif kind == "any" and not wanted:
        rule = "asks for a call, but there are no `tools`"
        raise wrong("tool_choice.type", rule, kind)
    offer = None
    if wanted and kind != "none":
        alone = kind == "tool" or (choice is not None and bool(choice.disable_parallel_tool_use))
        offer = AllowedTools(wanted, allows_text=kind == "auto", may_repeat=not alone)
    return OfferedTools([tool.for_template() for tool in tools], offer)


def _offered(tool: Tool, place: str) -> OfferedTool:
    if tool.type not in (None, "custom"):
        rule = "must be `custom`: types of Anthropic's own are not served"
        raise Unsupported(f"`{place}.type` {rule}. Given: {quoted(tool.type)}", f"{place}.type")
    schema = tool.input_schema
    if schema is None:
        raise InvalidRequest(f"`{place}.input_schema` is required", f"{place}.input_schema")
    place = f"{place}.input_schema"
    return OfferedTool(tool.name, arguments_schema(schema, place), place)


_MAX_TEMPERATURE = 1.0

_COUNTED: Mapping[str, Harmless] = MappingProxyType(
    {
        "speed": ("standard",),
        # A model that thinks adaptively may as well not think.
        "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
    }
)
_UNSUPPORTED: Mapping[str, Harmless] = MappingProxyType(
    {**_COUNTED, "container": (), "diagnostics": {}, "inference_geo": ()}
)


class Metadata(Schema):
    """`metadata`: who asks, which nobody here wants to know."""

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

    speed: Any = None
    thinking: Any = None
    tool_choice: ToolChoiceBody | None = None
    tools: list[Tool] | None = Field(default=None, fail_fast=True)

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served, or counted."""
        self.refuse_unsupported()
        _ = self.offered

    @property
    def offered(self) -> OfferedTools:
        """What is shown and what may be called. Raises InvalidRequest."""
        return offered_tools(self.tools or (), self.tool_choice)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What the chat template sees."""
        return (Turn("system", self.system), *self.messages) if self.system else self.messages

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What the chat template may read."""
        effort = None if self.output_config is None else self.output_config.effort
        return (Setting("reasoning_effort", "output_config.effort", effort),)

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last message, Anthropic's prefill."""
        last = self.messages[-1]
        return last.role == "assistant" and not last.calls


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

    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None

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
        grammar = None
        if form is not None:
            grammar = RawGrammar(Kind.JSON_SCHEMA, form.schema_)
        raw = RawParams(
            grammar=grammar,
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
