"""OpenAI's bodies, and what they mean as raw parameters, prompts and tools.

messages, tools --ChatBody--> ChatPrompt for the template, AllowedTools
parameters --to_raw, normalize--> RawParams in the engine's values
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from router.engine.validation import Limits, RawParams
from router.http.conversation import ChatPrompt, Setting
from router.http.images import (
    URL_SCHEMA,
    Part,
    chat_image,
    images_of,
    shown_content,
    text_of,
)
from router.http.logprobs import MAX_TOP_LOGPROBS
from router.http.openai.formats import Formats
from router.http.schema import (
    Prompts,
    SamplingFields,
    Schema,
    Strings,
    object_schema,
)
from router.http.thinking import Thinking, ThinkingField, checked_budget
from router.http.tools import (
    AllowedTools,
    Choice,
    Function,
    allowed_functions,
    shown_functions,
)
from router.request.errors import InvalidRequest, ToolsRefused, Unsupported, quoted, wrong
from router.request.parameters import WARPERS, check_parameters
from router.request.request import NUM_SEEDS
from router.text.template_traits import THOUGHT_KEY

# OpenAI's seeds have a sign.
_MIN_SEED = -(NUM_SEEDS // 2)
# Keeps the most probable token alone, as 0 does.
_SMALLEST_TOP_P = 1e-6
# For each field its neutral values, and why all others are refused.
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "functions": (([],), "`tools` have replaced it"),
        "function_call": (("none", "auto"), "`tool_choice` has replaced it"),
        "audio": ((), "answers are text"),
        "modalities": (([], ["text"]), "answers are text"),
        "moderation": ((), "answers are not judged"),
        "store": ((False,), "answers are not kept"),
        "web_search_options": ((), "the model sees its prompt alone"),
        "suffix": (("",), "text is only ever added at the end"),
        "prompt_embeds": ((), "prompts are text or token ids"),
        "allowed_token_ids": (([],), "what an answer may consist of, a grammar says"),
        "logprob_token_ids": (([],), "only the most probable tokens are reported"),
        "use_beam_search": ((False,), "answers are drawn one token after the other"),
        "length_penalty": ((1,), "there is no beam search"),
        "logits_processors": (([],), "clients cannot bring code"),
        "truncation_side": (("left",), "prompts are cut at their beginning"),
        "priority": ((0,), "requests are served in the order of their arrival"),
        "kv_transfer_params": ((), "caches stay where they are"),
        "repetition_detection": ((), "answers end by their length, a stop or the model's will"),
    }
)
# Roles whose messages are nothing without a content.
_SPEAKERS = frozenset({"system", "developer", "user", "tool", "function"})
_TEXT_KEYS = {"text": "text", "refusal": "refusal"}
_THOUGHT_KEYS = {"thinking": "thinking", "reasoning": "text"}
_IMAGE = "image_url"
_MEDIA = frozenset(
    {
        "image", "input_image", "image_embeds", "image_pil", "input_audio", "audio", "audio_url",
        "audio_embeds", "video", "video_url", "file", "input_file",
    }
)  # fmt: skip
_TEXT_SCHEMA = object_schema({"type": {"const": "text"}, "text": {"type": "string"}})
_IMAGE_SCHEMA = object_schema(
    {
        "type": {"const": _IMAGE},
        "image_url": {"anyOf": [URL_SCHEMA, object_schema({"url": URL_SCHEMA})]},
    }
)
_PART_SCHEMA = {"anyOf": [_TEXT_SCHEMA, _IMAGE_SCHEMA]}
_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": _PART_SCHEMA, "minItems": 1},
        {"type": "null"},
    ]
}
_ARGUMENTS_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}
_EFFORT = re.compile(r"none|minimal|low|medium|high|xhigh|max")
_VERBOSITY = re.compile(r"low|medium|high")


def normalize(raw: RawParams, limits: Limits) -> RawParams:
    """`raw` with temperature, top_p, top_k and seed in the engine's values, not in OpenAI's, vLLM's
    and Anthropic's, whose clients sample unless the temperature is 0.

    Raises InvalidRequest for a value that breaks a rule though it has no effect.
    """
    _check_ranges(raw)
    is_greedy = raw.temperature == 0
    meant = replace(
        raw,
        do_sample=not is_greedy,
        temperature=None if is_greedy else raw.temperature,
        top_p=_SMALLEST_TOP_P if raw.top_p == 0 else None if raw.top_p == 1 else raw.top_p,
        top_k=None if raw.top_k in (0, -1) else raw.top_k,
        seed=_unsigned(raw),
    )
    if not is_greedy:
        return meant
    # With temperature 0 the other ways to narrow the choice mean nothing, but must be in order.
    check_parameters(meant, limits)
    unset: dict[str, Any] = dict.fromkeys(WARPERS)
    return replace(meant, **unset)


def with_defaults(raw: RawParams, limits: Limits) -> RawParams:
    """`raw` with the model's own values for the sampling parameters that the client left out."""
    left_out: dict[str, Any] = {
        name: int(value) if name == "top_k" else value
        for name, value in limits.sampling_defaults.items()
        if getattr(raw, name) is None
    }
    return replace(raw, **left_out)


