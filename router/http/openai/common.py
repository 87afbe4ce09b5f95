"""What the bodies of both routes have in common, and how it becomes raw parameters.

Every optional field takes an explicit null for its absence. Names that OpenAI does not have are
vLLM's.
"""

from abc import abstractmethod
from collections.abc import Mapping

from pydantic import Field

from router.http.body import Schema
from router.http.fields import SamplingFields, Strings
from router.http.openai.formats import Formats
from router.http.openai.promises import Promises
from router.http.request_validator import normalize
from router.request.errors import InvalidRequest, wrong
from router.request.validation import Limits, RawParams

# What OpenAI's and vLLM's APIs promise, whatever the server's limit for TGI's.
MAX_TOP_LOGPROBS = 20


class StreamOptions(Schema):
    """`stream_options`. Chunks are not padded, whatever `include_obfuscation` says."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAiBody(SamplingFields, Promises, Formats):
    """What both routes read. The second group are vLLM's extensions, under its names."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    stop: Strings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    add_special_tokens: bool | None = None
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
        """How many alternatives to tell of at each generated token; None: no log-probabilities."""

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def counts_on(self) -> bool:
        """Whether each chunk of a stream tells the usage so far."""
        options = self.stream_options
        return self.includes_usage and options is not None and bool(options.continuous_usage_stats)

    def check_supported(self) -> None:
        """Raises InvalidRequest for what would otherwise be silently ignored."""
        self.named_grammar()
        self.refuse_promises()
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
            # Whoever is told none is spared them, and may have forced tokens for nothing.
            raw_logprobs=bool(tops) or self.num_draws > self.num_choices,
            grammar=grammar,
            grammar_parts=self.grammar_parts(),
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
