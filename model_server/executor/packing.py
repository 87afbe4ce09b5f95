"""Packs linear layers for the C++ products, column by column, into memory of huge pages.

A column is one output of a layer: k weights in a row, wherever they lie, and a bias. Merging layers
and permuting outputs only reorders columns, so nothing is copied but into its packed place.
"""

import ctypes
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.executor.structs import COLUMNS, FORMATS, MatrixStruct

_HUGE_PAGE = 2 << 20
_CHUNK_BYTES = 64 << 20
_ALIGNMENT = 64
_ELEMENTS = {torch.float32: FORMATS["f32"], torch.bfloat16: FORMATS["bf16"]}


class Arena:
    """Zeroed memory, in huge pages where the system grants them; freed all at once."""

    def __init__(self) -> None:
        self._chunks: list[tuple[mmap.mmap, int]] = []
        self._next = self._end = 0

    def take(self, num_bytes: int) -> int:
        """The address of so many bytes. Raises MemoryError."""
        if self._next + num_bytes > self._end:
            self._add_chunk(max(num_bytes, _CHUNK_BYTES))
        address = self._next
        self._next += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return address

    def _add_chunk(self, num_bytes: int) -> None:
        size = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size} bytes cannot be had: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._chunks.append((memory, start))
        self._next = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        self._end = start + size

    def put(self, array: npt.NDArray[np.generic]) -> int:
        """The address of a copy."""
        array = np.ascontiguousarray(array)
        address = self.take(array.nbytes)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return address


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of one length, and the tensors that they lie in."""

    addresses: npt.NDArray[np.uint64]  # 0: a column of zeros
    biases: npt.NDArray[np.float32]
    k: int
    element: int
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "Columns":
        """Those of a layer's weight [n, k], any strides, and bias [n]."""
        if weight.dtype not in _ELEMENTS:
            weight = weight.float()
        weight = weight.detach().contiguous()
        n, k = weight.shape
        steps = np.arange(n, dtype=np.uint64) * np.uint64(k * weight.itemsize)
        biases = np.zeros(n, np.float32) if bias is None else bias.detach().float().numpy()
        addresses = steps + np.uint64(weight.data_ptr())
        return cls(addresses, biases, k, _ELEMENTS[weight.dtype], (weight,))

    @classmethod
    def concatenate(cls, parts: "Sequence[Columns]") -> "Columns":
        """One after the other. Raises ValueError when their lengths or elements differ."""
        first = parts[0]
        if any((part.k, part.element) != (first.k, first.element) for part in parts):
            raise ValueError("merged layers must read the same rows and be of one dtype")
        return cls(
            np.concatenate([part.addresses for part in parts]),
            np.concatenate([part.biases for part in parts]),
            first.k,
            first.element,
            tuple(tensor for part in parts for tensor in part.tensors),
        )

    def __len__(self) -> int:
        return len(self.addresses)

    def take(self, order: npt.NDArray[np.int64]) -> "Columns":
        """These of the columns, in this order."""
        return Columns(
            self.addresses[order], self.biases[order], self.k, self.element, self.tensors
        )

    def padded(self, multiple: int) -> "Columns":
        """Filled up with columns of zeros."""
        num_zeros = -len(self) % multiple
        return Columns(
            np.pad(self.addresses, (0, num_zeros)),
            np.pad(self.biases, (0, num_zeros)),
            self.k,
            self.element,
            self.tensors,
        )


def interleave(gate: Columns, up: Columns) -> Columns:
    """Panels of 16 columns of the gate and 16 of what it multiplies."""
    half = COLUMNS // 2
    joined = Columns.concatenate((gate.padded(half), up.padded(half)))
    order = np.arange(len(joined)).reshape(2, -1, half).transpose(1, 0, 2).ravel()
    return joined.take(order)


class Packer:
    """Packs into an arena, `num_threads` panels at a time."""

    def __init__(self, library: ctypes.CDLL, arena: Arena, num_threads: int) -> None:
        self._pack = library.tandem_dense_pack
        self._pack.argtypes = (
            *(ctypes.POINTER(MatrixStruct), ctypes.c_int64, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_int64),
        )
        self._pack.restype = None
        self._packed_bytes = library.tandem_dense_packed_bytes
        self._packed_bytes.argtypes = (ctypes.POINTER(MatrixStruct),)
        self._packed_bytes.restype = ctypes.c_int64
        self._arena = arena
        self._num_threads = num_threads

    def matrix(self, columns: Columns, format_name: str) -> MatrixStruct:
        """Pack `columns` as "f32", "bf16" or "int8". Raises MemoryError."""
        columns = columns.padded(COLUMNS)
        n, is_int8 = len(columns), format_name == "int8"
        matrix = MatrixStruct(
            scales=self._arena.take(4 * n) if is_int8 else None,
            sums=self._arena.take(4 * n) if is_int8 else None,
            bias=self._arena.put(columns.biases) if columns.biases.any() else None,
            n=n,
            k=columns.k,
            format=FORMATS[format_name],
        )
        matrix.packed = self._arena.take(self._packed_bytes(matrix))
        num_panels = n // COLUMNS
        bounds = [num_panels * i // self._num_threads for i in range(self._num_threads + 1)]
        addresses = columns.addresses.ctypes.data
        with ThreadPoolExecutor(self._num_threads) as pool:
            list(
                pool.map(
                    lambda first, end: self._pack(matrix, columns.element, addresses, first, end),
                    bounds[:-1],
                    bounds[1:],
                )
            )
        return matrix
