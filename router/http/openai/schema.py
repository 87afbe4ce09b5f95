"""Bodies of OpenAI's routes, and their translation to raw parameters. Types and their relations."""

import re
from typing import Any

from pydantic import Field

from router.http.fields import Prompts
from router.http.openai.fields import OpenAiBody
from router.http.openai.messages import Message
from router.http.tools.functions import (
    ChatTool,
    Choice,
    Function,
    OfferedFunctions,
    offered_tools,
    shown_functions,
)
from router.request.errors import InvalidRequest, Unsupported, wrong
from router.request.validation import Limits, RawParams

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
    functions: list[Function] | None = Field(default=None, fail_fast=True)
    function_call: Choice | None = None
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
    def shown_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the chat template sees."""
        return shown_functions(self.tools, self.functions)

    @property
    def offered(self) -> OfferedFunctions | None:
        """What the answer may call; None: nothing. Raises InvalidRequest."""
        grammar, form = self.named_grammar(), self.response_format
        excludes_tools = form is None or not form.goes_with_tools
        return offered_tools(
            self.tools,
            self.tool_choice,
            self.functions,
            self.function_call,
            in_parallel=self.parallel_tool_calls is not False,
            format_field=grammar[0] if grammar is not None and excludes_tools else None,
        )

    @property
    def echoed(self) -> str:
        """What the answer begins with: the assistant's last words, if asked for."""
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
        _ = self.offered
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
        """Whether nothing is to be generated. The model still draws a token, which is dropped."""
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
