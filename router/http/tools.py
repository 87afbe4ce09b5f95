"""Tools: functions as clients declare them, the choice among them, the grammar of their calls.

Chats wrap a function in a tool; in Responses the tool is the function. OpenAI's old `functions` and
`function_call` are the same under other names; TGI names a tool by its bare name, and its
parameters `arguments`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any

import orjson
from pydantic import ConfigDict, PlainValidator, WithJsonSchema

from constraints.schema.reading import draft_of
from constraints.spec import Kind, Whitespace
from router.engine.validation import RawParams
from router.http.schema import Schema
from router.request.errors import (
    ConstraintRefused,
    InvalidRequest,
    ToolsRefused,
    Unsupported,
    wrong,
)
from router.request.parameters import RawGrammar
from router.text.answer_format import AnswerFormat, CallForm
from router.text.answer_grammar import answer_grammar, not_enforced

# Where a root reference of a schema is moved to; longer where the schema has the key.
_MOVED = "arguments"
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


def shown_functions(functions: Iterable[Function]) -> list[dict[str, Any]]:
    """The functions as the chat template sees them."""
    return [{"type": "function", "function": each.for_template()} for each in functions]


@dataclass(frozen=True, slots=True)
class AllowedTool:
    """A tool that may be called. `place` is the field of its parameters.

    If it is `strict`, it is refused where its parameters cannot be enforced whole.
    """

    name: str
    parameters: Mapping[str, Any]
    place: str
    strict: bool = False


@dataclass(frozen=True, slots=True)
class AllowedTools:
    """What an answer may consist of.

    allows_text: it may be text, before its calls or without any
    may_repeat: it may have several calls
    """

    tools: tuple[AllowedTool, ...]
    allows_text: bool
    may_repeat: bool


def allowed_functions(
    functions: Mapping[str, Function], choice: ToolChoice | None, *, in_parallel: bool
) -> AllowedTools | None:
    """The functions that may be called, by their places in the body.

    None: none. Raises InvalidRequest for what contradicts itself.
    """
    names = [function.name for function in functions.values()]
    check_names(names)
    tools = {}
    for place, function in functions.items():
        parameters = f"{place}.parameters"
        schema = function.arguments if function.parameters is None else function.parameters
        arguments = _NO_PARAMETERS if schema is None else arguments_schema(schema, parameters)
        tools[function.name] = AllowedTool(
            function.name, arguments, parameters, strict=bool(function.strict)
        )
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


def arguments_schema(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The schema, that of an object in any case; it stands in the field `place`.

    Pointers into it stay valid. Raises InvalidRequest if its `type` is not `object`.
    """
    if schema.get("type", "object") != "object":
        raise wrong(f"{place}.type", "must be `object`", schema["type"])
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not draft_of(schema).ref_is_alone:
        return {"type": "object", **schema}
    if _names_object(schema, reference):
        return dict(schema)
    # Drafts up to 7 ignore what stands beside a `$ref`, a `type` too.
    key = _MOVED
    while key in schema:
        key += "_"
    both = {"type": "object", "allOf": [{"$ref": reference}]}
    return {**schema, "$ref": f"#/{key}", key: both}


def _names_object(schema: Mapping[str, Any], reference: str) -> bool:
    """Whether a pointer leads straight to the schema of an object, as generated schemas have it."""
    target: Any = schema
    for key in reference.removeprefix("#/").split("/"):
        target = target.get(key) if isinstance(target, dict) else None
    return isinstance(target, dict) and target.get("type") == "object" and "$ref" not in target


