"""Bodies of TGI's routes, and their translation to raw parameters. Types only; rules are elsewhere.

Every optional field takes an explicit null for its absence.
"""

from typing import Any

from pydantic import Field

from router.http.body import Schema
from router.http.fields import Grammar, LogitBias
from router.request.error_text import wrong
from router.request.validation import RawParams


def _told(**bounds: float) -> Any:
    """An optional number whose bounds the OpenAPI document tells; `parameters.py` holds them."""
    return Field(default=None, json_schema_extra=dict(bounds))


class Parameters(Schema):
    """`parameters` of a request, with the names, types and defaults of TGI; and ours."""

    best_of: int | None = _told(minimum=1)
    temperature: float | None = _told(exclusiveMinimum=0)
    repetition_penalty: float | None = _told(exclusiveMinimum=0)
    frequency_penalty: float | None = _told(minimum=-2, maximum=2)
    top_k: int | None = _told(minimum=1)
    top_p: float | None = _told(exclusiveMinimum=0, exclusiveMaximum=1)
    typical_p: float | None = _told(exclusiveMinimum=0, exclusiveMaximum=1)
    do_sample: bool | None = None
    max_new_tokens: int | None = _told(minimum=1)
    return_full_text: bool | None = None
    stop: list[str] | None = Field(default=None, fail_fast=True)
    truncate: int | None = _told(minimum=1)
    watermark: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = _told(minimum=0, maximum=2**64 - 1)
    top_n_tokens: int | None = _told(minimum=0)
    grammar: Grammar | None = None
    adapter_id: str | None = None
    # Ours, under the names that vLLM's users know where it has them.
    min_new_tokens: int | None = _told(minimum=0)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, fail_fast=True)
    include_stop_str_in_output: bool | None = None
    presence_penalty: float | None = _told(minimum=-2, maximum=2)
    min_p: float | None = _told(minimum=0, maximum=1)
    logit_bias: LogitBias | None = None
    # Seconds, from the request's arrival.
    max_time: float | None = None


class TokenizeBody(Schema):
    """Body of /tokenize: that of /generate, of which the prompt alone counts."""

    inputs: str
    parameters: dict[str, Any] | None = None


class GenerateBody(Schema):
    """Body of /generate and /generate_stream.

    Without `parameters` a request is sampled; with them, only if one of them asks for it.
    """

    inputs: str = Field(json_schema_extra={"minLength": 1})
    parameters: Parameters | None = None

    @property
    def chosen(self) -> Parameters:
        """The parameters, or those of their absence."""
        return self.parameters or Parameters(do_sample=True)


class CompatBody(GenerateBody):
    """Body of POST /."""

    stream: bool | None = None


def to_raw(parameters: Parameters) -> RawParams:
    """Raises InvalidRequest for an adapter, since none is loaded."""
    if parameters.adapter_id is not None:
        rule = "names an adapter, but this server has none loaded"
        raise wrong("adapter_id", rule, parameters.adapter_id)
    return RawParams(
        best_of=parameters.best_of,
        temperature=parameters.temperature,
        repetition_penalty=parameters.repetition_penalty,
        frequency_penalty=parameters.frequency_penalty,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        typical_p=parameters.typical_p,
        do_sample=parameters.do_sample or False,
        max_new_tokens=parameters.max_new_tokens,
        stop=tuple(parameters.stop or ()),
        truncate=parameters.truncate,
        seed=parameters.seed,
        top_n_tokens=parameters.top_n_tokens,
        decoder_input_details=parameters.decoder_input_details or False,
        keep_stop_string=parameters.include_stop_str_in_output is not False,
        min_new_tokens=parameters.min_new_tokens,
        ignore_eos=parameters.ignore_eos or False,
        stop_token_ids=tuple(parameters.stop_token_ids or ()),
        presence_penalty=parameters.presence_penalty,
        min_p=parameters.min_p,
        logit_bias=parameters.logit_bias,
        max_time=parameters.max_time,
        grammar=parameters.grammar,
        watermark=parameters.watermark or False,
    )
