"""What TGI's routes answer, as the OpenAPI document tells it. Names are those of TGI's document.

The routes write their bytes by hand; a test holds them to these models.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["length", "eos_token", "stop_sequence", "deadline"]


class Answer(BaseModel):
    """An answer, or a part of one: nothing beyond these fields."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Token(Answer):
    """A generated token. `logprob` is null where it is not a number of JSON."""

    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(Answer):
    """A token of the prompt; the first one has no log-probability."""

    id: int
    text: str
    logprob: float | None


class Constrained(Answer):
    """Of an answer under a grammar, whether it satisfies it; `constraint_violation` says what is
    wrong with a text that was checked at its end."""

    constraint_satisfied: bool | None = None
    constraint_violation: str | None = None


class BestOfSequence(Constrained):
    """One of the answers that `best_of` did not choose."""

    generated_text: str
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | None = None


class Details(Constrained):
    """What `details` asks for."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[Token]
    best_of_sequences: list[BestOfSequence] | None = None
    top_tokens: list[list[Token]] | None = None


class GenerateResponse(Answer):
    """A whole answer."""

    generated_text: str
    details: Details | None = None


class StreamDetails(Constrained):
    """What `details` asks for, in the last event of a stream."""

    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(Answer):
    """One event of a stream; only the last one has a text and details."""

    index: int
    token: Token
    top_tokens: list[Token] | None = None
    generated_text: str | None
    details: StreamDetails | None


class SimpleToken(Answer):
    """A token of a text; `start` and `stop` are byte offsets."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokenizeResponse(Answer):
    """A chat as the model reads it."""

    tokenize_response: list[SimpleToken]
    templated_text: str


class VertexResponse(Answer):
    """One text for each instance, in their order."""

    predictions: list[str]


class MetadataServerResponse(Answer):
    """KServe's word about the server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Answer):
    """A tensor that a model takes or gives."""

    name: str
    datatype: str
    shape: list[int]


class MetadataModelResponse(Answer):
    """KServe's word about a model."""

    name: str
    versions: list[str]
    version: str | None = None
    platform: str
    extensions: list[str]
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class LiveResponse(Answer):
    """The process answers."""

    live: bool


class ReadyResponse(Answer):
    """A request would be served now."""

    name: str | None = None
    live: bool
    ready: bool


class OutputChunk(Answer):
    """A text, in the form in which its prompt came: bytes as whole numbers, or strings."""

    name: str
    shape: list[int]
    datatype: Literal["BYTES"]
    data: list[int] | list[str]


class InferenceOutput(Answer):
    """KServe's outputs, in the order of the inputs."""

    model_name: str
    model_version: str | None = None
    id: str | None = None
    outputs: list[OutputChunk]


class Info(Answer):
    """The model and the limits: TGI's fields first, then Tandem's."""

    model_config = ConfigDict(extra="allow")

    model_id: str
    model_sha: str | None
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None
    docker_label: str | None
    server: str


class ModelCard(Answer):
    """A name of the served model; `created` is in Unix time."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer):
    """The served model, once for each of its names."""

    object: Literal["list"]
    data: list[ModelCard]
