"""The bodies of Responses, with tools and the choice among them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ConfigDict, Field

from constraints.spec import Kind
from router.engine.validation import Limits, RawParams
from router.http.conversation import ChatPrompt, Setting, Turn
from router.http.fields import Strings
from router.http.logprobs import MAX_TOP_LOGPROBS
from router.http.request_validator import normalize
from router.http.responses.items import Items
from router.http.schema import Harmless, SamplingFields, Schema, StrictSchema
from router.http.tools.functions import (
    Choice,
    Function,
    Name,
    ToolChoice,
    allowed_functions,
    shown_functions,
)
from router.http.tools.grammar import AllowedTools
from router.request.errors import InvalidRequest, Unsupported, quoted, wrong
from router.request.parameters import RawGrammar


class FunctionTool(Schema):
    """A tool; only functions are served. OpenAI has them strict unless they say otherwise."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

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
            "strict": self.strict is not False,
        }


def _check_tools(tools: Sequence[FunctionTool]) -> None:
    """Raises Unsupported for tools of other kinds, InvalidRequest for one without a name."""
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type != "function":
            rule = f"must be `function`: others are not served. Given: {quoted(tool.type)}"
            raise Unsupported(f"`{place}.type` {rule}", f"{place}.type")
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
_LOGPROBS = "message.output_text.logprobs"
# But for the first, output that no response here has: to include it is to include nothing.
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
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_MAX_TOOL_CALLS = (1 << 31) - 1
_MAX_PAIRS, _MAX_KEY_LEN, _MAX_VALUE_LEN = 16, 64, 512

_COUNTED: Mapping[str, Harmless] = MappingProxyType(
    {
        "conversation": (),
        "reasoning": {"effort": _EFFORTS},
    }
)
_UNSUPPORTED: Mapping[str, Harmless] = MappingProxyType(
    {
        **_COUNTED,
        "access_programs": {},
        "context_management": ([],),
        "image": {},
        "moderation": (),
        "prompt": (),
        # Whatever is computed is cached, for as long as there is room.
        "prompt_cache_options": {
            "mode": ("implicit", "explicit"),
            "ttl": ("30m", "12h"),
            "prewarm": (False,),
        },
        "stream_options": {"include_obfuscation": (False,)},
    }
)


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
        return RawGrammar(Kind.JSON_SCHEMA, schema)


class TextConfig(Schema):
    """`text`."""

    model_config = ConfigDict(extra="forbid")

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CountInputBody(StrictSchema):
    """Body of /v1/responses/input_tokens."""

    unsupported = _COUNTED

    input: Items
    model: str | None = None
    instructions: str | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    text: TextConfig | None = None
    tool_choice: Choice | None = None
    tools: list[FunctionTool] | None = Field(default=None, fail_fast=True)
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def effort(self) -> str | None:
        """How hard the model is to think."""
        return ((self.model_extra or {}).get("reasoning") or {}).get("effort")

    @property
    def verbosity(self) -> str | None:
        """How much the model is to say."""
        return None if self.text is None else self.text.verbosity

    @property
    def allowed_tools(self) -> AllowedTools | None:
        """What may be called; None: nothing. Raises InvalidRequest for what contradicts itself."""
        functions = [tool.function for tool in self.tools or ()]
        in_parallel = self.parallel_tool_calls is not False
        return allowed_functions(functions, self.tool_choice, in_parallel=in_parallel)

    def chat_prompt(self, turns: Sequence[Turn]) -> ChatPrompt:
        """What the chat template renders."""
        return ChatPrompt(
            messages=[turn.for_template() for turn in turns],
            settings=(
                Setting("reasoning_effort", "reasoning.effort", self.effort, is_hint=True),
                Setting("verbosity", "text.verbosity", self.verbosity, is_hint=True),
            ),
            tools=shown_functions([tool.function for tool in self.tools or ()]),
            may_call=self.allowed_tools is not None,
        )

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served, or counted."""
        self.refuse_unsupported()
        _check_tools(self.tools or ())
        _ = self.allowed_tools


class ResponseBody(SamplingFields, CountInputBody):
    """Body of /v1/responses. The second group are extensions, as on OpenAI's other routes."""

    unsupported = _UNSUPPORTED

    background: bool | None = None
    include: list[_Includable] | None = Field(default=None, fail_fast=True)
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    stream: bool | None = None
    top_logprobs: int | None = None
    user: str | None = None

    ignore_eos: bool | None = None
    max_time: float | None = None
    stop: Strings | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether log-probabilities are returned."""
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def is_stored(self) -> bool:
        """Whether the response is remembered."""
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
        return normalize(raw, limits)


def _check_metadata(pairs: Mapping[str, str]) -> None:
    if len(pairs) > _MAX_PAIRS or any(
        len(key) > _MAX_KEY_LEN or len(value) > _MAX_VALUE_LEN for key, value in pairs.items()
    ):
        raise InvalidRequest(
            f"`metadata` must have at most {_MAX_PAIRS} pairs, their keys of at most "
            f"{_MAX_KEY_LEN} and their values of at most {_MAX_VALUE_LEN} characters",
            "metadata",
        )
