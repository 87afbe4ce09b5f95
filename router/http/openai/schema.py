"""Bodies of OpenAI's routes, and their translation to raw parameters. Types only.

Every optional field takes an explicit null for its absence. Fields that promise what the server
cannot do yet are named here, so that they are refused and not silently ignored.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pydantic import ConfigDict, Field

from router.errors import InvalidRequest
from router.http.body import Schema
from router.http.fields import Content, LogitBias, Prompts, Strings
from router.parameters import check_parameters
from router.validation import Limits, RawParams

# Constraints and tools come later. Until then these fields may be null, or say what is so anyway.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "guided_choice": (),
        "guided_grammar": (),
        "guided_json": (),
        "guided_regex": (),
        "structured_outputs": (),
        "suffix": ("",),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
    }
)


class StreamOptions(Schema):
    """`stream_options`."""

    include_usage: bool | None = None


class ResponseFormat(Schema):
    """`response_format`; only text for now."""

    type: str


class Message(Schema):
    """One turn. Fields beyond these reach the chat template as they came."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Content = None

    def for_template(self) -> dict[str, Any]:
        """What the chat template sees; nulls, which some clients send, are left out."""
        return self.model_dump(exclude_none=True)


class OpenAiBody(Schema):
    """What both routes read. The second group are vLLM's extensions, under its names."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: LogitBias | None = None
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: Strings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    response_format: ResponseFormat | None = None

    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    skip_special_tokens: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    top_k: int | None = None

    functions: Any = None
    function_call: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    structured_outputs: Any = None
    suffix: Any = None
    tool_choice: Any = None
    tools: Any = None

    @property
    def num_choices(self) -> int:
        """Choices to answer for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_draws(self) -> int:
        """Sequences to draw for each prompt."""
        return self.num_choices

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_supported(self) -> None:
        """Raises InvalidRequest for what would otherwise be silently ignored."""
        if self.response_format is not None and self.response_format.type != "text":
            raise InvalidRequest(
                "`response_format` must be of type `text`: constrained output is not supported yet."
                f" Given: `{self.response_format.type[:60]}`",
                field="response_format",
            )
        for field, harmless in _UNSUPPORTED.items():
            value = getattr(self, field)
            if value is not None and value not in harmless:
                raise InvalidRequest(f"`{field}` is not supported yet; leave it out", field=field)


class ChatBody(OpenAiBody):
    """Body of /v1/chat/completions.

    When the last message is the assistant's it is continued, as with TGI, unless
    `add_generation_prompt` or `continue_final_message` says otherwise.
    """

    messages: list[Message] = Field(fail_fast=True, min_length=1)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last message."""
        if self.continue_final_message is not None:
            return self.continue_final_message
        return self.messages[-1].role == "assistant" and not self.add_generation_prompt

    def to_raw(self, limits: Limits) -> RawParams:
        """The raw parameters. Raises InvalidRequest for what contradicts itself or the limits."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("`top_logprobs` needs `logprobs` to be true", field="top_logprobs")
        has_new_name = self.max_completion_tokens is not None
        return _to_raw(
            self,
            limits,
            max_new_tokens=self.max_completion_tokens if has_new_name else self.max_tokens,
            top_n_tokens=self.top_logprobs,
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
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def num_draws(self) -> int:
        """`best_of`, of which `n` are kept."""
        return self.num_choices if self.best_of is None else self.best_of

    @property
    def only_scores(self) -> bool:
        """Whether nothing is to be generated. The model still draws a token, which is dropped."""
        return bool(self.echo) and self.max_tokens == 0

    def to_raw(self, limits: Limits) -> RawParams:
        """The raw parameters. Raises InvalidRequest for what contradicts itself or the limits."""
        if self.num_draws < self.num_choices or (self.stream and self.best_of not in (None, 1)):
            rule = "at least `n`, and 1 when tokens are streamed"
            raise InvalidRequest(f"`best_of` must be {rule}. Given: {self.best_of}", "best_of")
        return _to_raw(
            self,
            limits,
            max_new_tokens=1 if self.only_scores else self.max_tokens,
            top_n_tokens=self.logprobs,
            scores_prompt=bool(self.echo) and self.logprobs is not None,
            names={
                "inputs": "prompt",
                "max_new_tokens": "max_tokens",
                "top_n_tokens": "logprobs",
            },
        )


def _to_raw(
    body: OpenAiBody,
    limits: Limits,
    *,
    max_new_tokens: int | None,
    top_n_tokens: int | None,
    scores_prompt: bool,
    names: Mapping[str, str],
) -> RawParams:
    # OpenAI samples unless the temperature is 0; its and vLLM's neutral values are our None.
    is_greedy = body.temperature == 0
    raw = RawParams(
        do_sample=not is_greedy,
        temperature=None if is_greedy else body.temperature,
        top_p=None if body.top_p == 1 else body.top_p,
        top_k=None if body.top_k in (0, -1) else body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=body.logit_bias,
        seed=body.seed,
        max_new_tokens=max_new_tokens,
        min_new_tokens=body.min_tokens,
        stop=body.stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        keep_stop_string=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        top_n_tokens=top_n_tokens,
        raw_logprobs=True,
        decoder_input_details=scores_prompt,
        names={"min_new_tokens": "min_tokens", **names},
    )
    if not is_greedy:
        return raw
    # With temperature 0 the other ways to narrow the choice mean nothing, but must be in order.
    check_parameters(raw, limits)
    return replace(raw, top_p=None, top_k=None, min_p=None)
