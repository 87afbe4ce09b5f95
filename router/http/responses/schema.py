"""The bodies of Responses: items of a conversation, tools and the choice among them.

Items are messages, calls and their outputs, as clients write them.
"""

import uuid
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from constraints.spec import Kind
from router.engine.validation import Limits, RawParams
from router.http.conversation import (
    ChatPrompt,
    PartForm,
    Setting,
    Turn,
    images_in,
    read_parts,
    read_role,
)
from router.http.images import (
    URL_SCHEMA,
    Part,
    file_image,
    joined,
    kept_texts,
    text_of,
)
from router.http.logprobs import MAX_TOP_LOGPROBS
from router.http.openai.schema import normalize, with_defaults
from router.http.schema import (
    Harmless,
    SamplingFields,
    Schema,
    StrictSchema,
    Strings,
    object_schema,
)
from router.http.thinking import Thinking
from router.http.tools import (
    AllowedTools,
    Choice,
    Function,
    Name,
    ToolChoice,
    allowed_functions,
    shown_functions,
)
from router.request.errors import InvalidRequest, Unsupported, quoted, wrong
from router.request.parameters import RawGrammar

_ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("completed", "incomplete", "in_progress")
_INPUT_PARTS = PartForm("part", ("input_text",), "input_image", file_image)
# What an assistant said comes back as it went out; some clients write it as input all the same.
_OUTPUT_PARTS = PartForm("part", ("output_text", "input_text"))
_THOUGHT_PART = "reasoning_text"
_MAX_ID_LEN = 128


@dataclass(frozen=True, slots=True)
class MessageItem:
    """What one side said, in parts. `status` is OpenAI's word for its end."""

    item_id: str
    role: str
    parts: tuple[Part, ...]
    status: str = "completed"

    @property
    def texts(self) -> tuple[str, ...]:
        return kept_texts(self.parts)

    @property
    def turn(self) -> Turn:
        return Turn(self.role, joined(self.parts))


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that the model made. `arguments` are JSON text, whose end is missing if it was cut."""

    item_id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.call_id, self.name, self.arguments)

    @property
    def turn(self) -> Turn:
        """What the chat template sees, which knows calls as parts of what the assistant said."""
        function = {"name": self.name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return Turn("assistant", "", (call,))

    def fields(self) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "function_call",
            "status": self.status,
            "arguments": self.arguments,
            "call_id": self.call_id,
            "name": self.name,
        }


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    """What came of a call: a text, or parts."""

    item_id: str
    call_id: str
    output: str | tuple[Part, ...]
    status: str = "completed"

    @property
    def texts(self) -> tuple[str, ...]:
        output = (self.output,) if isinstance(self.output, str) else self.output
        return (self.call_id, *kept_texts(output))

    @property
    def turn(self) -> Turn:
        return Turn("tool", joined(self.output), call_id=self.call_id)


@dataclass(frozen=True, slots=True)
class ReasoningItem:
    """What the model thought before it said or called something."""

    item_id: str
    thought: str
    status: str = "completed"

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.thought,)

    @property
    def turn(self) -> Turn:
        return Turn("assistant", "", thought=self.thought)


Item = MessageItem | FunctionCall | FunctionOutput | ReasoningItem


def turns_of(items: Sequence[Item]) -> list[Turn]:
    """What the chat template sees: thought, text and calls of one answer are one turn."""
    turns: list[Turn] = []
    for item in items:
        turn = item.turn
        last = turns[-1] if turns else None
        if last is None or last.role != "assistant" or turn.role != "assistant":
            turns.append(turn)
        elif turn.calls:
            turns[-1] = replace(last, calls=(*last.calls, *turn.calls))
        elif last.thought and not last.content and not last.calls:
            thoughts = [thought for thought in (last.thought, turn.thought) if thought]
            turns[-1] = replace(turn, thought="\n".join(thoughts))
        else:
            turns.append(turn)
    return turns


def new_item_id(kind: str) -> str:
    """An id that no other item has; `kind` is what OpenAI's begin with."""
    return f"{kind}_{uuid.uuid4().hex}"


