"""The parameters of a GGUF file, and what they take when they are packed."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from model_server.checkpoint.gguf_file import GGUF_INDEX_NAME, GgufFile
from model_server.checkpoint.gguf_kinds import (
    PACKED_KINDS,
    PLAIN_KINDS,
    grouped_weight,
    packed_bits,
)
from model_server.errors import CheckpointBroken
from model_server.executor.grouped import GroupedParameters, GroupedWeight, joined

_log = logging.getLogger(__name__)


def packed_bytes(file: GgufFile, dtype: torch.dtype, embedding: str | None) -> int:
    """Of all tensors, packed for a CPU; `embedding`: what is looked up in `dtype`, not packed."""
    num_bits = 0.0
    for name, tensor in file.tensors.items():
        for part in tensor.parts:
            bits = packed_bits(part.kind) if name != embedding else None
            num_bits += part.num_numbers * (8 * dtype.itemsize if bits is None else bits)
    return int(num_bits) // 8


class GgufParameters(GroupedParameters):
    """stored_names: of the parameters in the file, by the names in the recipe."""

    def __init__(self, file: GgufFile, stored_names: Mapping[str, str]) -> None:
        self._file = file
        self._names = stored_names
        self._kinds = {
            name: {part.kind for part in tensor.parts} for name, tensor in file.tensors.items()
        }
        kinds = set[str]().union(*self._kinds.values())
        if others := sorted(kinds - {*PACKED_KINDS, *PLAIN_KINDS}):
            _log.info(
                "%s: what it has in %s is dequantized to bfloat16", file.paths[0], ", ".join(others)
            )

    @classmethod
    def of_folder(cls, folder: Path, stored_names: Mapping[str, str]) -> "GgufParameters":
        """Of the file that the folder's index names. Raises CheckpointBroken."""
        file = GgufFile.of_folder(folder)
        if file is None:
            raise CheckpointBroken(f"{folder}: has no {GGUF_INDEX_NAME}")
        return cls(file, stored_names)

    @property
    def device(self) -> torch.device:
        """See GroupedParameters."""
        return torch.device("cpu")

    @property
    def has_groups(self) -> bool:
        """See GroupedParameters."""
        return any(not kinds.isdisjoint(PACKED_KINDS) for kinds in self._kinds.values())

    def grouped(self, name: str) -> GroupedWeight | None:
        """See GroupedParameters."""
        tensor = self._file.tensors[self._names[name]]
        if len(tensor.shape) > 2:
            return None
        weights = []
        for part in tensor.parts:
            weight = grouped_weight(self._file.stored(part))
            if weight is not None and part.turned_columns is not None:
                weight = weight.with_turned_inputs(*part.turned_columns)
            if weight is None:
                return None
            weights.append(weight)
        return weights[0] if len(weights) == 1 else joined(weights, tensor.num_turns)

    def grouped_expert(self, name: str, index: int) -> tuple[GroupedWeight, ...]:
        """See GroupedParameters."""
        parts = self._file.tensors[self._names[name]].parts
        weights = [grouped_weight(self._file.stored(part, index)) for part in parts]
        grouped = tuple(weight for weight in weights if weight is not None)
        return grouped if len(grouped) == len(parts) else ()

    def __getitem__(self, name: str) -> Tensor:
        stored_name = self._names[name]
        tensor = self._file.get_tensor(stored_name)
        is_exact = self._kinds[stored_name] <= PACKED_KINDS | {"F32", "F16"}
        return tensor if is_exact else tensor.bfloat16()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def release(self, name: str) -> None:
        """See GroupedParameters: the file is mapped, and takes no memory."""
