"""Bodies and answers of KServe's routes: prompts out of tensors, texts into them.

Two forms of `data` are read, and the answer takes the form of its prompt. KServe's own: strings,
one for each element of `shape`. TGI's: one text as the whole numbers of its UTF-8 bytes, whatever
`shape` says.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from pydantic import Field

from router.http.body import AnswerModel, Schema
from router.http.server.errors import HttpError
from router.http.tgi.schema import Parameters
from router.request.errors import InvalidRequest, wrong

BYTES = "BYTES"
# What TGI's clients may call a list of bytes; it never looked.
_KINDS = (BYTES, "UINT8")
_MAX_DEPTH = 8
_DATA: dict[str, Any] = {
    "minItems": 1,
    "anyOf": [
        {"items": {"type": "string", "minLength": 1}},
        {"items": {"type": "integer", "minimum": 0, "maximum": 255}},
        {"items": {"type": "array", "minItems": 1}},
    ],
}


class InputTensor(Schema):
    """A tensor of prompts."""

    name: str
    shape: list[int] = Field(fail_fast=True)
    datatype: str = Field(json_schema_extra={"enum": list(_KINDS)})
    data: list[Any] = Field(json_schema_extra=_DATA)


class OutputName(Schema):
    """How an output is to be called."""

    name: str


class InferenceBody(Schema):
    """Body of KServe's infer. Without `outputs` each has the name of its input."""

    id: str | None = None
    parameters: Parameters | None = None
    inputs: list[InputTensor] = Field(min_length=1, fail_fast=True)
    outputs: list[OutputName] | None = Field(default=None, fail_fast=True)

    def output_names(self) -> list[str]:
        """One for each input. Raises HttpError for another number of them."""
        if not self.outputs:
            return [tensor.name for tensor in self.inputs]
        if len(self.outputs) != len(self.inputs):
            counts = f"{len(self.inputs)} inputs and {len(self.outputs)} outputs"
            message = f"Inputs and outputs length mismatch: {counts}"
            raise HttpError(422, "length mismatch", message, field="outputs")
        return [output.name for output in self.outputs]


class MetadataServerResponse(AnswerModel):
    """KServe's description of the server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(AnswerModel):
    """A tensor that a model takes or gives."""

    name: str
    datatype: str
    shape: list[int]


class MetadataModelResponse(AnswerModel):
    """KServe's description of a model."""

    name: str
    versions: list[str]
    version: str | None = None
    platform: str
    extensions: list[str]
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class LiveResponse(AnswerModel):
    """The process answers."""

    live: bool


class ReadyResponse(AnswerModel):
    """A request would be served now."""

    name: str | None = None
    live: bool
    ready: bool


class OutputChunk(AnswerModel):
    """A text, in the form in which its prompt came: bytes as whole numbers, or strings."""

    name: str
    shape: list[int]
    datatype: Literal["BYTES"]
    data: list[int] | list[str]


class InferenceOutput(AnswerModel):
    """KServe's outputs, in the order of the inputs."""

    model_name: str
    model_version: str | None = None
    id: str | None = None
    outputs: list[OutputChunk]


@dataclass(frozen=True, slots=True)
class PromptTensor:
    """The prompts of one tensor, and what its answer must look like."""

    prompts: tuple[str, ...]
    shape: tuple[int, ...] | None

    @classmethod
    def of(cls, tensor: InputTensor, place: str) -> "PromptTensor":
        """The prompts of a tensor. Raises InvalidRequest, and HttpError for broken UTF-8."""
        if tensor.datatype not in _KINDS:
            rule = f"must be `{BYTES}`: prompts are texts"
            raise wrong(f"{place}.datatype", rule, tensor.datatype)
        items = _flat(tensor.data)
        if items and all(type(item) is int and 0 <= item < 256 for item in items):
            return cls((_decoded(bytes(items), place),), None)
        if not items or not all(isinstance(item, str) for item in items):
            rule = "must be strings, or the bytes of one text as whole numbers from 0 to 255"
            raise wrong(f"{place}.data", f"{rule}, not empty", _misfit(items))
        if not _holds(tensor.shape, len(items)):
            shape = "x".join(map(str, tensor.shape[:_MAX_DEPTH])) or "a scalar"
            counts = f"Given: {shape}, and {len(items)} strings"
            raise InvalidRequest(f"`{place}.shape` must say how many strings come. {counts}", place)
        return cls(tuple(items), tuple(tensor.shape))

    def answer(self, name: str, texts: list[str]) -> dict[str, Any]:
        """The tensor of the answers to the prompts."""
        data: list[Any] = texts
        shape: list[int] = list(self.shape or ())
        if self.shape is None:
            data = list(texts[0].encode())
            shape = [1, len(data)]
        return {"name": name, "shape": shape, "datatype": BYTES, "data": data}


def _holds(shape: list[int], num_items: int) -> bool:
    # Bounded first: a product of so many numbers as a body can hold takes seconds.
    if len(shape) > _MAX_DEPTH or not all(0 <= size <= num_items for size in shape):
        return False
    return prod(shape) == num_items


def _decoded(text: bytes, place: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        message = f"`{place}.data` is not valid UTF-8 at byte {error.start}"
        raise HttpError(422, "utf8", message, field=place) from error


def _misfit(items: list[Any]) -> Any:
    """Of elements that are no texts, the one to show; all of them if there are none."""
    others = (item for item in items if not isinstance(item, str))
    has_texts = any(isinstance(item, str) for item in items)
    misfits = others if has_texts else (i for i in items if type(i) is not int or not 0 <= i < 256)
    return next(misfits, items)


def _flat(data: list[Any]) -> list[Any]:
    """The elements in row-major order; rows may be lists of their own."""
    for _ in range(_MAX_DEPTH):
        if not any(isinstance(item, list) for item in data):
            break
        data = [inner for item in data for inner in (item if isinstance(item, list) else [item])]
    return data
