"""The kinds of tensors in GGUF files: quantized ones as groups, with no number changed.

A block of the file is one group or several, of 16 or 32 numbers with a scale and maybe a minimum:

    Q4_0 Q5_0 Q8_0   (number - 8, 16, 128) * scale       32 numbers a block; Q8_0's are signed
    Q4_1 Q5_1        number * scale + minimum            the same
    IQ4_NL           (number - 128) * scale              the same; of 16 numbers that are in no line
    Q2_K             number * scale - minimum            16 groups of 16, by 4 bits of two scales
    Q4_K Q5_K        number * scale - minimum            8 groups of 32, by 6 bits of two scales
    Q3_K             (number - 4) * scale                16 groups of 16, by 6 bits of a scale
    Q6_K             (number - 32) * scale               the same, by 8 bits of a scale
    IQ4_XS           (number - 128) * scale              8 groups of 32 of IQ4_NL's, by 6 bits
    MXFP4            (number - 12) * scale / 2           32 of 15 numbers a block; scales are 2^n

Numbers of 2 and 3 bits are packed in 4, those of IQ4 in 8, and twice those of MXFP4 in 5.

Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import IQ4_NL, MXFP4, Q4_K, dequantize
from torch import Tensor

from model_server.executor.grouped import FACTOR_LEN, GroupedWeight, GroupValues

Bytes: TypeAlias = npt.NDArray[np.uint8]
SignedBytes: TypeAlias = npt.NDArray[np.int8]
Floats: TypeAlias = npt.NDArray[np.float32]
Halves: TypeAlias = npt.NDArray[np.float16]
PLAIN_KINDS = frozenset(("F32", "F16", "BF16"))


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """[num_blocks, ...]: see GroupValues."""

    values: Floats | SignedBytes
    factors: Halves | None = None

    def of_rows(self, num_rows: int) -> GroupValues:
        values = torch.from_numpy(self.values.reshape(num_rows, -1))
        factors = self.factors
        if factors is None:
            return GroupValues(values)
        return GroupValues(values, torch.from_numpy(factors.reshape(num_rows, -1)))


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """[num_blocks, ...]: see GroupedWeight."""

    numbers: Bytes
    scales: _Values
    minimums: _Values | None = None
    zero: int = 0


_CHUNK_LEN = 1 << 21  # numbers that are widened at a time, to stay in caches


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A tensor's rows [num_rows, row_bytes] in blocks of the file's own `kind`."""

    kind: str
    rows: npt.NDArray[np.uint8]

    def numbers(self) -> Tensor:
        """[num_rows, row_len] float32 of its own memory, exactly those of the package `gguf`.

        Raises NotImplementedError where that package knows the kind by name alone.
        """
        if self.kind in ("F32", "F16"):
            dtype = np.float32 if self.kind == "F32" else np.float16
            return torch.from_numpy(self.rows.view(dtype).astype(np.float32))
        kind = GGMLQuantizationType[self.kind]
        if self.kind not in PACKED_KINDS:
            return torch.from_numpy(dequantize(self.rows, kind))
        block_len, block_bytes = GGML_QUANT_SIZES[kind]
        num_rows, row_bytes = self.rows.shape
        row_len = row_bytes // block_bytes * block_len
        numbers = torch.empty(num_rows, row_len)
        step = max(1, _CHUNK_LEN // row_len)
        for first in range(0, num_rows, step):
            rows = slice(first, first + step)
            weight = grouped_weight(StoredRows(self.kind, self.rows[rows]))
            assert weight is not None
            numbers[rows] = weight.dense()
        return numbers


def grouped_weight(stored: StoredRows) -> GroupedWeight | None:
    """The same numbers; None: of a kind that is not multiplied in groups."""
    kind = _KINDS.get(stored.kind)
    if kind is None:
        return None
    num_rows = len(stored.rows)
    _, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[stored.kind]]
    blocks = kind.read(stored.rows.reshape(-1, block_bytes))
    minimums = blocks.minimums
    return GroupedWeight(
        numbers=torch.from_numpy(blocks.numbers.reshape(num_rows, -1)),
        scales=blocks.scales.of_rows(num_rows),
        minimums=None if minimums is None else minimums.of_rows(num_rows),
        zero=blocks.zero,
        bits=kind.bits,
        kind=stored.kind,
    )