def constrain_to_tools(
    raw: RawParams,
    allowed: AllowedTools,
    answer_format: AnswerFormat,
    marks: Mapping[str, int],
) -> RawParams:
    """The parameters with the grammar of the allowed calls.

    `marks` are the special tokens in the format, by name; they are shown to the reader of calls.

    A grammar that the parameters have already is that of answers without calls. Raises ToolsRefused
    where the two cannot be combined, and ConstraintRefused for a strict tool whose parameters this
    format cannot be held to.
    """
    form = None
    parts = {tool.place: _arguments(tool, answer_format) for tool in allowed.tools}
    if raw.grammar is not None and allowed.allows_text:
        form = _form(raw.grammar, raw.names["grammar"], answer_format)
        parts[raw.names["grammar"]] = replace(raw.grammar, cuts=True, is_part=True)
    for token_id in raw.stop_token_ids or ():
        if token_id in marks.values():
            rule = "must have no token of the model's calls where `tools` may be called"
            raise wrong(raw.name("stop_token_ids"), rule, token_id)
    text = tool_grammar(allowed, answer_format, form, marks)
    return replace(
        raw,
        grammar=RawGrammar(Kind.LARK, text, whitespace=Whitespace.OPTIONAL),
        grammar_parts=tuple(parts.items()),
        names={**raw.names, "grammar": "tools"},
        shown_ids=frozenset(marks.values()),
    )


def _arguments(tool: AllowedTool, answer_format: AnswerFormat) -> RawGrammar:
    """What the arguments of a call must be, to be checked by itself. Raises ConstraintRefused."""
    lost = not_enforced(answer_format, tool.parameters)
    if lost and tool.strict:
        raise ConstraintRefused(
            f"`{tool.place}`: {lost[0]}: cannot be enforced where the model writes parameters one"
            " by one; without `strict` it is left to a check of the finished text",
            "not_enforced",
            {"pointer": lost[0]},
            tool.place,
        )
    return RawGrammar(
        Kind.JSON_SCHEMA,
        tool.parameters,
        lenient=True if lost else None,
        cuts=True,
        strict=tool.strict,
        not_enforced=tuple(lost),
        is_part=True,
    )


def _form(grammar: RawGrammar, field: str, answer_format: AnswerFormat) -> str:
    """The schema of an answer that does not call, as JSON text. Raises ToolsRefused."""
    reads = grammar.lenient or grammar.any_key_order
    says_more = grammar.whitespace or reads or grammar.cuts
    if grammar.kind is not Kind.JSON_SCHEMA or says_more:
        raise ToolsRefused(
            f"`{field}` and tools that may be called cannot both shape an answer, unless `{field}` "
            "is a JSON schema and says nothing else",
            field,
        )
    if answer_format.calls is not None and answer_format.calls.is_bare:
        raise ToolsRefused(
            f"`{field}` and tools that may be called cannot both shape an answer of this model, "
            "whose calls are JSON by themselves",
            field,
        )
    return grammar.constraint(field).spec.text


def tool_grammar(
    allowed: AllowedTools,
    answer_format: AnswerFormat,
    form: str | None = None,
    marks: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """The grammar of answers that may call these tools; see `answer_grammar`."""
    return answer_grammar(
        answer_format,
        marks,
        {tool.name: tool.parameters for tool in allowed.tools},
        allows_text=allowed.allows_text,
        may_repeat=allowed.may_repeat,
        form=form,
    )


def add_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    form: CallForm,
    prompt: str | None = None,
) -> list[Mapping[str, Any]]:
    """The messages, with the tools behind the text of the user's last one.

    For templates that show no calls; the place is TGI's, and stays the same while results follow.
    Without a user's message it is the last one that is not the assistant's. `prompt` follows the
    tools. Without `tools` the template shows them.
    """
    if prompt is None:
        prompt = f"To call one of these functions, answer with {form.example}"
    shown = f"{orjson.dumps(tools).decode()}\n" if tools else ""
    tools_text = f"\n---\n{shown}{prompt}"
    roles = [message["role"] for message in messages]
    places = [index for index, role in enumerate(roles) if role == "user"]
    places = places or [index for index, role in enumerate(roles) if role != "assistant"]
    if not places:
        return list(messages)
    index = places[-1]
    message = messages[index]
    content = message.get("content", "")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": tools_text}]
    else:
        content = f"{content}{tools_text}"
    message = {**message, "content": content}
    return [*messages[:index], message, *messages[index + 1 :]]
