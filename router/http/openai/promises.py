"""Fields that do not shape the answer, and fields that would, but are not served.

A hint is accepted: whether it is followed cannot be read off an answer. A promise is refused,
unless its value is what happens in any case: a client must not believe that it was obeyed. Each
has its type, so that a wrong one is told first.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Field

from router.http.body import Schema
from router.request.errors import Unsupported

# Field: values that ask for nothing, and why all others are refused.
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
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
        "cache_salt": ((), "the prefix cache is shared"),
        "kv_transfer_params": ((), "caches stay where they are"),
        "include_reasoning": ((True,), "reasoning is not told from the answer"),
        "thinking_token_budget": ((-1,), "reasoning is not told from the answer"),
        "repetition_detection": ((), "answers end by their length, a stop or the model's will"),
    }
)


class Hints(Schema):
    """Accepted, typed, without effect on the answer."""

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


class Promises(Hints):
    """Typed, and refused when they ask for something."""

    audio: dict[str, Any] | None = None
    modalities: list[str] | None = Field(default=None, fail_fast=True)
    moderation: dict[str, Any] | None = None
    store: bool | None = None
    web_search_options: dict[str, Any] | None = None
    suffix: str | None = None
    prompt_embeds: Any = None
    allowed_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    logprob_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    logits_processors: list[Any] | None = None
    truncation_side: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: dict[str, Any] | None = None

    def refuse_promises(self) -> None:
        """Raises Unsupported for the first that asks for something."""
        for name, (harmless, reason) in _REFUSED.items():
            value = getattr(self, name)
            if value is not None and value not in harmless:
                raise Unsupported(f"`{name}` is not served: {reason}; leave it out", name)
