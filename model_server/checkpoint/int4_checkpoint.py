"""Checkpoints in 4 bits: three formats, read into the layout of executor/int4.py.

    gptq:                qweight [inputs / 8, outputs], qzeros [groups, outputs / 8],
                         scales [groups, outputs], g_idx [inputs]: the group of each input
    awq:                 qweight [inputs, outputs / 8], qzeros and scales likewise; a word holds
                         its outputs in the order 0 2 4 6 1 3 5 7
    compressed-tensors:  weight_packed [outputs, inputs / 8], weight_scale [outputs, groups],
                         weight_zero_point [outputs / 8, groups] unless it is symmetric

Words are int32, numbers in them from the lowest bits up. GPTQ stores zero points less one, but for
"gptq_v2". What is not written here is refused by name, and left to transformers.

Sources: Frantar et al., "GPTQ", 2022, and Lin et al., "AWQ", 2023, as their tools save them;
https://github.com/vllm-project/compressed-tensors, "pack-quantized".
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_server.checkpoint.tensor_files import Shape, TensorFiles
from model_server.errors import CheckpointBroken
from model_server.executor.int4 import PER_WORD, Int4Parameters, Int4Weight, packed, unpacked
from model_server.recipe.recipe import Unreadable

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of the outputs of a word
_SIGNED_ZERO = 8  # compressed-tensors stores -8 to 7 as 0 to 15


@dataclass(frozen=True, slots=True)
class Int4Format:
    """How a checkpoint stores weights in 4 bits. `method`: its name in the config.

    subtracts_one: from zero points before it stores them; `is_symmetric`: it stores none
    """

    method: str
    subtracts_one: bool = False
    is_symmetric: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Int4Format":
        """By a config's quantization_config. Raises Unreadable, with the reason."""
        method = str(settings.get("quant_method"))
        if method == "gptq":
            return cls._gptq(settings)
        if method == "awq":
            return cls._awq(settings)
        if method == "compressed-tensors":
            return cls._compressed_tensors(settings)
        raise Unreadable(f"its checkpoint is quantized by {method}")

    @classmethod
    def _gptq(cls, settings: Mapping[str, Any]) -> "Int4Format":
        stored = settings.get("checkpoint_format") or settings.get("format") or "gptq"
        _require("gptq", "bits", settings.get("bits"), 4)
        _require("gptq", "checkpoint_format", stored, "gptq", "gptq_v2")
        _require("gptq", "dynamic", settings.get("dynamic") or None, None)
        _require("gptq", "pack_dtype", settings.get("pack_dtype") or "int32", "int32")
        return cls("gptq", subtracts_one=stored == "gptq")

    @classmethod
    def _awq(cls, settings: Mapping[str, Any]) -> "Int4Format":
        _require("awq", "bits", settings.get("bits", settings.get("w_bit")), 4)
        version = str(settings.get("version", settings.get("format", "gemm"))).lower()
        _require("awq", "version", version, "gemm")
        _require("awq", "zero_point", settings.get("zero_point", True), True)
        return cls("awq")

    @classmethod
    def _compressed_tensors(cls, settings: Mapping[str, Any]) -> "Int4Format":
        method = "compressed-tensors"
        _require(method, "format", settings.get("format"), "pack-quantized")
        groups = list((settings.get("config_groups") or {}).values())
        _require(method, "the number of config_groups", len(groups), 1)
        _require(method, "input_activations", groups[0].get("input_activations"), None)
        weights = groups[0].get("weights") or {}
        _require(method, "num_bits", weights.get("num_bits"), 4)
        _require(method, "type", weights.get("type", "int"), "int")
        _require(method, "strategy", weights.get("strategy", "group"), "group", "channel")
        return cls(method, is_symmetric=bool(weights.get("symmetric", True)))

    @property
    def packed_name(self) -> str:
        """Of the tensor that stands for a weight, after the name of its layer."""
        return "weight_packed" if self.method == "compressed-tensors" else "qweight"


def _require(method: str, name: str, value: object, *expected: object) -> None:
    if value not in expected:
        served = " or ".join(map(repr, expected))
        raise Unreadable(
            f"its checkpoint is quantized by {method} with {name} {value!r}: {served} is read"
        )


