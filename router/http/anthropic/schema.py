"""Bodies of Anthropic's routes, and their translation to raw parameters.

Hints about caching, billing and users are taken and have no effect. What would change the answer
and cannot be served is refused by name, and so is what this API does not have.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ConfigDict, Field

from constraints.spec import Kind
from router.http.anthropic.tools import Offered, Tool, ToolChoice, offered_tools
from router.http.anthropic.turns import System, Turns
from router.http.body import Schema
from router.http.conversation import Setting, Turn
from router.http.fields import Harmless, StrictSchema
from router.http.request_validator import normalize
from router.request.errors import InvalidRequest
from router.request.grammar import RawGrammar
from router.request.validation import Limits, RawParams

_MAX_TEMPERATURE = 1.0

_COUNTED: Mapping[str, Harmless] = MappingProxyType(
    {
        "speed": ("standard",),
        # A model that thinks adaptively may as well not think.
        "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
    }
)
_UNSUPPORTED: Mapping[str, Harmless] = MappingProxyType(
    {**_COUNTED, "container": (), "diagnostics": {}, "inference_geo": ()}
)


class Metadata(Schema):
    """`metadata`: who asks, which nobody here wants to know."""

    user_id: str | None = None


class OutputFormat(Schema):
    """`output_config.format`: JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Schema):
    """`output_config`."""

    model_config = ConfigDict(extra="forbid")

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountBody(StrictSchema):
    """Body of /v1/messages/count_tokens."""

    unsupported = _COUNTED

    messages: Turns
    model: str | None = None
    output_config: OutputConfig | None = None
    system: System | None = None
    cache_control: dict[str, Any] | None = None

    speed: Any = None
    thinking: Any = None
    tool_choice: ToolChoice | None = None
    tools: list[Tool] | None = Field(default=None, fail_fast=True)

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served, or counted."""
        self.refuse_unsupported()
        _ = self.offered

    @property
    def offered(self) -> Offered:
        """What is shown and what may be called. Raises InvalidRequest."""
        return offered_tools(self.tools or (), self.tool_choice)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What the chat template sees."""
        return (Turn("system", self.system), *self.messages) if self.system else self.messages

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What the chat template may read."""
        effort = None if self.output_config is None else self.output_config.effort
        return (Setting("reasoning_effort", "output_config.effort", effort),)

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last message, Anthropic's prefill."""
        last = self.messages[-1]
        return last.role == "assistant" and not last.calls


class MessagesBody(CountBody):
    """Body of /v1/messages."""

    unsupported = _UNSUPPORTED

    max_tokens: int
    metadata: Metadata | None = None
    service_tier: str | None = None
    stop_sequences: list[str] | None = Field(default=None, fail_fast=True)
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None

    def check(self) -> None:
        """Raises InvalidRequest for what cannot be served."""
        super().check()
        if self.temperature is not None and not 0 <= self.temperature <= _MAX_TEMPERATURE:
            raise InvalidRequest(
                f"`temperature` must be between 0 and {_MAX_TEMPERATURE:g}. "
                f"Given: {self.temperature}",
                "temperature",
            )

    def to_raw(self, limits: Limits) -> RawParams:
        """The raw parameters. Raises InvalidRequest for what breaks a rule."""
        form = None if self.output_config is None else self.output_config.format
        grammar = None
        if form is not None:
            grammar = RawGrammar(Kind.JSON_SCHEMA, form.schema_)
        raw = RawParams(
            grammar=grammar,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_new_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            keep_stop_string=False,
            names={
                "grammar": "output_config.format",
                "inputs": "messages",
                "max_new_tokens": "max_tokens",
                "stop": "stop_sequences",
            },
        )
        return normalize(raw, limits)
