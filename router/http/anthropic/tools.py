"""Anthropic's tools and the choice among them: their types, and what is offered to the model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from router.http.body import Schema
from router.http.tools.arguments_schema import arguments_schema
from router.http.tools.grammar import AllowedTools, OfferedTool
from router.request.errors import InvalidRequest, Unsupported, quoted, wrong

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
        told = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **told, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoice(Schema):
    """`tool_choice`."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """What the template shows, and what may be called; None: nothing."""

    shown: list[dict[str, Any]]
    offer: AllowedTools | None


def offered_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> Offered:
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
    return Offered([tool.for_template() for tool in tools], offer)


def _offered(tool: Tool, place: str) -> OfferedTool:
    if tool.type not in (None, "custom"):
        rule = "must be `custom`: types of Anthropic's own are not served"
        raise Unsupported(f"`{place}.type` {rule}. Given: {quoted(tool.type)}", f"{place}.type")
    schema = tool.input_schema
    if schema is None:
        raise InvalidRequest(f"`{place}.input_schema` is required", f"{place}.input_schema")
    place = f"{place}.input_schema"
    return OfferedTool(tool.name, arguments_schema(schema, place), place)
