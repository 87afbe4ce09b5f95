"""The weights of a GGUF file, by the names that the model's class has for them.

A folder that was made of a GGUF file (gguf_conversion) has the model's small files, and in place of
weights an index: where the file is, and where in it each tensor. The file itself is mapped.

    GgufFile.stored(name)      rows as the file has them, in its own quantized form
    GgufFile.get_tensor(name)  the same as float32, exactly as the package `gguf` gives them

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from model_server.errors import CheckpointBroken

GGUF_INDEX_NAME = "gguf_index.json"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor is in the file. `kind` in the format's own words, as "Q4_1".

    shape:       as the model's class has it
    num_heads:   whose rows the file interleaves for rotation by neighbours; None: as the class has
    subtrahend:  what the file has added to each number
    """

    kind: str
    shape: tuple[int, ...]
    offset: int
    num_heads: int | None = None
    subtrahend: float = 0.0

    @property
    def num_bytes(self) -> int:
        block_len, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        return int(np.prod(self.shape, dtype=np.int64)) // block_len * block_bytes


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A tensor's rows [num_rows, row_bytes] in blocks of the file's own `kind`."""

    kind: str
    rows: npt.NDArray[np.uint8]

    def numbers(self) -> npt.NDArray[np.float32]:
        """[num_rows, row_len], exact in float32."""
        kind = GGMLQuantizationType[self.kind]
        if kind == GGMLQuantizationType.F32:
            return self.rows.view(np.float32)
        if kind == GGMLQuantizationType.F16:
            return self.rows.view(np.float16).astype(np.float32)
        return dequantize(self.rows, kind)


class GgufFile:
    """The tensors of one file. What is given is valid as long as nobody writes to the file."""

    def __init__(self, path: Path, tensors: Mapping[str, GgufTensor]) -> None:
        self.path = path
        self.tensors = tensors
        self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")

    @classmethod
    def of_folder(cls, folder: Path) -> "GgufFile | None":
        """The file that the folder's index names; None: it has none. Raises CheckpointBroken."""
        index = folder / GGUF_INDEX_NAME
        if not index.is_file():
            return None
        content: dict[str, Any] = json.loads(index.read_text())
        path = Path(content["file"])
        if not path.is_file() or path.stat().st_size != content["file_bytes"]:
            raise CheckpointBroken(f"{path}: is not the file any more that was read at the start")
        tensors = {
            name: GgufTensor(**{**each, "shape": tuple(each["shape"])})
            for name, each in content["tensors"].items()
        }
        return cls(path, tensors)

    def write_index(self, folder: Path) -> None:
        content = {
            "file": str(self.path),
            "file_bytes": self.path.stat().st_size,
            "tensors": {name: asdict(tensor) for name, tensor in self.tensors.items()},
        }
        (folder / GGUF_INDEX_NAME).write_text(json.dumps(content))

    def keys(self) -> Iterator[str]:
        """Names of the tensors."""
        return iter(self.tensors)

    def stored(self, name: str) -> StoredRows:
        """In the order of the class's rows; `subtrahend` is still to be taken away."""
        tensor = self.tensors[name]
        of_tensor = self._bytes[tensor.offset : tensor.offset + tensor.num_bytes]
        num_rows = tensor.shape[0] if len(tensor.shape) > 1 or tensor.num_heads else 1
        rows = of_tensor.reshape(num_rows, -1)
        if tensor.num_heads is not None:
            half_len = num_rows // tensor.num_heads // 2
            by_pair = rows.reshape(tensor.num_heads, half_len, 2, -1)
            rows = by_pair.swapaxes(1, 2).reshape(num_rows, -1)
        return StoredRows(tensor.kind, rows)

    def get_tensor(self, name: str) -> Tensor:
        """In float32 and memory of its own."""
        tensor = self.tensors[name]
        numbers = self.stored(name).numbers() - np.float32(tensor.subtrahend)
        return torch.from_numpy(numbers.reshape(tensor.shape))

    def read(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """All tensors."""
        return {name: self.get_tensor(name).to(dtype) for name in self.tensors}
