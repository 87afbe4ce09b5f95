"""What OpenAI's two routes answer, as the OpenAPI document tells it.

The routes write their bytes by hand; a test holds them to these models.
"""

from typing import Literal

from router.http.body import AnswerModel, ConstrainedAnswer

FinishReason = Literal["stop", "length", "deadline"]
ChatFinishReason = Literal["stop", "length", "tool_calls", "function_call", "deadline"]


class PromptTokensDetails(AnswerModel):
    """Of the prompt's tokens, those that the prefix cache spared."""

    cached_tokens: int
    audio_tokens: int


class CompletionTokensDetails(AnswerModel):
    """Tokens that are drawn and not shown: none."""

    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(AnswerModel):
    """Tokens of the call; the details come at its end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class TopLogprob(AnswerModel):
    """A token that could have been; `bytes` is null where it is no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


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
    function_call: CalledFunction | None = None


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
    function_call: CalledFunctionDelta | None = None


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
