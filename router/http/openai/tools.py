"""Tools of a chat: their types and what can be wrong with them.

Calls are not made yet: a tool can be shown to the model (`tool_choice` "none"), nothing more.
OpenAI's old `functions` and `function_call` are the same under other names; TGI names a tool by
its bare name, and its parameters `arguments`.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from router.errors import InvalidRequest, ToolsRefused, Unserved
from router.http.body import Schema

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_WORDS = ("none", "auto", "required")
_MOST = 128


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError("must be 1 to 64 letters, digits, `_` or `-`")


def _choice(value: Any) -> str:
    """One of the words, or the name of a tool behind a `=`."""
    if isinstance(value, str):
        return value if value in _WORDS else f"={value}"
    if isinstance(value, dict):
        function = value.get("function", value if "type" not in value else None)
        if value.get("type", "function") == "function" and isinstance(function, dict):
            name = function.get("name")
            if isinstance(name, str):
                return f"={name}"
        if value.get("type") in ("allowed_tools", "custom"):
            return f"?{value['type']}"
    raise ValueError(
        'must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
    )


Name = Annotated[
    str,
    PlainValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]
Choice = Annotated[
    str,
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
    choice: str | None,
    functions: Sequence[Function] | None,
    function_choice: str | None,
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
        _check_choice("tool_choice" if name == "tools" else "function_call", name, offered, chosen)
        if offered and format_field is not None and chosen != "none":
            raise ToolsRefused(
                "Tool error: Grammar and tools are mutually exclusive: "
                f"`{format_field}` and `{name}` cannot both shape an answer",
                name,
            )
        if offered and chosen != "none":
            raise Unserved(
                f"`{name}` needs constrained output, which is not served yet: leave it out, or "
                f'show them to the model alone with `{_CHOICES[name]}` "none"',
                name,
            )


_CHOICES = {"tools": "tool_choice", "functions": "function_call"}


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


def _check_choice(field: str, tools_field: str, names: Sequence[str], choice: str | None) -> None:
    if choice is None or choice in ("none", "auto"):
        return
    if choice.startswith("?"):
        raise Unserved(f"`{field}` of type `{choice[1:]}` is not served", field)
    if not names:
        raise InvalidRequest(f"`{field}` asks for a call, but there are no `{tools_field}`", field)
    if choice.startswith("=") and choice[1:] not in names:
        raise ToolsRefused(
            f"Tool error: `{field}` names `{choice[1:61]}`, which is not among `{tools_field}`",
            field,
        )
