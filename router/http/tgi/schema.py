"""Bodies and answers of TGI's routes; bodies become raw parameters. Names are those of TGI's.

Every optional field takes an explicit null for its absence.
"""

from typing import Any, Literal

from pydantic import Field

from router.engine.validation import RawParams
from router.http.fields import Grammar
from router.http.schema import AnswerModel, ConstrainedAnswer, SamplingFields, Schema, bounded
from router.request.errors import wrong

FinishReason = Literal["length", "eos_token", "stop_sequence", "deadline"]


class Parameters(SamplingFields):
    """`parameters` of a request, with the names, types and defaults of TGI; and ours."""

    names_unknown = True

    best_of: int | None = bounded(minimum=1)
    temperature: float | None = bounded(exclusiveMinimum=0)
    top_k: int | None = bounded(minimum=1)
    top_p: float | None = bounded(exclusiveMinimum=0, exclusiveMaximum=1)
    typical_p: float | None = bounded(exclusiveMinimum=0, exclusiveMaximum=1)
    do_sample: bool | None = None
    max_new_tokens: int | None = bounded(minimum=1)
    return_full_text: bool | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    truncate: int | None = bounded(minimum=1)
    watermark: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = bounded(minimum=0, maximum=2**64 - 1)
    top_n_tokens: int | None = bounded(minimum=0)
    grammar: Grammar | None = None
    adapter_id: str | None = None
    # Ours, under the names that vLLM's users know where it has them.
    min_new_tokens: int | None = bounded(minimum=0)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    include_stop_str_in_output: bool | None = None
    # Seconds, from the request's arrival.
    max_time: float | None = None


class TokenizeBody(Schema):
    """Body of /tokenize: that of /generate, of which only the prompt is read."""

    inputs: str
    parameters: dict[str, Any] | None = None


class GenerateBody(Schema):
    """Body of /generate and /generate_stream.

    Without `parameters` a request is sampled; with them, only if one of them asks for it.
    """

    names_unknown = True
    # The hub's and some clients'; `stream` belongs to POST /.
    known_fields = frozenset({"model", "stream"})

    inputs: str = Field(json_schema_extra={"minLength": 1})
    parameters: Parameters | None = None

    @property
    def chosen(self) -> Parameters:
        """The parameters, or the defaults where there are none."""
        return self.parameters or Parameters(do_sample=True)

    @property
    def prefix(self) -> str:
        """The text before the generated one: the prompt, where the full text is asked for."""
        return self.inputs if self.chosen.return_full_text else ""


class CompatBody(GenerateBody):
    """Body of POST /."""

    stream: bool | None = None

    @property
    def prefix(self) -> str:
        """As GenerateBody, but that the full text is the default."""
        return "" if self.chosen.return_full_text is False else self.inputs


class Token(AnswerModel):
    """A generated token. `logprob` is null where it is not a number of JSON."""

    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(AnswerModel):
    """A token of the prompt; the first one has no log-probability."""

    id: int
    text: str
    logprob: float | None


class BestOfSequence(ConstrainedAnswer):
    """One of the answers that `best_of` did not choose."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


class Details(ConstrainedAnswer):
    """The `details` of an answer."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | None = None
    top_tokens: list[list[Token]] | None = None


class GenerateResponse(AnswerModel):
    """A whole answer."""

    generated_text: str
    details: Details | None = None


class StreamDetails(ConstrainedAnswer):
    """The `details` of a stream's last event."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(AnswerModel):
    """One event of a stream; only the last one has a text and details."""

    index: int
    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None
    details: StreamDetails | None


class SimpleToken(AnswerModel):
    """A token of a text; `start` and `stop` are byte offsets."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokenizeResponse(AnswerModel):
    """A chat as the model reads it."""

    tokenize_response: list[SimpleToken]
    templated_text: str


def to_raw(parameters: Parameters) -> RawParams:
    """Raises InvalidRequest for an adapter, since none is loaded."""
    if parameters.adapter_id is not None:
        rule = "names an adapter, but this server has none loaded"
        raise wrong("adapter_id", rule, parameters.adapter_id)
    return RawParams(
        best_of=parameters.best_of,
        **parameters.sampling(),
        typical_p=parameters.typical_p,
        do_sample=parameters.do_sample or False,
        max_new_tokens=parameters.max_new_tokens,
        stop=tuple(parameters.stop or ()),
        truncate=parameters.truncate,
        top_n_tokens=parameters.top_n_tokens,
        decoder_input_details=parameters.decoder_input_details or False,
        keep_stop_string=parameters.include_stop_str_in_output is not False,
        min_new_tokens=parameters.min_new_tokens,
        ignore_eos=parameters.ignore_eos or False,
        stop_token_ids=tuple(parameters.stop_token_ids or ()),
        max_time=parameters.max_time,
        grammar=parameters.grammar,
        watermark=parameters.watermark or False,
    )