def _check_ranges(raw: RawParams) -> None:
    """Those that are wider here than the engine's, which has no value for what is neutral."""
    for word, rule, is_inside in (
        ("temperature", "at least 0", (raw.temperature or 0) >= 0),
        ("top_p", "between 0 and 1", 0 <= (raw.top_p or 0) <= 1),
        ("top_k", "at least -1 (all, as is 0)", (raw.top_k or 0) >= -1),
    ):
        if not is_inside:
            raise raw.refuse(word, rule, getattr(raw, word))


def _unsigned(raw: RawParams) -> int | None:
    """A negative seed is one of the upper half of the engine's."""
    if raw.seed is None or raw.seed >= 0:
        return raw.seed
    if raw.seed < _MIN_SEED:
        raise raw.refuse("seed", f"between {_MIN_SEED} and {NUM_SEEDS - 1}", raw.seed)
    return raw.seed % NUM_SEEDS


class StreamOptions(Schema):
    """`stream_options`. Chunks are not padded, whatever `include_obfuscation` says."""

    names_unknown = True

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAiBody(SamplingFields, Formats):
    """What both routes read: OpenAI's fields, those without effect on the answer, vLLM's."""

    model_config = ConfigDict(extra="allow")
    names_unknown = True
    known_fields = frozenset(_REFUSED)

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    stop: Strings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    spaces_between_special_tokens: bool | None = None

    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    echo: bool | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    max_time: float | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    truncate_prompt_tokens: int | None = None

    @property
    def num_choices(self) -> int:
        """Choices to answer for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_draws(self) -> int:
        """Sequences to draw for each prompt."""
        return self.num_choices

    @property
    @abstractmethod
    def num_top_logprobs(self) -> int | None:
        """Alternatives to report for each generated token; None: no log-probabilities."""

    @property
    def only_scores(self) -> bool:
        """Whether nothing is to be generated. The model still draws a token, which is dropped."""
        return False

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_running_usage(self) -> bool:
        """Whether each chunk of a stream holds the usage so far."""
        options = self.stream_options
        return self.includes_usage and options is not None and bool(options.continuous_usage_stats)

    def check_supported(self) -> None:
        """Raises InvalidRequest for what would otherwise be silently ignored."""
        self.named_grammar()
        for name, (neutral, reason) in _REFUSED.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in neutral:
                raise Unsupported(f"`{name}` is not served: {reason}; leave it out", name)
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "needs `stream` to be true", self.stream)

    def _raw(
        self,
        limits: Limits,
        *,
        max_new_tokens: int | None,
        scores_prompt: bool,
        names: Mapping[str, str],
    ) -> RawParams:
        name, grammar = self.named_grammar() or ("response_format", None)
        self._check_tops(limits, names["top_n_tokens"])
        tops = [top for top in (self.num_top_logprobs, self.prompt_logprobs) if top is not None]
        raw = RawParams(
            **self.sampling(),
            max_time=self.max_time,
            cache_salt=self.cache_salt,
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_tokens,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            keep_stop_string=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            truncate=self._truncate(limits),
            top_n_tokens=max(tops, default=None),
            max_top_n_tokens=MAX_TOP_LOGPROBS,
            # A request without log-probabilities does not compute them, and may take forced tokens.
            raw_logprobs=bool(tops) or self.num_draws > self.num_choices,
            grammar=grammar,
            decoder_input_details=scores_prompt or self.prompt_logprobs is not None,
            names={
                "grammar": name,
                "min_new_tokens": "min_tokens",
                "truncate": "truncate_prompt_tokens",
                **names,
            },
        )
        return normalize(with_defaults(raw, limits), limits)

    def _check_tops(self, limits: Limits, name: str) -> None:
        most = max(MAX_TOP_LOGPROBS, limits.max_top_n_tokens)
        for field, top in (
            (name, self.num_top_logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ):
            if top is not None and not 0 <= top <= most:
                raise InvalidRequest(f"`{field}` must be between 0 and {most}. Given: {top}", field)
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest(
                "`prompt_logprobs` must be absent when tokens are streamed", "prompt_logprobs"
            )

    def _truncate(self, limits: Limits) -> int | None:
        """-1: whatever fits."""
        if self.truncate_prompt_tokens == -1:
            return limits.max_input_len
        return self.truncate_prompt_tokens


def _content(value: Any) -> str | list[Any] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return value
    raise ValueError("must be a string or a list of one or more parts")


def _arguments(value: Any) -> str | dict[str, Any] | None:
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("must be an object, as JSON text or as it is")


Content = Annotated[
    str | list[Any] | None, PlainValidator(_content), WithJsonSchema(_CONTENT_SCHEMA)
]
Arguments = Annotated[
    str | dict[str, Any] | None, PlainValidator(_arguments), WithJsonSchema(_ARGUMENTS_SCHEMA)
]


class MessageFunctionCall(Schema):
    """What an assistant called. TGI says `parameters` too."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: Arguments = None
    parameters: Arguments = None

    def for_template(self) -> dict[str, Any]:
        """As OpenAI has it."""
        shown = self.model_dump(exclude_none=True)
        parameters = shown.pop("parameters", None)
        return (
            shown
            if "arguments" in shown or parameters is None
            else shown | {"arguments": parameters}
        )


