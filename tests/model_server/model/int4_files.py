"""Checkpoints in 4 bits, written number by number as their formats say."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Numbers = npt.NDArray[np.int64]

GROUP_LEN = 32


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """A weight as its numbers. `groups`: of each input."""

    numbers: Numbers  # [outputs, inputs], 0 to 15
    scales: Tensor  # [outputs, num_groups] float16
    zeros: Numbers  # [outputs, num_groups]
    groups: Numbers  # [inputs]

    @classmethod
    def of(cls, weight: Tensor, groups: Numbers, *, is_symmetric: bool = False) -> "Rounded":
        """The nearest numbers to a weight [outputs, inputs]."""
        num_groups = int(groups.max()) + 1
        values = weight.double().numpy()
        least = np.stack([values[:, groups == g].min(1) for g in range(num_groups)], 1)
        most = np.stack([values[:, groups == g].max(1) for g in range(num_groups)], 1)
        if is_symmetric:
            most = np.maximum(np.abs(least), np.abs(most))
            least = -most
        scales = torch.from_numpy((most - least) / 15).to(torch.float16)
        zeros = np.clip(np.round(-least / scales.double().numpy()), 1, 15).astype(np.int64)
        if is_symmetric:
            zeros[:] = 8
        places = values / scales.double().numpy()[:, groups] + zeros[:, groups]
        return cls(np.clip(np.round(places), 0, 15).astype(np.int64), scales, zeros, groups)

    @property
    def values(self) -> Tensor:
        """[outputs, inputs] float32."""
        zeros = torch.from_numpy(self.zeros[:, self.groups]).float()
        numbers = torch.from_numpy(self.numbers).float()
        return (numbers - zeros) * self.scales.float()[:, self.groups]


def words(numbers: Numbers, axis: int, places: Sequence[int] = range(8)) -> Tensor:
    """Eight neighbours along an axis to a word: neighbour places[i] in its bits 4 i to 4 i + 3."""
    moved = np.moveaxis(numbers, axis, -1)
    packed = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), dtype=np.uint32)
    for index, place in enumerate(places):
        packed |= moved[..., place::8].astype(np.uint32) << np.uint32(4 * index)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed.view(np.int32), -1, axis)))


def gptq(weight: Rounded, *, subtracts_one: bool = True) -> dict[str, Tensor]:
    return {
        "qweight": words(weight.numbers.T, 0),
        "qzeros": words(weight.zeros.T - subtracts_one, 1),
        "scales": weight.scales.T.contiguous(),
        "g_idx": torch.from_numpy(weight.groups.astype(np.int32)),
    }


def awq(weight: Rounded) -> dict[str, Tensor]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": words(weight.numbers.T, 1, order),
        "qzeros": words(weight.zeros.T, 1, order),
        "scales": weight.scales.T.contiguous(),
    }


def compressed_tensors(weight: Rounded, *, is_symmetric: bool = False) -> dict[str, Tensor]:
    tensors = {
        "weight_packed": words(weight.numbers, 1),
        "weight_scale": weight.scales,
        "weight_shape": torch.tensor(weight.numbers.shape),
    }
    if not is_symmetric:
        tensors["weight_zero_point"] = words(weight.zeros, 0)
    return tensors


@dataclass(frozen=True, slots=True)
class Kind:
    """A format and its settings in a config."""

    write: Callable[[Rounded], dict[str, Tensor]]
    settings: dict[str, Any]
    is_symmetric: bool = False
    is_shuffled: bool = False  # its groups are not runs of inputs


def _compressed(**weights: Any) -> dict[str, Any]:
    group = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
    }


KINDS = {
    "gptq": Kind(gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP_LEN}),
    "gptq in another order": Kind(
        gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP_LEN, "desc_act": True},
        is_shuffled=True,
    ),
    "gptq_v2": Kind(
        lambda weight: gptq(weight, subtracts_one=False),
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
    ),
    "awq": Kind(
        awq,
        {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True},
    ),
    "compressed-tensors": Kind(compressed_tensors, _compressed(symmetric=False)),
    "compressed-tensors, symmetric": Kind(
        lambda weight: compressed_tensors(weight, is_symmetric=True),
        _compressed(symmetric=True),
        is_symmetric=True,
    ),
}


def groups_of(num_inputs: int, kind: Kind) -> Numbers:
    groups = np.arange(num_inputs) // GROUP_LEN
    return np.random.default_rng(0).permutation(groups) if kind.is_shuffled else groups


def quantize(folder: Path, kind: Kind) -> dict[str, Tensor]:
    """Write a checkpoint's layers in 4 bits; returns what its parameters are then."""
    tensors = {}
    values = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values[name] = tensor
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        rounded = Rounded.of(
            tensor, groups_of(tensor.shape[1], kind), is_symmetric=kind.is_symmetric
        )
        values[name] = rounded.values
        layer = name.removesuffix(".weight")
        tensors |= {f"{layer}.{part}": each for part, each in kind.write(rounded).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = kind.settings
    (folder / "config.json").write_text(json.dumps(config))
    return values