def message_fields(
    item_id: str, role: str, status: str, parts: list[dict[str, Any]]
) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "status": status, "role": role, "content": parts}


def output_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """A part of what the model said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def reasoning_fields(item: ReasoningItem, *, shows_encrypted: bool = False) -> dict[str, Any]:
    """A thought as OpenAI tells it. There is no summary of it.

    `encrypted_content` is the text itself, for clients that send it back where nothing is stored.
    """
    parts = [{"type": _THOUGHT_PART, "text": item.thought}] if item.thought else []
    fields = {
        "id": item.item_id,
        "type": "reasoning",
        "summary": [],
        "content": parts,
        "status": item.status,
    }
    if not shows_encrypted:
        return fields
    return {**fields, "encrypted_content": b64encode(item.thought.encode()).decode()}


@dataclass(frozen=True, slots=True)
class Reference:
    """An item that is remembered, by its id."""

    item_id: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An item that the conversation goes on without. `place` is where the input has it."""

    place: str


def check_outputs(before: Sequence[Item], given: Sequence[Item]) -> None:
    """Raises InvalidRequest for an output of no call; `given` is what the request has as input."""
    called = {item.call_id for item in before if isinstance(item, FunctionCall)}
    for index, item in enumerate(given):
        if isinstance(item, FunctionCall):
            called.add(item.call_id)
        elif isinstance(item, FunctionOutput) and item.call_id not in called:
            place = f"input[{index}].call_id"
            raise InvalidRequest(
                f"`{place}` must be the `call_id` of a function call before it. "
                f"Given: `{item.call_id[:60]}`",
                place,
            )


def _read_items(value: Any) -> tuple[Item | Reference | LeftOut, ...]:
    if isinstance(value, str):
        return (MessageItem(new_item_id("msg"), "user", (value,)),)
    if not isinstance(value, list) or not value:
        raise wrong("input", "must be a string or a list of at least one item", value)
    return tuple(_read_item(item, f"input[{index}]") for index, item in enumerate(value))


def _read_item(item: Any, place: str) -> Item | Reference | LeftOut:
    if not isinstance(item, dict):
        raise wrong(place, "must be an object", item)
    # Both are known by what they have, where their type is not said.
    kind = item.get("type") or (
        "item_reference" if "id" in item and "role" not in item else "message"
    )
    if kind == "message":
        return _read_message(item, place)
    if kind == "function_call":
        return _read_call(item, place)
    if kind == "function_call_output":
        return _read_output(item, place)
    if kind == "reasoning":
        return _read_reasoning(item, place)
    if kind == "item_reference":
        return Reference(_read_string(item, "id", place))
    raise Unsupported(
        f"`{place}` must be an item of type `message`, `function_call`, `function_call_output`, "
        f"`reasoning` or `item_reference`; others are not served yet. Given: {quoted(kind)}",
        place,
    )


def _read_message(item: dict[str, Any], place: str) -> MessageItem:
    role = read_role(item, place, _ROLES)
    item_id = _read_id(item, "msg", place)
    form = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
    parts = read_parts(item.get("content"), f"{place}.content", form)
    parts = (parts,) if isinstance(parts, str) else parts
    return MessageItem(item_id, role, parts, _read_status(item, place))


def _read_call(item: dict[str, Any], place: str) -> FunctionCall:
    call_id, name, arguments = (
        _read_string(item, field, place) for field in ("call_id", "name", "arguments")
    )
    item_id = _read_id(item, "fc", place)
    status = _read_status(item, place)
    return FunctionCall(item_id, call_id, name, arguments, status)


def _read_output(item: dict[str, Any], place: str) -> FunctionOutput:
    call_id = _read_string(item, "call_id", place)
    output = read_parts(item.get("output"), f"{place}.output", _INPUT_PARTS)
    item_id = _read_id(item, "fco", place)
    status = _read_status(item, place)
    return FunctionOutput(item_id, call_id, output, status)


