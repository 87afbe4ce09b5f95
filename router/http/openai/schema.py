"""Bodies of OpenAI's routes, their translation to raw parameters, and the models of answers."""

import re
from typing import Any, Literal

from pydantic import Field

from router.engine.validation import Limits, RawParams
from router.http.conversation import ChatPrompt, Setting
from router.http.fields import Prompts
from router.http.openai.fields import OpenAiBody
from router.http.openai.messages import ChatTool, Message, check_tools
from router.http.schema import AnswerModel, ConstrainedAnswer
from router.http.tools.functions import Choice, allowed_functions, shown_functions
from router.http.tools.grammar import AllowedTools
from router.request.errors import InvalidRequest, ToolsRefused, Unsupported, wrong

_EFFORT = re.compile(r"none|minimal|low|medium|high|xhigh|max")
_VERBOSITY = re.compile(r"low|medium|high")


class ChatBody(OpenAiBody):
    """Body of /v1/chat/completions.

    When the last message is an assistant's text it is continued, as with TGI, unless
    `add_generation_prompt` or `continue_final_message` says otherwise.
    """

    messages: list[Message] = Field(fail_fast=True, min_length=1)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    tools: list[ChatTool] | None = Field(default=None, fail_fast=True)
    tool_choice: Choice | None = None
    tool_prompt: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None

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
        functions = [tool.function for tool in self.tools or () if tool.function is not None]
        in_parallel = self.parallel_tool_calls is not False
        place = "tools[{}].function"
        allowed = allowed_functions(functions, self.tool_choice, place, in_parallel=in_parallel)
        grammar, form = self.named_grammar(), self.response_format
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
            tools=shown_functions(functions),
            may_call=self.allowed_tools is not None,
            tool_prompt=self.tool_prompt,
            continues=self.continues,
            add_generation_prompt=self.add_generation_prompt is not False,
            template=self.chat_template,
        )

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


FinishReason = Literal["stop", "length", "deadline"]
ChatFinishReason = Literal["stop", "length", "tool_calls", "deadline"]


class CompletionUsage(AnswerModel):
    """Tokens of the call; the details come at its end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] | None = None
    completion_tokens_details: dict[str, int] | None = None
    work_details: dict[str, float] | None = None


ConstraintEffect = Literal["free", "steered", "forced"]


class TopLogprob(AnswerModel):
    """A token that could have been; `bytes` is null where it is no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    """A token of the answer. `constraint`: what it did to the choice, if there is one."""

    top_logprobs: list[TopLogprob]
    constraint: ConstraintEffect | None = None


class ChatChoiceLogprobs(AnswerModel):
    """`logprobs` of a chat's choice."""

    content: list[ChatTokenLogprob]
    refusal: None


class PromptLogprob(AnswerModel):
    """vLLM's: a token of the prompt, or one that could have been."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CalledFunction(AnswerModel):
    """A tool's name and what it is called with, an object as JSON text."""

    name: str
    arguments: str


class ChatToolCall(AnswerModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(AnswerModel):
    """The model's turn; without text its content is null where it calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ChatToolCall] | None = None


class ChatChoice(ConstrainedAnswer):
    """One answer to a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatChoiceLogprobs | None
    finish_reason: ChatFinishReason
    token_ids: list[int] | None = None


class CalledFunctionDelta(AnswerModel):
    """A call's name, which comes whole, or a piece of its arguments."""

    name: str | None = None
    arguments: str


class ChatToolCallDelta(AnswerModel):
    """What a chunk adds to a call; id, type and name come with the first."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


class ChatDelta(AnswerModel):
    """What a chunk adds to a turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    tool_calls: list[ChatToolCallDelta] | None = None


class ChatChunkChoice(ConstrainedAnswer):
    """What a chunk adds to an answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatChoiceLogprobs | None
    finish_reason: ChatFinishReason | None
    token_ids: list[int] | None = None


class OpenAiAnswer(AnswerModel):
    """What all answers and chunks of a call begin with. `created` is in Unix time."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None


class ChatCompletion(OpenAiAnswer):
    """A whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatCompletionChunk(OpenAiAnswer):
    """A chunk of the answers to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(AnswerModel):
    """Parallel lists; a first token of a prompt has no log-probability."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None
    constraint: list[ConstraintEffect | None] | None = None


class CompletionChunkChoice(ConstrainedAnswer):
    """What a chunk adds to a text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionChoice(CompletionChunkChoice):
    """One text."""

    finish_reason: FinishReason
    prompt_logprobs: PromptLogprobs | None = None


class TextCompletion(OpenAiAnswer):
    """The whole texts to one or several prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: CompletionUsage


class TextCompletionChunk(OpenAiAnswer):
    """A chunk of texts."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | None = None


# A stream's last event is this, and no JSON.
LAST_EVENT = "[DONE]"