def _q4_0(blocks: Bytes) -> _Blocks:
    return _Blocks(_numbers(blocks[:, 2:], 16, 4), _Values(_floats(blocks[:, :2])), zero=8)


def _q4_1(blocks: Bytes) -> _Blocks:
    numbers = _numbers(blocks[:, 4:], 16, 4)
    return _Blocks(numbers, _Values(_floats(blocks[:, :2])), _Values(_floats(blocks[:, 2:4])))


def _q5_0(blocks: Bytes) -> _Blocks:
    numbers = _numbers(blocks[:, 6:], 16, 4) | _fifth_bits(blocks[:, 2:6])
    return _Blocks(numbers, _Values(_floats(blocks[:, :2])), zero=16)


def _q5_1(blocks: Bytes) -> _Blocks:
    numbers = _numbers(blocks[:, 8:], 16, 4) | _fifth_bits(blocks[:, 4:8])
    return _Blocks(numbers, _Values(_floats(blocks[:, :2])), _Values(_floats(blocks[:, 2:4])))


def _q8_0(blocks: Bytes) -> _Blocks:
    # A signed byte and 128 is the same byte with its highest bit changed.
    return _Blocks(blocks[:, 2:] ^ np.uint8(128), _Values(_floats(blocks[:, :2])), zero=128)


def _iq4_nl(blocks: Bytes) -> _Blocks:
    return _Blocks(
        _in_table(blocks[:, 2:], IQ4_NL.kvalues, 128), _Values(_floats(blocks[:, :2])), zero=128
    )


def _q2_k(blocks: Bytes) -> _Blocks:
    scales, minimums = blocks[:, :16] & np.uint8(15), blocks[:, :16] >> np.uint8(4)
    return _Blocks(
        _numbers(blocks[:, 16:80], 32, 2),
        _Values(scales.astype(np.int8), _halves(blocks[:, 80:82])),
        _Values(minimums.astype(np.int8), -_halves(blocks[:, 82:])),
    )


def _q3_k(blocks: Bytes) -> _Blocks:
    high = _numbers(blocks[:, :32], 32, 1) << np.uint8(2)
    scales = _numbers(blocks[:, 96:104], 8, 4) | _numbers(blocks[:, 104:108], 4, 2) << np.uint8(4)
    return _Blocks(
        _numbers(blocks[:, 32:96], 32, 2) | high,
        _Values(scales.astype(np.int8) - np.int8(32), _halves(blocks[:, 108:])),
        zero=4,
    )


def _q4_k(blocks: Bytes) -> _Blocks:
    return _of_two_scales(_numbers(blocks[:, 16:], 32, 4), blocks)


def _q5_k(blocks: Bytes) -> _Blocks:
    numbers = _numbers(blocks[:, 48:], 32, 4) | _numbers(blocks[:, 16:48], 32, 1) << np.uint8(4)
    return _of_two_scales(numbers, blocks)