def _read_reasoning(item: dict[str, Any], place: str) -> ReasoningItem | LeftOut:
    """What the model thought; of another model's thoughts there may be a summary, or nothing."""
    texts: list[str] = []
    for field, kind in (("content", _THOUGHT_PART), ("summary", "summary_text")):
        parts = item.get(field)
        if not texts and parts is not None:
            texts = [text_of(read_parts(parts, f"{place}.{field}", PartForm("part", (kind,))))]
    thought = "".join(texts) or _decrypted(item.get("encrypted_content"), place)
    item_id = _read_id(item, "rs", place)
    status = _read_status(item, place)
    return ReasoningItem(item_id, thought, status) if thought else LeftOut(place)


def _decrypted(value: Any, place: str) -> str:
    """What `reasoning_fields` has written; nothing where another server has encrypted it."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(f"{place}.encrypted_content", "must be a string", value)
    try:
        return b64decode(value, validate=True).decode()
    except ValueError:
        return ""


def _read_string(item: dict[str, Any], field: str, place: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise wrong(f"{place}.{field}", "must be a string", value)
    return value


def _read_id(item: dict[str, Any], kind: str, place: str) -> str:
    item_id = item.get("id")
    if item_id is not None and not (isinstance(item_id, str) and 0 < len(item_id) <= _MAX_ID_LEN):
        rule = f"must be a string of 1 to {_MAX_ID_LEN} characters, or absent"
        raise wrong(f"{place}.id", rule, item_id)
    return item_id or new_item_id(kind)


def _read_status(item: dict[str, Any], place: str) -> str:
    status = item.get("status")
    if status is None:
        return "completed"
    if status not in _STATUSES:
        rule = "must be `completed`, `incomplete` or `in_progress`"
        raise wrong(f"{place}.status", rule, status)
    return str(status)


_TEXT: dict[str, Any] = {"type": "string"}
_TEXT_PART = object_schema({"type": {"enum": ["input_text", "output_text"]}, "text": _TEXT})
_IMAGE_PART = object_schema({"type": {"const": "input_image"}, "image_url": URL_SCHEMA})
_PARTS_SCHEMA: dict[str, Any] = {
    "anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_TEXT_PART, _IMAGE_PART]}}]
}
_THOUGHTS = {"type": ["array", "null"]}
_CALL_SCHEMA = {"type": {"const": "function_call"}, "call_id": _TEXT, "name": _TEXT}
_OUTPUT_SCHEMA = {"type": {"const": "function_call_output"}, "call_id": _TEXT}
_ITEM_SCHEMA: dict[str, Any] = {
    "anyOf": [
        object_schema(
            {"role": {"enum": [*_ROLES]}, "content": _PARTS_SCHEMA}, type={"const": "message"}
        ),
        object_schema({**_CALL_SCHEMA, "arguments": _TEXT}),
        object_schema({**_OUTPUT_SCHEMA, "output": _PARTS_SCHEMA}),
        object_schema({"type": {"const": "reasoning"}}, content=_THOUGHTS, summary=_THOUGHTS),
        object_schema({"type": {"const": "item_reference"}, "id": _TEXT}),
    ]
}
_ITEMS_SCHEMA: dict[str, Any] = {
    "anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _ITEM_SCHEMA}]
}
Items = Annotated[
    tuple[Item | Reference | LeftOut, ...],
    PlainValidator(_read_items),
    WithJsonSchema(_ITEMS_SCHEMA),
]
_FUNCTION = "function"


class FunctionTool(Schema):
    """A tool; only functions are offered to the model.

    OpenAI has them strict by default; here one is strict that says so. Of a tool of another type,
    which OpenAI runs or only its models know, nothing else is read.
    """

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_foreign(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        return {"type": kind} if isinstance(kind, str) and kind != _FUNCTION else value

    @property
    def function(self) -> Function:
        """The function as in chats, once the name is there."""
        given = self.model_dump(exclude={"type"}, exclude_unset=True)
        return Function.model_validate(given)

    def echoed(self) -> dict[str, Any]:
        """As a response echoes it."""
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


def _check_functions(tools: Mapping[str, FunctionTool]) -> None:
    """Raises InvalidRequest for one without a name."""
    for place, tool in tools.items():
        if tool.name is None:
            raise InvalidRequest(
                f"`{place}.name` is required: a function's fields stand beside `type`, not below "
                "`function` as in chats",
                f"{place}.name",
            )


def echoed_choice(choice: ToolChoice | None) -> Any:
    """As a response echoes it."""
    if choice is None:
        return "auto"
    if choice.allowed is not None:
        tools = [{"type": "function", "name": name} for name in choice.allowed]
        return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
    return {"type": "function", "name": choice.name} if choice.name else choice.mode


_ANY_OBJECT = {"type": "object"}


class TextFormat(Schema):
    """`text.format`: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def grammar(self) -> RawGrammar | None:
        """What the answer must be; None: any text. Raises InvalidRequest without a schema."""
        if self.type == "text":
            return None
        schema = _ANY_OBJECT if self.type == "json_object" else self.schema_
        if schema is None:
            raise InvalidRequest("`text.format.schema` is required", "text.format.schema")
        return RawGrammar(Kind.JSON_SCHEMA, schema, strict=bool(self.strict))


