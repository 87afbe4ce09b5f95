"""Products with packed matrices, by the C++ that the model server's executor is made of."""

import ctypes
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from model_server.executor.weights import COLUMNS, FORMATS, MatrixStruct
from native.compiler import Source
from native.instruction_sets import usable
from native.library import load_native

_SOURCE = Path(__file__).with_name("gemm_driver.cpp")
_HEADERS = Path(__file__).parents[3] / "model_server" / "native"
# Those that this CPU has.
INSTRUCTION_SETS = [each.name for each in usable(Source.read(_SOURCE).instruction_sets)]


def load_libraries(folder: Path) -> dict[str, ctypes.CDLL]:
    """The library for each instruction set, by its name; sources are copied to `folder`."""
    for file in (_SOURCE, *_HEADERS.glob("*.h")):
        shutil.copy(file, folder)
    return {name: _load(folder / _SOURCE.name, name) for name in INSTRUCTION_SETS}


def _load(source: Path, instruction_set: str) -> ctypes.CDLL:
    library = load_native(source, only=[instruction_set])
    library.packed_bytes.restype = ctypes.c_int64
    return library


class PackedMatrix:
    """Weights [n, k] of float32 or bfloat16, packed as `format`.

    `columns` names each output's row of the weights, None for an output of zeros; None: in order.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weights: Tensor,
        format: str,
        *,
        bias: Tensor | None = None,
        columns: Sequence[int | None] | None = None,
    ) -> None:
        named: Sequence[int | None] = range(len(weights)) if columns is None else columns
        self.n = len(named)
        padded_n = (len(named) + COLUMNS - 1) // COLUMNS * COLUMNS
        self._library = library
        self._weights = weights
        self._matrix = MatrixStruct(n=self.n, k=weights.shape[1], format=FORMATS[format])
        num_bytes = library.packed_bytes(ctypes.byref(self._matrix))
        self._memory = torch.zeros(num_bytes + 64, dtype=torch.uint8)
        self._matrix.packed = (self._memory.data_ptr() + 63) // 64 * 64
        self.scales = torch.zeros(padded_n)
        self.sums = torch.zeros(padded_n, dtype=torch.int32)
        self._matrix.scales = self.scales.data_ptr()
        self._matrix.sums = self.sums.data_ptr()
        self._bias = torch.zeros(padded_n)
        if bias is not None:
            self._bias[: self.n] = bias
            self._matrix.bias = self._bias.data_ptr()
        stride = weights.stride(0) * weights.element_size()
        rows = (ctypes.c_void_p * self.n)(
            *(None if row is None else weights.data_ptr() + row * stride for row in named)
        )
        getattr(library, f"pack_{_suffix(weights)}")(
            ctypes.byref(self._matrix),
            rows,
            *map(ctypes.c_void_p, (self._matrix.packed, self._matrix.scales, self._matrix.sums)),
        )

    def times(self, rows: Tensor, *, interleaved: bool) -> Tensor:
        """The products of rows [num_rows, k], float32 or bfloat16, as float32 [num_rows, n]."""
        to = torch.empty(len(rows), len(self._bias))
        getattr(self._library, f"multiply_{_suffix(rows)}")(
            ctypes.byref(self._matrix),
            ctypes.c_void_p(rows.data_ptr()),
            ctypes.c_int64(len(rows)),
            ctypes.c_int64(rows.stride(0)),
            int(interleaved),
            ctypes.c_void_p(to.data_ptr()),
        )
        return to[:, : self.n]


def _suffix(x: Tensor) -> str:
    return {torch.float32: "f32", torch.bfloat16: "bf16"}[x.dtype]
