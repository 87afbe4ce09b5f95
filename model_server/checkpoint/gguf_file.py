"""The weights of a GGUF file, by the names that the model's class has for them.

A folder that was made of a GGUF file (gguf_conversion) has the model's small files, and in place of
weights an index: where the file is, and where in it each tensor. The file itself is mapped.

    GgufFile.stored(part)      rows as the file has them, in its own quantized form
    GgufFile.get_tensor(name)  a parameter as float32, exactly as the package `gguf` gives it

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from model_server.checkpoint.gguf_kinds import StoredRows
from model_server.errors import CheckpointBroken
from model_server.executor.grouped import turned_columns

GGUF_INDEX_NAME = "gguf_index.json"


@dataclass(frozen=True, slots=True)
class GgufPart:
    """One of the file's tensors. `kind` in the format's own words, as "Q4_1".

    shape:           outputs before inputs, and before them experts
    num_heads:       whose rows the file interleaves for rotation by neighbours; None: as the class
    turned_rows:     a start and two counts, n and m: behind the start the class has n times m
                     runs of rows, which the file has as m times n
    turned_columns:  n and m, of runs of inputs
    subtrahend:      what the file has added to each number
    negative_exp:    the file has -exp of each number
    """

    kind: str
    shape: tuple[int, ...]
    offset: int
    file: int = 0
    num_heads: int | None = None
    turned_rows: tuple[int, int, int] | None = None
    turned_columns: tuple[int, int] | None = None
    subtrahend: float = 0.0
    negative_exp: bool = False

    @property
    def num_bytes(self) -> int:
        block_len, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        return self.num_numbers // block_len * block_bytes

    @property
    def num_numbers(self) -> int:
        return math.prod(self.shape)

    def of_rows(self, start: int, end: int) -> "GgufPart":
        """Some of them, apart."""
        row_bytes = self.num_bytes // self.shape[0]
        shape = (end - start, *self.shape[1:])
        return replace(self, shape=shape, offset=self.offset + start * row_bytes)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A parameter of the model's class: outputs of the file's tensors, one after another.

    shape:         as the class has it
    axis:          of the parts' outputs
    num_turns:     so many runs of each part are in turns in the class
    inputs_first:  the class has inputs before outputs
    """

    shape: tuple[int, ...]
    parts: tuple[GgufPart, ...]
    axis: int = 0
    num_turns: int = 1
    inputs_first: bool = False

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "GgufTensor":
        parts = tuple(
            GgufPart(**{name: _frozen(value) for name, value in part.items()})
            for part in content["parts"]
        )
        return cls(**{**content, "shape": tuple(content["shape"]), "parts": parts})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class GgufFile:
    """The tensors of one file. What is given is valid as long as nobody writes to the file."""

    def __init__(self, paths: Sequence[Path], tensors: Mapping[str, GgufTensor]) -> None:
        """`paths`: of all that it was split into."""
        self.paths = paths
        self.tensors = tensors
        self._bytes: list[npt.NDArray[np.uint8]] = [
            np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray) for path in paths
        ]

    @classmethod
    def of_folder(cls, folder: Path) -> "GgufFile | None":
        """The file that the folder's index names; None: it has none. Raises CheckpointBroken."""
        index = folder / GGUF_INDEX_NAME
        if not index.is_file():
            return None
        content: dict[str, Any] = json.loads(index.read_text())
        paths = []
        for name, num_bytes in content["files"].items():
            path = Path(name)
            if not path.is_file() or path.stat().st_size != num_bytes:
                raise CheckpointBroken(
                    f"{path}: is not the file any more that was read at the start"
                )
            paths.append(path)
        tensors = {name: GgufTensor.from_json(each) for name, each in content["tensors"].items()}
        return cls(paths, tensors)

    def write_index(self, folder: Path) -> None:
        content = {
            "files": {str(path): path.stat().st_size for path in self.paths},
            "tensors": {name: asdict(tensor) for name, tensor in self.tensors.items()},
        }
        (folder / GGUF_INDEX_NAME).write_text(json.dumps(content))

    def keys(self) -> Iterator[str]:
        """Names of the tensors."""
        return iter(self.tensors)

    def stored(self, part: GgufPart, expert: int | None = None) -> StoredRows:
        """In the order of the class's rows; inputs and numbers are still the file's."""
        of_part = self._bytes[part.file][part.offset : part.offset + part.num_bytes]
        shape = part.shape
        if expert is not None:
            of_part = of_part.reshape(shape[0], -1)[expert]
            shape = shape[1:]
        num_rows = math.prod(shape[:-1])
        rows = of_part.reshape(num_rows, -1)
        if part.num_heads is not None:
            half_len = shape[0] // part.num_heads // 2
            by_pair = of_part.reshape(part.num_heads, half_len, 2, -1)
            rows = by_pair.swapaxes(1, 2).reshape(num_rows, -1)
        if part.turned_rows is not None:
            start, n, m = part.turned_rows
            turned = rows[start:].reshape(m, n, -1).swapaxes(0, 1)
            rows = np.concatenate([rows[:start], turned.reshape(num_rows - start, -1)])
        return StoredRows(part.kind, rows)

    def get_tensor(self, name: str) -> Tensor:
        """In float32 and memory of its own."""
        tensor = self.tensors[name]
        if len(tensor.parts[0].shape) < 3:
            return self._joined(tensor)
        # All experts of a layer may be gigabytes, and are there once.
        of_all = torch.empty(tensor.shape)
        for index, of_one in enumerate(of_all):
            of_one.copy_(self._joined(tensor, index))
        return of_all

    def _joined(self, tensor: GgufTensor, expert: int | None = None) -> Tensor:
        num_left_out = 0 if expert is None else 1
        parts = []
        for part in tensor.parts:
            numbers = self.stored(part, expert).numbers()
            if part.subtrahend:
                numbers -= part.subtrahend
            if part.negative_exp:
                numbers = (-numbers).log()
            numbers = numbers.reshape(part.shape[num_left_out:])
            if part.turned_columns is not None:
                numbers = turned_columns(numbers, *part.turned_columns)
            parts.append(numbers)
        joined = parts[0]
        if len(parts) > 1:
            axis = tensor.axis - num_left_out
            runs = [part.unflatten(axis, (tensor.num_turns, -1)) for part in parts]
            joined = torch.cat(runs, axis + 1).flatten(axis, axis + 1)
        if tensor.inputs_first:
            joined = joined.transpose(-2, -1)
        return joined.reshape(tensor.shape[num_left_out:]).contiguous()

    def read(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """All tensors; what the file has in float32 stays so, as corrections of routers do."""
        tensors = {}
        for name, tensor in self.tensors.items():
            is_wide = all(part.kind == "F32" for part in tensor.parts)
            tensors[name] = self.get_tensor(name).to(torch.float32 if is_wide else dtype)
        return tensors
