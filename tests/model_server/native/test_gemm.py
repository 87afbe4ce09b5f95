"""Products with packed matrices, for every instruction set that this CPU has."""

import ctypes
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model_server.executor.grouped import FACTOR_LEN, GroupedWeight, GroupValues
from model_server.executor.weights import (
    COLUMNS,
    FORMATS,
    GROUP_STORAGES,
    GroupSourcesStruct,
    MatrixStruct,
)
from native.compiler import Source
from native.instruction_sets import usable
from native.library import load_native
from tests.native.compiler import needs_compiler

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
        return _times(self._library, self._matrix, rows, interleaved=interleaved)


def _times(
    library: ctypes.CDLL, matrix: MatrixStruct, rows: Tensor, *, interleaved: bool
) -> Tensor:
    to = torch.empty(len(rows), -(-matrix.n // COLUMNS) * COLUMNS)
    getattr(library, f"multiply_{_suffix(rows)}")(
        ctypes.byref(matrix),
        ctypes.c_void_p(rows.data_ptr()),
        ctypes.c_int64(len(rows)),
        ctypes.c_int64(rows.stride(0)),
        int(interleaved),
        ctypes.c_void_p(to.data_ptr()),
    )
    return to[:, : matrix.n]


class GroupedMatrix:
    """A weight in groups, packed."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: GroupedWeight,
        bias: Tensor | None = None,
        *,
        format: str,
    ) -> None:
        n, k = weight.shape
        padded_n = -(-n // COLUMNS) * COLUMNS
        self._library = library
        self._matrix = MatrixStruct(n=n, k=k, group_len=weight.group_len, zero=weight.zero)
        self._matrix.format = FORMATS[format]
        self._matrix.storage = GROUP_STORAGES[weight.scales.values.dtype]
        num_bytes = library.packed_bytes(ctypes.byref(self._matrix))
        self._memory = torch.zeros(num_bytes + 64, dtype=torch.uint8)
        self._matrix.packed = (self._memory.data_ptr() + 63) // 64 * 64
        self._bias = torch.zeros(padded_n)
        if bias is not None:
            self._bias[:n] = bias
            self._matrix.bias = self._bias.data_ptr()
        numbers = _rows(weight.numbers)
        kept: list[Any] = [numbers]
        sources = GroupSourcesStruct(numbers=_address(numbers))
        self._values: list[Tensor] = []
        for values, to, source in (
            (weight.scales, self._matrix.group_scales, sources.scales),
            (weight.minimums, self._matrix.group_minimums, sources.minimums),
        ):
            for name in ("values", "factors"):
                tensor = None if values is None else getattr(values, name)
                if tensor is None:
                    continue
                self._values.append(tensor.new_zeros(padded_n, tensor.shape[1]))
                setattr(to, name, self._values[-1].data_ptr())
                kept.append(_rows(tensor))
                setattr(source, name, _address(kept[-1]))
        library.pack_in_groups(ctypes.byref(self._matrix), ctypes.byref(sources))

    def times(self, rows: Tensor, *, interleaved: bool) -> Tensor:
        return _times(self._library, self._matrix, rows, interleaved=interleaved)


def _rows(tensor: Tensor) -> Any:
    return (ctypes.c_void_p * len(tensor))(*(row.data_ptr() for row in tensor))


def _address(array: Any) -> int:
    return ctypes.addressof(array)


def _suffix(x: Tensor) -> str:
    return {torch.float32: "f32", torch.bfloat16: "bf16"}[x.dtype]


pytestmark = needs_compiler

PLAIN = ("f32", "bf16", "int8", "wide")
TYPES = {name: torch.float32 if name == "f32" else torch.bfloat16 for name in PLAIN}
ROW_TYPES = {**TYPES, "wide": torch.float32}
# Outputs and row lengths: whole panels and words, and such as fill neither.
SHAPES = [(64, 64), (37, 131), (96, 258), (33, 1)]
# Errors relative to the largest output: of sums in float32, and of 8 bits on both sides.
TOLERANCES = {"f32": 2e-6, "bf16": 2e-6, "int8": 2e-2, "wide": 2e-6}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    return load_libraries(tmp_path_factory.mktemp("gemm"))


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", PLAIN)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_float64(
    libraries: dict[str, ctypes.CDLL], name: str, format: str, shape: tuple[int, int]
) -> None:
    n, k = shape
    weights = normal(n, k, dtype=TYPES[format])
    rows = normal(40, k)
    bias = normal(n)
    rows = rows.to(ROW_TYPES[format])
    matrix = PackedMatrix(libraries[name], weights, format, bias=bias)
    expected = rows.double() @ weights.double().T + bias.double()
    error = (matrix.times(rows, interleaved=True) - expected).abs().max()
    assert error <= TOLERANCES[format] * expected.abs().max()


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", PLAIN)
def test_a_row_has_the_same_bits_whatever_rows_surround_it(
    libraries: dict[str, ctypes.CDLL], name: str, format: str
) -> None:
    rows = normal(40, 258, dtype=ROW_TYPES[format])
    matrix = PackedMatrix(libraries[name], normal(96, 258, dtype=TYPES[format]), format)
    alone = torch.cat([matrix.times(row[None], interleaved=False) for row in rows])
    for num_rows in range(1, len(rows) + 1):
        for first in {0, len(rows) - num_rows}:
            part = slice(first, first + num_rows)
            for interleaved in (False, True):
                found = matrix.times(rows[part], interleaved=interleaved)
                assert torch.equal(found, alone[part]), (num_rows, first, interleaved)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_bfloat16_weights_give_rows_of_floats_the_bits_that_their_float32_gives(
    libraries: dict[str, ctypes.CDLL], name: str, shape: tuple[int, int], interleaved: bool
) -> None:
    weights = normal(*shape, dtype=torch.bfloat16)
    rows = normal(40, shape[1])
    found, expected = (
        PackedMatrix(libraries[name], weights, format).times(rows, interleaved=interleaved)
        for format in ("wide", "f32")
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_add_up_without_an_error(
    libraries: dict[str, ctypes.CDLL], name: str, dtype: torch.dtype
) -> None:
    # With 127 for the largest the scales are 1, and the extremes would saturate 16 bits.
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-127, 128, (70, 515), generator=generator)
    rows = torch.randint(-127, 128, (13, 515), generator=generator)
    weights[:, 0] = 127
    rows[:, 0] = 127
    weights[5] = 127
    rows[2] = 127
    rows[3] = -127
    matrix = PackedMatrix(libraries[name], weights.to(dtype), "int8")
    assert torch.equal(matrix.sums[:70].long(), weights.sum(1))
    for interleaved in (False, True):
        found = matrix.times(rows.to(dtype), interleaved=interleaved)
        assert torch.equal(found.long(), rows @ weights.T)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_a_row_with_nan_is_nan_in_bytes_too_and_leaves_its_neighbours_alone(
    libraries: dict[str, ctypes.CDLL], name: str
) -> None:
    rows = normal(3, 64)
    rows[1, 7] = math.nan
    found = PackedMatrix(libraries[name], normal(32, 64), "int8").times(rows, interleaved=True)
    assert found.isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", PLAIN)
def test_outputs_come_in_the_order_asked_for_and_absent_ones_are_zero(
    libraries: dict[str, ctypes.CDLL], name: str, format: str
) -> None:
    weights = normal(40, 64, dtype=TYPES[format])
    rows = normal(2, 64, dtype=ROW_TYPES[format])
    in_order = PackedMatrix(libraries[name], weights, format).times(rows, interleaved=False)
    columns = [39, None, *range(0, 40, 2), None, *range(1, 39, 2)]
    found = PackedMatrix(libraries[name], weights, format, columns=columns)
    expected = torch.stack(
        [in_order[:, c] if c is not None else torch.zeros(2) for c in columns], dim=1
    )
    assert torch.equal(found.times(rows, interleaved=False), expected)


@pytest.mark.parametrize("format", PLAIN)
def test_instruction_sets_that_sum_alike_agree_to_the_bit(
    libraries: dict[str, ctypes.CDLL], format: str
) -> None:
    alike = [library for library in libraries.values() if format != "bf16" or library.widens_bf16()]
    weights = normal(64, 200, dtype=TYPES[format])
    rows = normal(7, 200, dtype=ROW_TYPES[format])
    found = [PackedMatrix(each, weights, format).times(rows, interleaved=True) for each in alike]
    assert all(torch.equal(found[0], each) for each in found[1:])


def in_groups(
    n: int, k: int, group_len: int, *, bits: int = 4, has_minimums: bool = True, zero: int = 8
) -> GroupedWeight:
    """Whole scales and minimums, so that sums are exact in float32."""
    generator = torch.Generator().manual_seed(n + k + group_len)
    shape = (n, k // group_len)
    scales = torch.randint(-3, 9, shape, generator=generator).float()
    minimums = torch.randint(-60, 20, shape, generator=generator).float()
    numbers = torch.randint(0, 1 << bits, (n, k), generator=generator, dtype=torch.uint8)
    least = GroupValues(minimums) if has_minimums else None
    return GroupedWeight(numbers, GroupValues(scales), least, zero, bits)


# The largest number of a row, by the format.
IN_8_BITS = {"int4": 4, "int5": 5, "int6": 6, "grouped_int8": 8}
BITS = {**IN_8_BITS, **{f"{name}_wide": bits for name, bits in IN_8_BITS.items()}}
MOST = {name: 127 if name in IN_8_BITS else 127 * 256 + 127 for name in BITS}
GROUPS = [(64, 128, 128), (37, 192, 64), (70, 96, 32), (32, 48, 16)]


def whole_rows(num_rows: int, k: int, most: int) -> Tensor:
    """Rows whose scales are one: the largest of each group is `most`."""
    generator = torch.Generator().manual_seed(num_rows + k)
    rows = torch.randint(-20, 21, (num_rows, k), generator=generator)
    rows[:, 5::16] = most
    return rows.float()


def assert_near(found: Tensor, expected: Tensor) -> None:
    """But for the last digit of float32."""
    assert float((found.double() - expected).abs().max()) <= 1e-6 * float(expected.abs().max())


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", MOST)
@pytest.mark.parametrize(("n", "k", "group_len"), GROUPS)
@pytest.mark.parametrize("has_minimums", [True, False])
def test_products_in_groups_are_those_of_their_values(
    libraries: dict[str, ctypes.CDLL],
    name: str,
    format: str,
    n: int,
    k: int,
    group_len: int,
    has_minimums: bool,
) -> None:
    if BITS[format] == 5 and group_len < 32:
        pytest.skip("such groups are packed in 6 bits")
    weight = in_groups(n, k, group_len, bits=BITS[format], has_minimums=has_minimums)
    rows = whole_rows(13, k, MOST[format])
    bias = normal(n).round()
    matrix = GroupedMatrix(libraries[name], weight, bias, format=format)
    for of_dtype in (rows, rows.bfloat16()):
        expected = of_dtype.double() @ weight.dense().double().T + bias.double()
        for interleaved in (False, True):
            assert_near(matrix.times(of_dtype, interleaved=interleaved), expected)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", MOST)
@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_scales_in_fewer_bits_give_the_bits_that_their_floats_give(
    libraries: dict[str, ctypes.CDLL], name: str, format: str, dtype: torch.dtype
) -> None:
    weight = in_groups(70, 512, 64, bits=BITS[format])
    if dtype == torch.float16:
        weight.scales.values[:, 0] = 2.0**-24  # the least, which has one digit
        narrow = weight.with_values_in(dtype)
    else:
        factors = normal(70, 512 // FACTOR_LEN).half()
        narrow = replace(
            weight,
            scales=GroupValues(weight.scales.values.to(dtype), factors),
            minimums=GroupValues(weight.scales.values.to(dtype), -2 * factors),
        )
    weight = narrow.with_values_in(torch.float32)
    rows = normal(5, 512)
    found, expected = (
        GroupedMatrix(libraries[name], each, format=format).times(rows, interleaved=False)
        for each in (narrow, weight)
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", MOST)
def test_the_extremes_of_a_group_fit_their_sums(
    libraries: dict[str, ctypes.CDLL], name: str, format: str
) -> None:
    numbers = torch.full((32, 256), (1 << BITS[format]) - 1, dtype=torch.uint8)
    weight = GroupedWeight(numbers, GroupValues(torch.ones(32, 2)), None, 0, BITS[format])
    rows = torch.full((2, 256), float(MOST[format]))
    rows[1] *= -1
    found = GroupedMatrix(libraries[name], weight, format=format).times(rows, interleaved=False)
    assert_near(found, rows.double() @ numbers.double().T)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize(("format", "most"), [("int4", 0.03), ("int4_wide", 1e-4)])
def test_a_number_far_larger_than_all_others_takes_digits_of_its_group_alone(
    libraries: dict[str, ctypes.CDLL], name: str, format: str, most: float
) -> None:
    weight = in_groups(32, 128, 32)
    rows = normal(5, 128)
    rows[:, 40] = 1e6
    weight.numbers[:, 32:64] = 0
    assert weight.minimums is not None
    weight.minimums.values[:, 1] = 0
    matrix = GroupedMatrix(libraries[name], weight, format=format)
    expected = rows.double() @ weight.dense().double().T
    error = (matrix.times(rows, interleaved=True) - expected).abs().max() / expected.std()
    assert float(error) < most


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", MOST)
def test_in_groups_a_row_has_the_same_bits_whatever_rows_surround_it(
    libraries: dict[str, ctypes.CDLL], name: str, format: str
) -> None:
    rows = normal(40, 192)
    weight = in_groups(96, 192, 64, bits=BITS[format])
    matrix = GroupedMatrix(libraries[name], weight, format=format)
    alone = torch.cat([matrix.times(row[None], interleaved=False) for row in rows])
    for num_rows in range(1, len(rows) + 1):
        for first in {0, len(rows) - num_rows}:
            part = slice(first, first + num_rows)
            for interleaved in (False, True):
                found = matrix.times(rows[part], interleaved=interleaved)
                assert torch.equal(found, alone[part]), (num_rows, first, interleaved)


@pytest.mark.parametrize("format", MOST)
def test_instruction_sets_agree_to_the_bit_in_groups(
    libraries: dict[str, ctypes.CDLL], format: str
) -> None:
    weight = in_groups(64, 192, 32, bits=BITS[format])
    rows = normal(7, 192)
    found = [
        GroupedMatrix(each, weight, format=format).times(rows, interleaved=True)
        for each in libraries.values()
    ]
    assert all(torch.equal(found[0], each) for each in found[1:])


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", MOST)
def test_a_row_with_nan_is_nan_in_groups_too_and_leaves_its_neighbours_alone(
    libraries: dict[str, ctypes.CDLL], name: str, format: str
) -> None:
    rows = normal(3, 64)
    rows[1, 7] = math.nan
    matrix = GroupedMatrix(libraries[name], in_groups(32, 64, 64), format=format)
    found = matrix.times(rows, interleaved=True)
    assert found.isnan().all(dim=1).tolist() == [False, True, False]
