"""Functions as OpenAI's clients declare them, the choice among them, and which may be called.

Chats wrap a function in a tool; in Responses the tool is the function. OpenAI's old `functions` and
`function_call` are the same under other names; TGI names a tool by its bare name, and its
parameters `arguments`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from router.http.schema import Schema
from router.http.tools.grammar import AllowedTool, AllowedTools, arguments_schema
from router.request.errors import InvalidRequest, ToolsRefused, Unsupported, wrong

# Anthropic allows 128 characters, OpenAI 64.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MODES = ("none", "auto", "required")
_NAMED = "named"
_CUSTOM = "custom"
# The arguments of a function without parameters.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools are to be called: `mode` is OpenAI's word, or `named` with a name.

    `allowed` narrows `auto` and `required` to some of the tools; None: all of them.
    """

    mode: str
    name: str = ""
    allowed: tuple[str, ...] | None = None


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError("must be 1 to 128 letters, digits, `_` or `-`")


def _choice(value: Any) -> ToolChoice:
    """`tool_choice`. Raises ValueError."""
    if isinstance(value, str):
        return ToolChoice(value) if value in _MODES else ToolChoice(_NAMED, value)
    if isinstance(value, dict):
        kind = value.get("type", "function")
        if kind == _CUSTOM:
            return ToolChoice(_CUSTOM)
        if kind == "allowed_tools":
            return _read_subset(value.get("allowed_tools", value))
        function = value.get("function", value)
        name = function.get("name") if isinstance(function, dict) else None
        if kind == "function" and isinstance(name, str):
            return ToolChoice(_NAMED, name)
    raise ValueError('must be "none", "auto", "required" or an object that names a function')


def _read_subset(value: Any) -> ToolChoice:
    """OpenAI's `allowed_tools`: only some of the tools that the model sees."""
    tools = value.get("tools") if isinstance(value, dict) else None
    mode = value.get("mode") if isinstance(value, dict) else None
    if not isinstance(tools, list) or not tools or mode not in ("auto", "required"):
        raise ValueError('must have `tools`, a list, and `mode`, "auto" or "required"')
    names = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            raise ValueError("must have `tools` that name functions")
        names.append(name)
    return ToolChoice(mode, allowed=tuple(names))


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
        """In OpenAI's form."""
        shown = self.model_dump(exclude_none=True)
        arguments = shown.pop("arguments", None)
        return shown if arguments is None else {"parameters": arguments, **shown}


def shown_functions(functions: Sequence[Function]) -> list[dict[str, Any]]:
    """The functions as the chat template sees them."""
    return [{"type": "function", "function": each.for_template()} for each in functions]


def allowed_functions(
    functions: Sequence[Function],
    choice: ToolChoice | None,
    place: str = "tools[{}]",
    *,
    in_parallel: bool,
) -> AllowedTools | None:
    """The functions that may be called, the one at an index in `place.format(index)`.

    None: none. Raises InvalidRequest for what contradicts itself.
    """
    names = [function.name for function in functions]
    check_names(names)
    tools = {}
    for index, function in enumerate(functions):
        parameters = f"{place.format(index)}.parameters"
        schema = function.arguments if function.parameters is None else function.parameters
        arguments = _NO_PARAMETERS if schema is None else arguments_schema(schema, parameters)
        tools[function.name] = AllowedTool(function.name, arguments, parameters)
    choice = choice or ToolChoice("auto")
    _check_choice(names, choice)
    if not names or choice.mode == "none":
        return None
    chosen = (choice.name,) if choice.mode == _NAMED else choice.allowed or tuple(names)
    return AllowedTools(
        tuple(tools[name] for name in dict.fromkeys(chosen)),
        allows_text=choice.mode == "auto",
        may_repeat=in_parallel and choice.mode != _NAMED,
    )


def check_names(names: Sequence[str]) -> None:
    """Raises InvalidRequest for too many tools, and for two of one name."""
    if len(names) > MAX_TOOLS:
        raise InvalidRequest(f"`tools` must be at most {MAX_TOOLS}. Given: {len(names)}", "tools")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"`tools` has the name `{twice}` twice", "tools")


def _check_choice(names: Sequence[str], choice: ToolChoice) -> None:
    field = "tool_choice"
    if choice.mode == _CUSTOM:
        raise Unsupported(f"`{field}` of type `{choice.mode}` is not served", field)
    wanted = (choice.name,) if choice.mode == _NAMED else choice.allowed
    if not names and (choice.mode == "required" or wanted is not None):
        given = choice.name if choice.mode == _NAMED else choice.mode
        raise wrong(field, "asks for a call, but there are no `tools`", given)
    for name in wanted or ():
        if name not in names:
            raise ToolsRefused(
                f"Tool error: `{field}` names `{name[:60]}`, which is not among `tools`", field
            )
