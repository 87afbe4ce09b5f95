"""A GGUF file as it is opened: its tensors, and its metadata.

Each value is of the sort that its name asks for, on which whoever reads it afterwards relies; a
file of another kind of numbers, or of texts where numbers belong, is refused by the value's name.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
from gguf import GGUFEndian, GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderField, ReaderTensor

from model_server.checkpoint.gguf_architectures import ARCHITECTURES
from model_server.errors import ModelRefused
from processes.gguf_cache import files_of_gguf

# More than any tokenizer has of tokens or merges; a broken length would be read for hours.
_MAX_VALUES = 1 << 23
_LARGEST = 1 << 40  # of an architecture's numbers
_MAX_CONTEXT_LEN = 1 << 24  # tables of rotations are as long
_TEXT = "a text"
_TEXTS = "a list of texts"
_NUMBER = "a finite number"
_NUMBERS = "a list of finite numbers"
_SORTS = {
    r"general\.architecture|tokenizer\.ggml\.(model|pre)|tokenizer\.chat_template(\..*)?": _TEXT,
    r"tokenizer\.ggml\.(tokens|merges)": _TEXTS,
    r"tokenizer\.ggml\.(scores|token_type|eos_token_ids)": _NUMBERS,
    r"general\.sampling\.(temp|top_k|top_p|min_p|penalty_repeat)": _NUMBER,
    r"split\.\w+|tokenizer\.ggml\.(add_\w+|\w+_token_id)": _NUMBER,
}
# Of an architecture's own, all of which are numbers else.
_OWN_TEXTS = ("rope.scaling.type", "tensor_data_layout")
_OF_LAYERS = (
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window_pattern",
    "attention.recurrent_layers",
)
_OWN_LISTS = ("rope.dimension_sections",)


class GgufSource:
    """A file's metadata and tensors. Raises ModelRefused where it is none of ours."""

    def __init__(self, path: Path) -> None:
        """`path`: of the file, or of one of those that it was split into."""
        self.paths = files_of_gguf(path)
        readers = [_opened(each) for each in self.paths]
        self.metadata = _metadata(readers[0].fields)
        num_files = self.metadata.get("split.count") or 1
        if num_files != len(self.paths):
            raise ModelRefused(
                f"is one of {num_files} parts, and its name is not"
                f" NAME-00001-of-{num_files:05}.gguf"
            )
        self.tensors: dict[str, ReaderTensor] = {}
        # Of each tensor, in which of `paths` it is.
        self.files: dict[str, int] = {}
        for index, reader in enumerate(readers):
            number = reader.fields.get("split.no")
            if number is not None and number.contents() != index:
                raise ModelRefused(
                    f"split.no {number.contents()!r} of {self.paths[index].name}: is not {index},"
                    " which its name says"
                )
            for tensor in reader.tensors:
                if tensor.name in self.tensors:
                    raise ModelRefused(f"has {tensor.name:.80} in two of its parts")
                self.tensors[tensor.name] = tensor
                self.files[tensor.name] = index
        self.architecture = str(self.metadata.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise ModelRefused(
                f"general.architecture {shortened(self.architecture)}: of GGUF files"
                f" {', '.join(ARCHITECTURES)} are served; serve the model's safetensors"
            )
        self.rules = ARCHITECTURES[self.architecture]
        if self.rules.with_experts is not None and self.value("expert_count"):
            self.rules = self.rules.with_experts
        if self.rules.with_window is not None and self.value("attention.sliding_window"):
            self.rules = self.rules.with_window

    @property
    def num_draft_layers(self) -> int:
        """Behind the others, that the classes leave out."""
        return self.value("nextn_predict_layers") or 0

    def own_names(self) -> list[str]:
        """Of the architecture's own metadata."""
        start = f"{self.architecture}."
        return [name.removeprefix(start) for name in self.metadata if name.startswith(start)]

    def stored_in(self, name: str) -> str:
        """A tensor's own name, or that of the one that has all queries, keys and values."""
        whole = re.sub(r"\.attn_[qkv]\.", ".attn_qkv.", name)
        return whole if name not in self.tensors and whole in self.tensors else name

    def value(self, name: str) -> Any:
        """Of the architecture's own; None: absent."""
        return self.metadata.get(f"{self.architecture}.{name}")


class _BoundedReader(GGUFReader):
    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type == GGUFValueType.ARRAY:
            num_values = int(self._get(orig_offs + 4, np.uint64)[0])
            if num_values > _MAX_VALUES:
                raise ValueError(f"a list of {num_values} values")
        return super()._get_field_parts(orig_offs, raw_type)


def _opened(path: Path) -> GGUFReader:
    """The file, whose tensors lie one behind the other in it. Raises ModelRefused."""
    if not path.is_file():
        raise ModelRefused(f"lacks its part {path.name}")
    try:
        # Where a length is broken, sums of the package overflow; what comes of it is refused.
        with np.errstate(over="ignore"):
            reader = _BoundedReader(path)
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise ModelRefused(f"is no whole GGUF file: {str(error)[:200]}") from error
    if reader.endianess != GGUFEndian.LITTLE:
        raise ModelRefused("has its numbers in the order of big-endian machines")
    alignment = int(reader.alignment)
    # As llama.cpp: otherwise numbers of one tensor would be another's.
    expected = int(reader.data_offset)
    for tensor in reader.tensors:
        if tensor.data_offset != expected:
            raise ModelRefused(
                f"is no whole GGUF file: {tensor.name:.80} is at byte"
                f" {tensor.data_offset} and not behind the tensor before it, at {expected}"
            )
        expected += -(-int(tensor.n_bytes) // alignment) * alignment
    return reader


def _metadata(fields: Mapping[str, ReaderField]) -> dict[str, Any]:
    """By name. Raises ModelRefused for a value of another sort than its name asks for."""
    metadata = {name: _content(name, field) for name, field in fields.items()}
    for name, value in metadata.items():
        for names, sort in _SORTS.items():
            if re.fullmatch(names, name):
                _require(name, value, [sort])
        if name.endswith("_token_id") and not (isinstance(value, int) and value >= 0):
            raise ModelRefused(f"{name:.80} {shortened(value)}: is no number of a token")
    architecture = metadata.get("general.architecture")
    num_layers = metadata.get(f"{architecture}.block_count")
    for name, value in metadata.items():
        if name.startswith(f"{architecture}."):
            _require_own(name, name.removeprefix(f"{architecture}."), value, num_layers)
    return metadata


def _content(name: str, field: ReaderField) -> Any:
    """Of a float32 the shortest decimals."""
    try:
        value = field.contents()
    except UnicodeDecodeError as error:
        raise ModelRefused(f"{name:.80}: is no text in UTF-8") from error
    if field.types == [GGUFValueType.FLOAT32]:
        return float(str(np.float32(value)))
    return value


def _require(name: str, value: Any, sorts: Sequence[str]) -> None:
    if not any(_is_a(value, sort) for sort in sorts):
        raise ModelRefused(f"{name:.80} {shortened(value)}: is not {' or '.join(sorts)}")


def _is_a(value: Any, sort: str) -> bool:
    if sort in (_TEXTS, _NUMBERS):
        each_sort = _TEXT if sort == _TEXTS else _NUMBER
        return isinstance(value, list) and all(_is_a(each, each_sort) for each in value)
    if sort == _TEXT:
        return isinstance(value, str)
    return isinstance(value, int | float) and math.isfinite(value)


def _require_own(name: str, key: str, value: Any, num_layers: Any) -> None:
    if key in _OWN_TEXTS:
        _require(name, value, [_TEXT])
        return
    has_list = key in (*_OF_LAYERS, *_OWN_LISTS)
    _require(name, value, [_NUMBER, _NUMBERS] if has_list else [_NUMBER])
    numbers = value if isinstance(value, list) else [value]
    most = _MAX_CONTEXT_LEN if key == "context_length" else _LARGEST
    if any(not 0 <= number <= most for number in numbers):
        raise ModelRefused(f"{name:.80} {shortened(value)}: is not from 0 to {most}")
    if isinstance(value, list) and key in _OF_LAYERS and len(value) != num_layers:
        raise ModelRefused(f"{name}: has {len(value)} numbers, for {num_layers} layers")
