"""Tools of a chat: their types and what can be wrong with them.

Calls are not made yet: a tool can be shown to the model (`tool_choice` "none"), nothing more.
OpenAI's old `functions` and `function_call` are the same under other names; TGI names a tool by
its bare name, and its parameters `arguments`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from router.errors import InvalidRequest, ToolsRefused, Unserved
from router.http.body import Schema

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_WORDS = ("none", "auto", "required")
_NAMED = "named"
_UNSERVED = ("allowed_tools", "custom")
_MOST = 128
# Of each way to offer tools, the field that chooses among them.
_CHOICES = {"tools": "tool_choice", "functions": "function_call"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tool is to be called: one of OpenAI's words, or `named` with a name."""

    word: str
    name: str = ""

    @property
    def may_call(self) -> bool:
        """Whether any tool may be."""
        return self.word != "none"


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError("must be 1 to 64 letters, digits, `_` or `-`")


def _choice(value: Any) -> ToolChoice:
    if isinstance(value, str):
        return ToolChoice(value) if value in _WORDS else ToolChoice(_NAMED, value)
    if isinstance(value, dict):
        kind = value.get("type", "function")
        if kind in _UNSERVED:
            return ToolChoice(kind)
        # OpenAI's `function_call` is the bare object of a name.
        function = value.get("function", value)
        name = function.get("name") if isinstance(function, dict) else None
        if kind == "function" and isinstance(name, str):
            return ToolChoice(_NAMED, name)
    raise ValueError(
        'must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
    )


Name = Annotated[
    str,
    PlainValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]
Choice = Annotated[
    ToolChoice,
    PlainValidator(_choice),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


class Function(Schema):
    """A function that a model may call; `parameters` is a JSON schema."""

    model_config = ConfigDict(extra="allow")

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """As OpenAI has it."""
        shown = self.model_dump(exclude_none=True)
        arguments = shown.pop("arguments", None)
        return shown if arguments is None else {"parameters": arguments, **shown}


class Tool(Schema):
    """A tool; only functions are served."""

    model_config = ConfigDict(extra="allow")

    type: str
    function: Function | None = None


def shown_functions(
    tools: Sequence[Tool] | None, functions: Sequence[Function] | None
) -> list[dict[str, Any]] | None:
    """What the chat template sees; None without tools."""
    found = [tool.function for tool in tools or () if tool.function is not None]
    found += functions or ()
    return [{"type": "function", "function": one.for_template()} for one in found] or None


def check_tools(
    tools: Sequence[Tool] | None,
    choice: ToolChoice | None,
    functions: Sequence[Function] | None,
    function_choice: ToolChoice | None,
    *,
    format_field: str | None,
) -> None:
    """Raises InvalidRequest for what contradicts itself, Unserved if tools might be called."""
    _check_each(tools or ())
    for name, offered, chosen in (
        ("tools", [tool.function.name for tool in tools or () if tool.function], choice),
        ("functions", [function.name for function in functions or ()], function_choice),
    ):
        _check_names(name, offered)
        _check_choice(_CHOICES[name], name, offered, chosen)
        may_call = bool(offered) and (chosen is None or chosen.may_call)
        if may_call and format_field is not None:
            raise ToolsRefused(
                "Tool error: Grammar and tools are mutually exclusive: "
                f"`{format_field}` and `{name}` cannot both shape an answer",
                name,
            )
        if may_call:
            raise Unserved(
                f"`{name}` needs constrained output, which is not served yet: leave it out, or "
                f'show them to the model alone with `{_CHOICES[name]}` "none"',
                name,
            )


def _check_each(tools: Sequence[Tool]) -> None:
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type == "custom":
            raise Unserved(f"`{place}` is of type `custom`: only functions are served", place)
        if tool.type != "function":
            raise InvalidRequest(
                f"`{place}.type` must be `function`. Given: `{tool.type[:60]}`", f"{place}.type"
            )
        if tool.function is None:
            raise InvalidRequest(f"`{place}.function` is required", f"{place}.function")


def _check_names(field: str, names: Sequence[str]) -> None:
    if len(names) > _MOST:
        raise InvalidRequest(f"`{field}` must be at most {_MOST}. Given: {len(names)}", field)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"`{field}` has the name `{twice}` twice", field)


def _check_choice(
    field: str, tools_field: str, names: Sequence[str], choice: ToolChoice | None
) -> None:
    if choice is None or choice.word in ("none", "auto"):
        return
    if choice.word in _UNSERVED:
        raise Unserved(f"`{field}` of type `{choice.word}` is not served", field)
    if not names:
        raise InvalidRequest(f"`{field}` asks for a call, but there are no `{tools_field}`", field)
    if choice.word == _NAMED and choice.name not in names:
        raise ToolsRefused(
            f"Tool error: `{field}` names `{choice.name[:60]}`, which is not among `{tools_field}`",
            field,
        )
