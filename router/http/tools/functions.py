"""OpenAI's tools: their types, what can be wrong with them, and what is offered to the model.

Chats wrap a function in a tool; in Responses it is one. OpenAI's old `functions` and
`function_call` are the same under other names; TGI names a tool by its bare name, and its
parameters `arguments`. How calls are written is for `tool_grammar.py`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from router.http.body import Schema
from router.http.tools.grammar import AllowedTools, OfferedTool, arguments_schema
from router.request.errors import InvalidRequest, ToolsRefused, Unsupported, wrong

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_WORDS = ("none", "auto", "required")
_NAMED = "named"
_CUSTOM = "custom"
# What a function without parameters is called with.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_MOST = 128
_NESTED = '{"type": "function", "function": {"name": ...}}'
# Of each way to offer tools, the field that chooses among them.
_CHOICES = {"tools": "tool_choice", "functions": "function_call"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools are to be called: one of OpenAI's words, or `named` with a name.

    `allowed` narrows `auto` and `required` to some of the tools; None: to none in particular.
    """

    word: str
    name: str = ""
    allowed: tuple[str, ...] | None = None

    @property
    def may_call(self) -> bool:
        """Whether any tool may be."""
        return self.word != "none"


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError("must be 1 to 64 letters, digits, `_` or `-`")


def read_choice(value: Any, example: str = _NESTED) -> ToolChoice:
    """`tool_choice`, or of old `function_call`. Raises ValueError, with how a tool is named."""
    if isinstance(value, str):
        return ToolChoice(value) if value in _WORDS else ToolChoice(_NAMED, value)
    if isinstance(value, dict):
        kind = value.get("type", "function")
        if kind == _CUSTOM:
            return ToolChoice(_CUSTOM)
        if kind == "allowed_tools":
            return _allowed(value.get("allowed_tools", value), example)
        # OpenAI's `function_call` is the bare object of a name.
        function = value.get("function", value)
        name = function.get("name") if isinstance(function, dict) else None
        if kind == "function" and isinstance(name, str):
            return ToolChoice(_NAMED, name)
    raise ValueError(f'must be "none", "auto", "required" or {example}')


def _allowed(value: Any, example: str) -> ToolChoice:
    """OpenAI's way to offer some of the tools that the model sees."""
    tools = value.get("tools") if isinstance(value, dict) else None
    mode = value.get("mode") if isinstance(value, dict) else None
    if not isinstance(tools, list) or not tools or mode not in ("auto", "required"):
        raise ValueError('must have `tools`, a list, and `mode`, "auto" or "required"')
    names = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            raise ValueError(f"must have `tools` like {example}")
        names.append(name)
    return ToolChoice(mode, allowed=tuple(names))


Name = Annotated[
    str,
    PlainValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]
Choice = Annotated[
    ToolChoice,
    PlainValidator(read_choice),
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


class ChatTool(Schema):
    """A tool; only functions are served."""

    model_config = ConfigDict(extra="allow")

    type: str
    function: Function | None = None


def shown_functions(
    tools: Sequence[ChatTool] | None, functions: Sequence[Function] | None
) -> list[dict[str, Any]] | None:
    """What the chat template sees; None without tools."""
    found = [tool.function for tool in tools or () if tool.function is not None]
    found += functions or ()
    return [{"type": "function", "function": one.for_template()} for one in found] or None


@dataclass(frozen=True, slots=True)
class OfferedFunctions:
    """What may be called. `field` is where it stands: `tools`, or of old `functions`."""

    field: str
    offer: AllowedTools


def offered_tools(
    tools: Sequence[ChatTool] | None,
    choice: ToolChoice | None,
    functions: Sequence[Function] | None,
    function_choice: ToolChoice | None,
    *,
    in_parallel: bool,
    format_field: str | None,
) -> OfferedFunctions | None:
    """What may be called; None: nothing. Raises InvalidRequest for what contradicts itself."""
    _check_each(tools or ())
    found = [
        each
        for field, place, given, chosen in (
            ("tools", "tools[{}].function", [tool.function for tool in tools or ()], choice),
            ("functions", "functions[{}]", functions or (), function_choice),
        )
        if (each := offered_functions(field, place, given, chosen, in_parallel=in_parallel))
        is not None
    ]
    if not found:
        return None
    if len(found) > 1:
        raise InvalidRequest("`tools` and `functions` cannot both be called", "functions")
    if format_field is not None:
        field = found[0].field
        raise ToolsRefused(
            "Tool error: Grammar and tools are mutually exclusive: "
            f"`{format_field}` and `{field}` cannot both shape an answer",
            field,
        )
    return found[0]


def offered_functions(
    field: str,
    place: str,
    functions: Sequence[Function | None],
    choice: ToolChoice | None,
    *,
    in_parallel: bool,
) -> OfferedFunctions | None:
    """What may be called of the functions in `field`, the one at an index in `place.format(index)`.

    None: nothing. Raises InvalidRequest.
    """
    by_name = {
        function.name: OfferedTool(
            function.name,
            _parameters(function, f"{place.format(index)}.parameters"),
            f"{place.format(index)}.parameters",
        )
        for index, function in enumerate(functions)
        if function is not None
    }
    names = [function.name for function in functions if function is not None]
    _check_names(field, names)
    chosen = choice or ToolChoice("auto")
    _check_choice(_CHOICES[field], field, names, chosen)
    if not names or not chosen.may_call:
        return None
    wanted = (chosen.name,) if chosen.word == _NAMED else chosen.allowed or tuple(names)
    offer = AllowedTools(
        tuple(by_name[name] for name in dict.fromkeys(wanted)),
        allows_text=chosen.word == "auto",
        # Of old there is one call, and who names a tool means one.
        may_repeat=in_parallel and field == "tools" and chosen.word != _NAMED,
    )
    return OfferedFunctions(field, offer)


def _parameters(function: Function, place: str) -> dict[str, Any]:
    """The schema of the arguments, which are an object in any case. Raises InvalidRequest."""
    schema = function.arguments if function.parameters is None else function.parameters
    return _NO_PARAMETERS if schema is None else arguments_schema(schema, place)


def _check_each(tools: Sequence[ChatTool]) -> None:
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type == "custom":
            raise Unsupported(f"`{place}` is of type `custom`: only functions are served", place)
        if tool.type != "function":
            raise wrong(f"{place}.type", "must be `function`", tool.type)
        if tool.function is None:
            raise InvalidRequest(f"`{place}.function` is required", f"{place}.function")


def _check_names(field: str, names: Sequence[str]) -> None:
    if len(names) > _MOST:
        raise InvalidRequest(f"`{field}` must be at most {_MOST}. Given: {len(names)}", field)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"`{field}` has the name `{twice}` twice", field)


def _check_choice(field: str, tools_field: str, names: Sequence[str], choice: ToolChoice) -> None:
    if choice.word == _CUSTOM:
        raise Unsupported(f"`{field}` of type `{choice.word}` is not served", field)
    wanted = (choice.name,) if choice.word == _NAMED else choice.allowed
    if not names and (choice.word == "required" or wanted is not None):
        rule = f"asks for a call, but there are no `{tools_field}`"
        raise wrong(field, rule, choice.name if choice.word == _NAMED else choice.word)
    for name in wanted or ():
        if name not in names:
            raise ToolsRefused(
                f"Tool error: `{field}` names `{name[:60]}`, which is not among `{tools_field}`",
                field,
            )