def read_int4(
    folder: Path,
    stored: Int4Format,
    shapes: Mapping[str, Shape],
    tied: Mapping[str, str],
    stored_names: Mapping[str, str],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Int4Parameters:
    """The parameters of these names and shapes, each of which is in the checkpoint.

    tied:   where a parameter is that is in no file; by name, maybe the same one
    stored_names: of all tensors in the files, by those that the model's class has for them

    A weight whose groups are not runs of inputs is read as one of `dtype`. Raises CheckpointBroken
    for a tensor of another shape, and Unreadable where a parameter is missing.
    """
    plain: dict[str, Tensor] = {}
    int4: dict[str, Int4Weight] = {}
    with ExitStack() as stack:
        files = TensorFiles.open(folder, stored_names, device, stack)
        # What is in another's place comes last, and is the same tensor.
        for name, shape in sorted(shapes.items(), key=lambda item: tied[item[0]] != item[0]):
            layer, _, kind = name.rpartition(".")
            if kind == "weight" and f"{layer}.{stored.packed_name}" in files:
                weight = _Layer(files, layer, shape).read(stored, dtype)
                if isinstance(weight, Int4Weight):
                    int4[name] = weight
                else:
                    plain[name] = weight
            elif name in files:
                plain[name] = files.tensor(name, shape)
            elif tied[name] in plain:
                plain[name] = plain[tied[name]]
            else:
                raise Unreadable(f"its checkpoint is quantized by {stored.method} and lacks {name}")
    return Int4Parameters(plain, int4, dtype)


class _Layer:
    """A linear layer in 4 bits."""

    def __init__(self, files: TensorFiles, name: str, shape: Shape) -> None:
        self._files = files
        self._name = name
        self._num_outputs, self._num_inputs = shape

    def read(self, stored: Int4Format, dtype: torch.dtype) -> Int4Weight | Tensor:
        """Its weight."""
        by_method: dict[str, Callable[[Int4Format], tuple[Tensor, Tensor, Tensor]]] = {
            "gptq": self._gptq,
            "awq": self._awq,
            "compressed-tensors": self._compressed_tensors,
        }
        words, scales, zeros = by_method[stored.method](stored)
        weight = Int4Weight(words, scales.contiguous(), zeros.contiguous())
        groups = self._groups(stored, weight.group_len)
        if groups is None:
            return weight
        numbers = unpacked(words).float() - zeros[:, groups]
        return (numbers * scales[:, groups].float()).to(dtype)

    def _gptq(self, stored: Int4Format) -> tuple[Tensor, Tensor, Tensor]:
        num_groups = self._num_groups("scales", 0)
        words = self._tensor("qweight", self._num_inputs // PER_WORD, self._num_outputs)
        scales = self._tensor("scales", num_groups, self._num_outputs)
        zeros = unpacked(self._tensor("qzeros", num_groups, self._num_outputs // PER_WORD))
        return words.T.contiguous(), scales.T, zeros.T + int(stored.subtracts_one)

    def _awq(self, stored: Int4Format) -> tuple[Tensor, Tensor, Tensor]:
        num_groups = self._num_groups("scales", 0)
        num_words = self._num_outputs // PER_WORD
        words = self._tensor("qweight", self._num_inputs, num_words)
        zeros = self._tensor("qzeros", num_groups, num_words)
        scales = self._tensor("scales", num_groups, self._num_outputs)
        return packed(_awq_numbers(words).T), scales.T, _awq_numbers(zeros).T

    def _compressed_tensors(self, stored: Int4Format) -> tuple[Tensor, Tensor, Tensor]:
        num_groups = self._num_groups("weight_scale", 1)
        words = self._tensor("weight_packed", self._num_outputs, self._num_inputs // PER_WORD)
        scales = self._tensor("weight_scale", self._num_outputs, num_groups)
        if stored.is_symmetric:
            return words, scales, torch.full_like(scales, _SIGNED_ZERO, dtype=torch.uint8)
        num_words = self._num_outputs // PER_WORD
        return words, scales, unpacked(self._tensor("weight_zero_point", num_words, num_groups).T).T

    def _groups(self, stored: Int4Format, group_len: int) -> Tensor | None:
        """The group of each input; None: they are runs of inputs."""
        name = "weight_g_idx" if stored.method == "compressed-tensors" else "g_idx"
        if f"{self._name}.{name}" not in self._files:
            return None
        groups = self._tensor(name, self._num_inputs).long()
        num_groups = self._num_inputs // group_len
        if bool(((groups < 0) | (groups >= num_groups)).any()):
            raise CheckpointBroken(
                f"{self._name}.{name}: names others than its {num_groups} groups"
            )
        runs = torch.arange(self._num_inputs, device=groups.device) // group_len
        return None if torch.equal(groups, runs) else groups

    def _num_groups(self, name: str, axis: int) -> int:
        num_groups = self._files.num_rows(f"{self._name}.{name}", axis)
        sizes = (self._num_inputs, self._num_outputs)
        if not num_groups or self._num_inputs % num_groups or any(each % 8 for each in sizes):
            raise CheckpointBroken(
                f"{self._name}: {num_groups} groups of a weight of {self._num_outputs} by"
                f" {self._num_inputs}: they must divide the inputs, and 8 both numbers"
            )
        return num_groups

    def _tensor(self, name: str, *shape: int) -> Tensor:
        return self._files.tensor(f"{self._name}.{name}", shape)


def _awq_numbers(words: Tensor) -> Tensor:
    """[n, m] words to [n, 8 m] numbers in the order of the outputs."""
    places = torch.tensor(_AWQ_PLACES, device=words.device)
    return unpacked(words).unflatten(1, (-1, PER_WORD)).index_select(2, places).flatten(1)
