"""The fields that OpenAI's two bodies share, and those that are refused."""

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ConfigDict, Field

from router.engine.validation import Limits, RawParams
from router.http.fields import Strings
from router.http.logprobs import MAX_TOP_LOGPROBS
from router.http.openai.formats import Formats
from router.http.request_validator import normalize
from router.http.schema import SamplingFields, Schema
from router.request.errors import InvalidRequest, Unsupported, wrong

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
        "include_reasoning": ((True,), "reasoning is not separated from the answer"),
        "thinking_token_budget": ((-1,), "reasoning is not separated from the answer"),
        "repetition_detection": ((), "answers end by their length, a stop or the model's will"),
    }
)


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
        return normalize(raw, limits)

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
