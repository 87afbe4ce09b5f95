"""The tensors of a checkpoint, read one by one."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor

from model_server.checkpoint.checkpoint import INDEX_NAME, WEIGHTS_NAME
from model_server.checkpoint.gguf_file import GgufFile
from model_server.errors import CheckpointBroken

Shape: TypeAlias = tuple[int, ...]


class TensorFiles:
    """The tensors of a checkpoint, by the names that the model's class has for them."""

    def __init__(self, folder: Path, names: Mapping[str, str], handles: Mapping[str, Any]) -> None:
        self._folder = folder
        self._names = names
        self._handles = handles

    @classmethod
    def open(
        cls, folder: Path, names: Mapping[str, str], device: torch.device, stack: ExitStack
    ) -> "TensorFiles":
        gguf = GgufFile.of_folder(folder)
        if gguf is not None:
            return cls(folder, names, dict.fromkeys(gguf.tensors, gguf))
        paths = [folder / WEIGHTS_NAME]
        if not paths[0].is_file():
            weight_map = json.loads((folder / INDEX_NAME).read_text())["weight_map"]
            paths = [folder / file_name for file_name in sorted(set(weight_map.values()))]
        handles: dict[str, Any] = {}
        for path in paths:
            handle = stack.enter_context(safe_open(path, framework="pt", device=str(device)))
            handles |= dict.fromkeys(handle.keys(), handle)
        return cls(folder, names, handles)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def tensor(self, name: str, shape: Shape) -> Tensor:
        """Raises CheckpointBroken."""
        if name not in self:
            raise CheckpointBroken(f"{self._folder}: has no {name}")
        stored_name = self._names[name]
        tensor: Tensor = self._handles[stored_name].get_tensor(stored_name)
        if tuple(tensor.shape) != tuple(shape):
            raise CheckpointBroken(
                f"{self._folder}: {name} has the shape {list(tensor.shape)}, not {list(shape)}"
            )
        return tensor

    def num_rows(self, name: str, axis: int) -> int:
        """How long an axis is; 0 for a tensor that is not there."""
        if name not in self:
            return 0
        stored_name = self._names[name]
        shape = self._handles[stored_name].get_slice(stored_name).get_shape()
        return int(shape[axis]) if axis < len(shape) else 0
