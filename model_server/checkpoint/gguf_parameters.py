"""A GGUF file's parameters: those of its quantized kinds in groups, with no number changed.

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

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import IQ4_NL, MXFP4, Q4_K
from torch import Tensor

from model_server.checkpoint.gguf_file import GGUF_INDEX_NAME, GgufFile, StoredRows
from model_server.errors import CheckpointBroken
from model_server.executor.grouped import (
    FACTOR_LEN,
    GroupedParameters,
    GroupedWeight,
    GroupValues,
)

_log = logging.getLogger(__name__)

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
    return (np.array(table) + zero).astype(np.uint8)[_numbers(packed, 16, 4)]


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


def packed_bytes(file: GgufFile, dtype: torch.dtype, embedding: str | None) -> int:
    """Of all tensors, packed for a CPU; `embedding`: what is looked up in `dtype`, not packed."""
    num_bits = 0.0
    for name, tensor in file.tensors.items():
        for part in tensor.parts:
            kind = _KINDS.get(part.kind) if name != embedding else None
            bits = 8 * dtype.itemsize if kind is None else kind.packed_bits
            num_bits += part.num_numbers * bits
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
        if others := sorted(kinds - {*_KINDS, *PLAIN_KINDS}):
            _log.info(
                "%s: what it has in %s is dequantized to bfloat16", file.path, ", ".join(others)
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
        return any(not kinds.isdisjoint(_KINDS) for kinds in self._kinds.values())

    def grouped(self, name: str) -> GroupedWeight | None:
        """See GroupedParameters."""
        tensor = self._file.tensors[self._names[name]]
        if len(tensor.shape) > 2 or len(tensor.parts) > 1:
            return None
        return grouped_weight(self._file.stored(tensor.parts[0]))

    def grouped_expert(self, name: str, index: int) -> tuple[GroupedWeight, ...]:
        """See GroupedParameters."""
        parts = self._file.tensors[self._names[name]].parts
        weights = [grouped_weight(self._file.stored(part, index)) for part in parts]
        grouped = tuple(weight for weight in weights if weight is not None)
        return grouped if len(grouped) == len(parts) else ()

    def __getitem__(self, name: str) -> Tensor:
        stored_name = self._names[name]
        tensor = self._file.get_tensor(stored_name)
        is_exact = self._kinds[stored_name] <= {*_KINDS, "F32", "F16"}
        return tensor if is_exact else tensor.bfloat16()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def release(self, name: str) -> None:
        """See GroupedParameters: the file is mapped, and takes no memory."""