def _q6_k(blocks: Bytes) -> _Blocks:
    low = _numbers(blocks[:, :128], 64, 4)
    numbers = low | _numbers(blocks[:, 128:192], 32, 2) << np.uint8(4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _Blocks(numbers, _Values(scales, _halves(blocks[:, 208:])), zero=32)


def _iq4_xs(blocks: Bytes) -> _Blocks:
    scales = _numbers(blocks[:, 4:8], 1, 4) | _numbers(blocks[:, 2:4], 1, 2) << np.uint8(4)
    return _Blocks(
        _in_table(blocks[:, 8:], IQ4_NL.kvalues, 128),
        _Values(scales.astype(np.int8) - np.int8(32), _halves(blocks[:, :2])),
        zero=128,
    )


def _mxfp4(blocks: Bytes) -> _Blocks:
    scales = MXFP4.e8m0_to_fp32_half(blocks[:, :1])
    return _Blocks(_in_table(blocks[:, 1:], MXFP4.kvalues, 12), _Values(scales), zero=12)


def _of_two_scales(numbers: Bytes, blocks: Bytes) -> _Blocks:
    scales, minimums = Q4_K.get_scale_min(blocks[:, 4:16])
    return _Blocks(
        numbers,
        _Values(scales.astype(np.int8), _halves(blocks[:, :2])),
        _Values(minimums.astype(np.int8), -_halves(blocks[:, 2:4])),
    )


def _numbers(packed: Bytes, run_len: int, width: int) -> Bytes:
    """Numbers of `width` bits: of each run of bytes first all lowest ones, then the next."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    runs = packed.reshape(len(packed), -1, 1, run_len)
    return ((runs >> shifts) & np.uint8((1 << width) - 1)).reshape(len(packed), -1)


def _in_table(packed: Bytes, table: Sequence[int], zero: int) -> Bytes:
    """Of numbers of 4 bits, what a table has for them, and the zero."""
    values = (np.array(table) + zero).astype(np.uint8)
    codes = np.arange(256)
    # By the byte, of which each holds two: less than half the time.
    pairs = np.stack([values[codes & 15], values[codes >> 4]], 1).view(np.uint16).ravel()
    runs = pairs[packed].view(np.uint8).reshape(len(packed), -1, 16, 2)
    return runs.swapaxes(2, 3).reshape(len(packed), -1)


def _fifth_bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _halves(packed: Bytes) -> Halves:
    """[num_blocks, 1]."""
    return np.ascontiguousarray(packed).view(np.float16)


def _floats(packed: Bytes) -> Floats:
    """[num_blocks, 1], of float16."""
    return _halves(packed).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a kind is packed.

    bits:       that a number is packed in
    num_values: scales and minimums of a group
    """

    read: Callable[[Bytes], _Blocks]
    bits: int
    group_len: int
    num_values: int
    has_factors: bool = False

    @property
    def packed_bits(self) -> float:
        if not self.has_factors:
            return self.bits + self.num_values * 16 / self.group_len
        return self.bits + self.num_values * (8 / self.group_len + 16 / FACTOR_LEN)


_KINDS = {
    "Q4_0": _Kind(_q4_0, 4, 32, 1),
    "Q4_1": _Kind(_q4_1, 4, 32, 2),
    "Q5_0": _Kind(_q5_0, 5, 32, 1),
    "Q5_1": _Kind(_q5_1, 5, 32, 2),
    "Q8_0": _Kind(_q8_0, 8, 32, 1),
    "IQ4_NL": _Kind(_iq4_nl, 8, 32, 1),
    "Q2_K": _Kind(_q2_k, 4, 16, 2, has_factors=True),
    "Q3_K": _Kind(_q3_k, 4, 16, 1, has_factors=True),
    "Q4_K": _Kind(_q4_k, 4, 32, 2, has_factors=True),
    "Q5_K": _Kind(_q5_k, 5, 32, 2, has_factors=True),
    "Q6_K": _Kind(_q6_k, 6, 16, 1, has_factors=True),
    "IQ4_XS": _Kind(_iq4_xs, 8, 32, 1, has_factors=True),
    "MXFP4": _Kind(_mxfp4, 5, 32, 1),
}
PACKED_KINDS = frozenset(_KINDS)


def packed_bits(kind: str) -> float | None:
    """Of a number, with its share of what its group has; None: the kind is not packed in groups."""
    packed = _KINDS.get(kind)
    return None if packed is None else packed.packed_bits
