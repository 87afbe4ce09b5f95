"""What clients may say of beams; exact types, unknown fields ignored."""

from typing import Annotated, Any

from pydantic import Field, PlainValidator

from router.engine.beam_search.types import EarlyStopping
from router.http.body import Schema
from router.http.fields import Grammar
from router.http.lmtp.schema import LogitBias, PromptBody
from router.request.error_text import WrongPart

# Of all three: beyond, the scores of long traces are no numbers any more.
_Count = Annotated[int, Field(ge=0, le=2**31)]
_Logprob = Annotated[float, Field(ge=-(2.0**31), le=2.0**31)]
_Penalty = Annotated[float, Field(ge=-32.0, le=32.0)]


def token_ids(value: Any) -> tuple[int, ...]:
    """A list of them. A search sends many: no work per token but this."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise WrongPart("must be a list of token ids", value)
    return tuple(value)


def _early_stopping(value: Any) -> EarlyStopping:
    if isinstance(value, bool):
        return value
    if value == "never":
        return "never"
    raise WrongPart('must be true, false or "never"', value)


class HoleBody(PromptBody):
    """A hole: its prompt and its conditions. `is_last`: nothing is behind it."""

    max_tokens: int | None = None
    constraint: Grammar | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    include_stop: bool | None = None
    is_last: bool = False


class BeamBody(Schema):
    """A beam at the hole of this number, and what it has of it."""

    hole: _Count = 0
    output: Annotated[tuple[int, ...], PlainValidator(token_ids)] = ()
    logprob: _Logprob = 0.0
    num_tokens: _Count = 0
    output_logprob: _Logprob = 0.0


class SearchBody(Schema):
    """What BEAMS and BEST have in common."""

    model: str | None = None
    holes: Annotated[list[HoleBody], Field(min_length=1, fail_fast=True)]
    ended: list[float] = Field(default_factory=list, fail_fast=True)
    report_s: Annotated[float, Field(ge=0.0)] | None = None
    timeout_s: float | None = None
    logit_bias: LogitBias | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class BeamsBody(SearchBody):
    """BEAMS."""

    width: Annotated[int, Field(ge=1)]
    beams: list[BeamBody] | None = Field(default=None, min_length=1, fail_fast=True)
    length_penalty: _Penalty = 0.0
    early_stopping: Annotated[EarlyStopping, PlainValidator(_early_stopping)] = False
    max_len: Annotated[int, Field(ge=1, le=2**31)] | None = None
    num_candidates: Annotated[int, Field(ge=1)] | None = None