class TextConfig(Schema):
    """`text`."""

    model_config = ConfigDict(extra="forbid")

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Schema):
    """`reasoning`."""

    model_config = ConfigDict(extra="forbid")
    hints = frozenset({"context", "generate_summary", "mode", "summary"})

    context: str | None = None
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    generate_summary: str | None = None
    mode: str | None = None
    summary: str | None = None


_COUNTED: Mapping[str, Harmless] = MappingProxyType({"conversation": ()})


class CountInputBody(StrictSchema):
    """Body of /v1/responses/input_tokens."""

    unsupported = _COUNTED

    input: Items
    model: str | None = None
    instructions: str | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tool_choice: Choice | None = None
    tools: list[FunctionTool] | None = Field(default=None, fail_fast=True)
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def verbosity(self) -> str | None:
        return None if self.text is None else self.text.verbosity

    @property
    def functions(self) -> Mapping[str, FunctionTool]:
        """The tools that are offered to the model, by their places."""
        return {
            f"tools[{index}]": tool
            for index, tool in enumerate(self.tools or ())
            if tool.type == _FUNCTION
        }

    @property
    def allowed_tools(self) -> AllowedTools | None:
        """What may be called; None: nothing. Raises InvalidRequest for what contradicts itself."""
        functions = {place: tool.function for place, tool in self.functions.items()}
        in_parallel = self.parallel_tool_calls is not False
        return allowed_functions(functions, self.tool_choice, in_parallel=in_parallel)

    def chat_prompt(self, turns: Sequence[Turn]) -> ChatPrompt:
        """What the chat template renders."""
        return ChatPrompt(
            messages=[turn.for_template() for turn in turns],
            images=images_in(turns),
            settings=(
                Setting("reasoning_effort", "reasoning.effort", self.effort, is_hint=True),
                Setting("verbosity", "text.verbosity", self.verbosity, is_hint=True),
            ),
            thinking=Thinking(
                is_wanted=False if self.effort == "none" else None, field="reasoning.effort"
            ),
            thought_places=tuple(
                f"input[{index}]"
                for index, item in enumerate(self.input)
                if isinstance(item, ReasoningItem)
            ),
            tools=shown_functions(tool.function for tool in self.functions.values()),
            may_call=self.allowed_tools is not None,
        )

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served, or counted."""
        self.refuse_unsupported()
        _check_functions(self.functions)
        _ = self.allowed_tools

    def ignored_fields(self) -> list[str]:
        """Hints, the tools that are no functions, and the items that are left out."""
        places = (f"tools[{index}]" for index in range(len(self.tools or ())))
        tools = [place for place in places if place not in self.functions]
        items = [item.place for item in self.input if isinstance(item, LeftOut)]
        return [*super().ignored_fields(), *tools, *items]


_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
# But for two of them, output that no response here has: to include it is to include nothing.
_Includable = Literal[
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
_UNSUPPORTED: Mapping[str, Harmless] = MappingProxyType(
    {
        **_COUNTED,
        "access_programs": {},
        "image": {},
        "moderation": (),
        "prompt": (),
    }
)
_MAX_TOOL_CALLS = (1 << 31) - 1
_MAX_PAIRS = 16
_MAX_KEY_LEN = 64
_MAX_VALUE_LEN = 512


class StreamOptions(Schema):
    """`stream_options`. Events are not padded, whatever is said."""

    model_config = ConfigDict(extra="forbid")

    include_obfuscation: bool | None = None


class ResponseBody(SamplingFields, CountInputBody):
    """Body of /v1/responses. The second group are extensions, as on OpenAI's other routes."""

    unsupported = _UNSUPPORTED
    hints = frozenset({"client_metadata", "context_management"})

    background: bool | None = None
    client_metadata: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = Field(default=None, fail_fast=True)
    include: list[_Includable] | None = Field(default=None, fail_fast=True)
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    # Whatever is computed is cached, for as long as there is room.
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_logprobs: int | None = None
    user: str | None = None

    ignore_eos: bool | None = None
    max_time: float | None = None
    stop: Strings | None = None

    def ignored_fields(self) -> list[str]:
        """Besides, what is to be included of output that no response has."""
        includes = enumerate(self.include or ())
        served = (_LOGPROBS, _ENCRYPTED)
        absent = [f"include[{index}]" for index, name in includes if name not in served]
        return [*absent, *super().ignored_fields()]

    @property
    def has_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def shows_encrypted_thoughts(self) -> bool:
        return _ENCRYPTED in (self.include or ())

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served."""
        super().check()
        _check_metadata(self.metadata or {})
        if self.background and not self.is_stored:
            raise InvalidRequest(
                "`background` must be false where `store` is: nobody could read the response",
                "background",
            )
        # It has no effect, but is echoed.
        if not 0 <= (self.max_tool_calls or 0) <= _MAX_TOOL_CALLS:
            rule = f"must be between 0 and {_MAX_TOOL_CALLS}"
            raise wrong("max_tool_calls", rule, self.max_tool_calls)

    def to_raw(self, limits: Limits) -> RawParams:
        """The raw parameters. Raises InvalidRequest for what breaks a rule."""
        text_format = None if self.text is None else self.text.format
        raw = RawParams(
            **self.sampling(),
            max_time=self.max_time,
            max_new_tokens=self.max_output_tokens,
            stop=self.stop,
            ignore_eos=bool(self.ignore_eos),
            keep_stop_string=False,
            top_n_tokens=self.top_logprobs,
            max_top_n_tokens=MAX_TOP_LOGPROBS,
            raw_logprobs=self.has_logprobs,
            grammar=None if text_format is None else text_format.grammar(),
            names={
                "grammar": "text.format",
                "inputs": "input",
                "max_new_tokens": "max_output_tokens",
                "top_n_tokens": "top_logprobs",
            },
        )
        return normalize(with_defaults(raw, limits), limits)


def _check_metadata(pairs: Mapping[str, str]) -> None:
    if len(pairs) > _MAX_PAIRS or any(
        len(key) > _MAX_KEY_LEN or len(value) > _MAX_VALUE_LEN for key, value in pairs.items()
    ):
        raise InvalidRequest(
            f"`metadata` must have at most {_MAX_PAIRS} pairs, their keys of at most "
            f"{_MAX_KEY_LEN} and their values of at most {_MAX_VALUE_LEN} characters",
            "metadata",
        )
