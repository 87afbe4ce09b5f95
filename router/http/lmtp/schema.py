"""The fields of each type of frame: exact types, unknown fields ignored."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator

from router.engine.beam_search import EarlyStopping
from router.http.fields import Grammar, LogitBias
from router.http.schema import SamplingFields, Schema
from router.request.errors import WrongPart


def _scored(value: Any) -> Any:
    """Token ids, lists of them, or texts, not mixed."""
    rule = "must be a list of token ids, of lists of them, or of strings"
    if not isinstance(value, list):
        raise WrongPart(rule, value)
    types = set(map(type, value))
    is_nested = types == {list} and all(set(map(type, each)) <= {int} for each in value)
    if not (is_nested or types <= {int} or types == {str}):
        raise WrongPart(rule, value)
    return value


class ChatTurn(Schema):
    """A turn of a chat."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str


def _without_start(value: Any) -> Any:
    """lmql's prompt where nothing comes before a hole and its tokenizer has no first token."""
    return [] if value == [None] else value


class PromptFields(Schema):
    """A prompt: one of token ids, text and the turns of a chat."""

    model: str | None = None
    prompt: Annotated[list[int], Field(fail_fast=True), BeforeValidator(_without_start)] | None = (
        None
    )
    text: str | None = None
    messages: Annotated[list[ChatTurn], Field(min_length=1, fail_fast=True)] | None = None


class GenerateFields(SamplingFields, PromptFields):
    """GENERATE."""

    max_tokens: int | None = None
    top_logprobs: int | None = None
    typical_p: float | None = None
    constraint: Grammar | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    include_stop: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    output: list[int] | None = Field(default=None, fail_fast=True)
    timeout_s: float | None = None


class ScoreFields(PromptFields):
    """SCORE: one continuation as ids, or several as ids or texts."""

    scored: Annotated[list[int] | list[list[int]] | list[str], PlainValidator(_scored)]

    @property
    def is_flat(self) -> bool:
        """Whether it is one continuation, as in version 1."""
        return not self.scored or type(self.scored[0]) is int

    @property
    def values(self) -> list[list[int] | str]:
        """The continuations."""
        if self.is_flat:
            return [self.scored]  # type: ignore[list-item]
        return self.scored  # type: ignore[return-value]


class HelloFields(Schema):
    """HELLO."""

    version: int | None = None


class ModelInfoFields(Schema):
    """MODEL_INFO."""

    model: str | None = None


# Beyond these bounds the scores of long traces are infinite.
_Count = Annotated[int, Field(ge=0, le=2**31)]
_Logprob = Annotated[float, Field(ge=-(2.0**31), le=2.0**31)]
_Penalty = Annotated[float, Field(ge=-32.0, le=32.0)]


def _token_ids(value: Any) -> tuple[int, ...]:
    """A list of token ids. A search sends many of them, so this is fast."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise WrongPart("must be a list of token ids", value)
    return tuple(value)


def _early_stopping(value: Any) -> EarlyStopping:
    if isinstance(value, bool):
        return value
    if value == "never":
        return "never"
    raise WrongPart('must be true, false or "never"', value)


class HoleFields(PromptFields):
    """A hole: its prompt and constraints. `is_last`: the program ends with it."""

    max_tokens: int | None = None
    constraint: Grammar | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    include_stop: bool | None = None
    is_last: bool = False


class BeamFields(Schema):
    """A beam at the hole of this number, and its tokens there."""

    hole: _Count = 0
    output: Annotated[tuple[int, ...], PlainValidator(_token_ids)] = ()
    logprob: _Logprob = 0.0
    num_tokens: _Count = 0
    output_logprob: _Logprob = 0.0


class BeamsFields(Schema):
    """BEAMS."""

    model: str | None = None
    holes: Annotated[list[HoleFields], Field(min_length=1, fail_fast=True)]
    ended: list[float] = Field(default_factory=list, fail_fast=True)
    report_s: Annotated[float, Field(ge=0.0)] | None = None
    timeout_s: float | None = None
    logit_bias: LogitBias | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    width: Annotated[int, Field(ge=1)]
    beams: list[BeamFields] | None = Field(default=None, min_length=1, fail_fast=True)
    length_penalty: _Penalty = 0.0
    early_stopping: Annotated[EarlyStopping, PlainValidator(_early_stopping)] = False
    max_len: Annotated[int, Field(ge=1, le=2**31)] | None = None
    num_candidates: Annotated[int, Field(ge=1)] | None = None