class ToolCall(Schema):
    """A call of an assistant's message."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    type: str = "function"
    function: MessageFunctionCall | None = None

    def for_template(self) -> dict[str, Any]:
        """As the chat template sees it."""
        shown = self.model_dump(exclude_none=True, exclude={"function"})
        return (
            shown if self.function is None else shown | {"function": self.function.for_template()}
        )


class Message(Schema):
    """One turn. Fields beyond these reach the chat template as they came."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Content = None
    tool_calls: list[ToolCall] | None = Field(default=None, fail_fast=True)
    function_call: MessageFunctionCall | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def thought(self) -> str:
        """What the assistant thought before it said so, under any of its names."""
        parts = self.content if isinstance(self.content, list) else ()
        thoughts = [part[_THOUGHT_KEYS[part["type"]]] for part in parts if _is_thought(part)]
        return self.reasoning_content or self.reasoning or "".join(thoughts)

    @property
    def thought_field(self) -> str:
        """Where the thought stands; "" without one."""
        if not self.thought:
            return ""
        names = ("reasoning_content", "reasoning")
        return next((name for name in names if getattr(self, name)), "content")

    @property
    def is_continuable(self) -> bool:
        """An assistant's text, which an answer may go on with."""
        return self.role == "assistant" and self.content is not None and not self.tool_calls

    @property
    def text(self) -> str:
        """The content's texts, joined as TGI joins them."""
        return text_of(self.parts(""))

    def parts(self, place: str) -> tuple[Part, ...]:
        """The content, without thoughts; `place` is that of the message."""
        if not isinstance(self.content, list):
            return (self.content or self.refusal or "",)
        return tuple(
            chat_image(part, f"{place}.content[{index}]")
            if part["type"] == _IMAGE
            else part[_TEXT_KEYS[part["type"]]]
            for index, part in enumerate(self.content)
            if not _is_thought(part)
        )

    def check(self, place: str) -> None:
        """Raises InvalidRequest for what says nothing, Unsupported for what is no text."""
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            _check_part(part, f"{place}.content[{index}]")
        for index, call in enumerate(self.tool_calls or ()):
            _check_call(call, f"{place}.tool_calls[{index}]")
        if self.content is not None:
            return
        acts = bool(self.tool_calls) or self.function_call is not None or self.refusal is not None
        acts = acts or bool(self.thought)
        if self.role in _SPEAKERS or (self.role == "assistant" and not acts):
            unless = " unless there are `tool_calls`" if self.role == "assistant" else ""
            raise InvalidRequest(
                f"`{place}.content` is required of the role `{self.role}`{unless}",
                f"{place}.content",
            )

    def for_template(self) -> dict[str, Any]:
        """What the chat template sees; nulls, which some clients send, are left out."""
        shown = self.model_dump(
            exclude_none=True,
            exclude={"content", "tool_calls", "function_call", "reasoning", "reasoning_content"},
        )
        if self.role == "assistant" and self.thought:
            shown[THOUGHT_KEY] = self.thought
        is_thought_alone = bool(self.thought) and not (self.tool_calls or self.function_call)
        if self.content is not None or self.refusal is not None or is_thought_alone:
            shown["content"] = shown_content(self.parts(""))
        if self.tool_calls:
            shown["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.function_call is not None:
            shown["function_call"] = self.function_call.for_template()
        return shown


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _THOUGHT_KEYS


def _check_part(part: Any, place: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == _IMAGE:
        chat_image(part, place)
        return
    if isinstance(kind, str) and kind in _MEDIA:
        raise Unsupported(f"`{place}` is of type `{kind}`, which is not served", place)
    keys = {**_TEXT_KEYS, **_THOUGHT_KEYS}
    key = keys.get(kind) if isinstance(kind, str) else None
    if key is None or not isinstance(part.get(key), str):
        given = f"the type {quoted(kind)}" if kind else quoted(part)
        if key is not None:
            given = f"the {key} {quoted(part.get(key))}"
        raise InvalidRequest(
            f'`{place}` must be like {{"type": "text", "text": "..."}}. Given: {given}', place
        )


def _check_call(call: ToolCall, place: str) -> None:
    if call.type != "function":
        rule = f"must be `function`: others are not served. Given: {quoted(call.type)}"
        raise Unsupported(f"`{place}.type` {rule}", f"{place}.type")
    if call.function is None:
        raise InvalidRequest(f"`{place}.function` is required", f"{place}.function")


class ChatTool(Schema):
    """A tool; only functions are served."""

    model_config = ConfigDict(extra="allow")

    type: str
    function: Function | None = None


def check_tools(tools: Sequence[ChatTool]) -> None:
    """Raises Unsupported for tools of other types, InvalidRequest for one without a function."""
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type == "custom":
            raise Unsupported(f"`{place}` is of type `custom`: only functions are served", place)
        if tool.type != "function":
            raise wrong(f"{place}.type", "must be `function`", tool.type)
        if tool.function is None:
            raise InvalidRequest(f"`{place}.function` is required", f"{place}.function")


class ChatBody(OpenAiBody):
    """Body of /v1/chat/completions.

    When the last message is an assistant's text it is continued, as with TGI, unless
    `add_generation_prompt` or `continue_final_message` says otherwise.
    """

    messages: list[Message] = Field(
        fail_fast=True, min_length=1, examples=[[{"role": "user", "content": "Hello"}]]
    )
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    tools: list[ChatTool] | None = Field(default=None, fail_fast=True)
    tool_choice: Choice | None = None
    tool_prompt: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    thinking: ThinkingField | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool | None = None

    add_generation_prompt: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = Field(default=None, fail_fast=True)

    @property
    def num_top_logprobs(self) -> int | None:
        """`top_logprobs`, of which there are none without `logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last message."""
        if self.continue_final_message is not None:
            return self.continue_final_message
        return self.messages[-1].is_continuable and not self.add_generation_prompt

    @property
    def allowed_tools(self) -> AllowedTools | None:
        """What the answer may call; None: nothing. Raises InvalidRequest."""
        check_tools(self.tools or ())
        functions = {
            f"tools[{index}].function": tool.function
            for index, tool in enumerate(self.tools or ())
            if tool.function is not None
        }
        in_parallel = self.parallel_tool_calls is not False
        allowed = allowed_functions(functions, self.tool_choice, in_parallel=in_parallel)
        grammar = self.named_grammar()
        form = self.response_format
        if allowed is not None and grammar and (form is None or not form.goes_with_tools):
            raise ToolsRefused(
                "Tool error: Grammar and tools are mutually exclusive: "
                f"`{grammar[0]}` and `tools` cannot both shape an answer",
                "tools",
            )
        return allowed

    @property
    def chat_prompt(self) -> ChatPrompt:
        """What the chat template renders."""
        functions = [tool.function for tool in self.tools or () if tool.function is not None]
        return ChatPrompt(
            messages=[message.for_template() for message in self.messages],
            settings=(
                Setting(
                    "reasoning_effort", "reasoning_effort", self.reasoning_effort, is_hint=True
                ),
                Setting("verbosity", "verbosity", self.verbosity, is_hint=True),
                Setting("documents", "documents", self.documents),
            ),
            variables=self.chat_template_kwargs or {},
            thinking=self._thinking,
            thought_places=tuple(
                f"messages[{index}].{message.thought_field}"
                for index, message in enumerate(self.messages)
                if message.thought_field
            ),
            tools=shown_functions(functions),
            may_call=self.allowed_tools is not None,
            tool_prompt=self.tool_prompt,
            continues=self.continues,
            add_generation_prompt=self.add_generation_prompt is not False,
            template=self.chat_template,
            images=tuple(
                image
                for index, message in enumerate(self.messages)
                for image in images_of(message.parts(f"messages[{index}]"))
            ),
        )

    @property
    def _thinking(self) -> Thinking:
        is_wanted = None if self.thinking is None else self.thinking.is_wanted
        field = "thinking"
        if is_wanted is None and self.reasoning_effort == "none":
            is_wanted = False
            field = "reasoning_effort"
        budget, budget_field = self._thought_budget
        return Thinking(
            is_wanted=is_wanted,
            field=field,
            budget=budget,
            budget_field=budget_field,
            is_shown=self.include_reasoning is not False,
        )

    @property
    def _thought_budget(self) -> tuple[int | None, str]:
        """The budget and its field. Raises InvalidRequest."""
        field = "thinking_token_budget"
        budget = self.thinking_token_budget
        if budget is None and self.thinking is not None:
            field = "thinking.budget_tokens"
            budget = self.thinking.budget_tokens
        return checked_budget(budget, field), field

    @property
    def echoed(self) -> str:
        """What the answer begins with: the continued text, if `echo` asks for it."""
        last = self.messages[-1]
        return last.text if self.echo and last.role == "assistant" else ""

    def check_supported(self) -> None:
        """Raises InvalidRequest for what would otherwise be silently ignored."""
        for index, message in enumerate(self.messages):
            message.check(f"messages[{index}]")
        for name, words in (("reasoning_effort", _EFFORT), ("verbosity", _VERBOSITY)):
            value = getattr(self, name)
            if value is not None and not words.fullmatch(value):
                known = words.pattern.replace("|", ", ")
                raise wrong(name, f"must be one of {known}", value)
        _ = self._thought_budget
        _ = self.allowed_tools
        super().check_supported()

    def to_raw(self, limits: Limits) -> RawParams:
        """The raw parameters. Raises InvalidRequest for what contradicts itself or the limits."""
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "needs `logprobs` to be true", self.top_logprobs)
        if self.continue_final_message and self.add_generation_prompt:
            field = "continue_final_message"
            message = f"`{field}` and `add_generation_prompt` cannot both be true"
            raise InvalidRequest(message, field)
        has_new_name = self.max_completion_tokens is not None
        return self._raw(
            limits,
            max_new_tokens=self.max_completion_tokens if has_new_name else self.max_tokens,
            scores_prompt=False,
            names={
                "inputs": "messages",
                "max_new_tokens": "max_completion_tokens" if has_new_name else "max_tokens",
                "top_n_tokens": "top_logprobs",
                "thought_budget": self._thought_budget[1],
            },
        )


class CompletionBody(OpenAiBody):
    """Body of /v1/completions. `max_tokens` 0 with `echo` scores the prompt alone."""

    prompt: Prompts
    best_of: int | None = None
    logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None

    @property
    def num_draws(self) -> int:
        """`best_of`, of which `n` are kept."""
        return self.num_choices if self.best_of is None else self.best_of

    @property
    def num_top_logprobs(self) -> int | None:
        """`logprobs`, which is a number here."""
        return self.logprobs

    @property
    def only_scores(self) -> bool:
        """Whether only the prompt is scored."""
        return bool(self.echo) and self.max_tokens == 0

    def check_supported(self) -> None:
        """Raises InvalidRequest for what would otherwise be silently ignored."""
        if self.tools:
            raise Unsupported("`tools` belong to chats; leave them out", "tools")
        if self.tool_choice not in (None, "none", "auto"):
            raise Unsupported("`tool_choice` belongs to chats; leave it out", "tool_choice")
        super().check_supported()

    def to_raw(self, limits: Limits) -> RawParams:
        """The raw parameters. Raises InvalidRequest for what contradicts itself or the limits."""
        drops = self.num_draws != self.num_choices
        if self.num_draws < self.num_choices or (self.stream and drops):
            rule = "at least `n`, and no more than it when tokens are streamed"
            raise InvalidRequest(f"`best_of` must be {rule}. Given: {self.best_of}", "best_of")
        return self._raw(
            limits,
            max_new_tokens=1 if self.only_scores else self.max_tokens,
            scores_prompt=bool(self.echo) and self.logprobs is not None,
            names={
                "inputs": "prompt",
                "max_new_tokens": "max_tokens",
                "top_n_tokens": "logprobs",
            },
        )
