"""Weights in groups have the values that they say."""

import pytest
import torch
from torch import Tensor

from model_server.executor.grouped import (
    GroupedWeight,
    GroupValues,
    RoundedParameters,
    alike,
    group_len_of,
)
from model_server.executor.int4 import Int4Weight, packed


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("bits", "most"), [(4, 15), (8, 255)])
def test_rounding_gives_the_nearest_numbers_between_a_groups_ends(bits: int, most: int) -> None:
    weight = normal(5, 256)
    rounded = GroupedWeight.rounded(weight, bits)
    assert rounded is not None
    assert (rounded.group_len, rounded.bits) == (128, bits)
    groups = weight.unflatten(1, (2, 128))
    steps = (groups.amax(2) - groups.amin(2)) / most
    error = (rounded.dense() - weight).abs().unflatten(1, (2, 128)).amax(2)
    assert bool((error <= steps * 0.501).all())
    # Both ends are among the numbers.
    assert torch.equal(rounded.numbers.unflatten(1, (2, 128)).amax(2), torch.full((5, 2), most))
    assert torch.equal(rounded.dense().unflatten(1, (2, 128)).amin(2), groups.amin(2))


def test_a_group_of_equal_values_stays_as_it_is() -> None:
    weight = torch.full((2, 32), -0.37)
    rounded = GroupedWeight.rounded(weight)
    assert rounded is not None
    assert torch.equal(rounded.dense(), weight)


@pytest.mark.parametrize(
    ("length", "group_len"), [(2048, 128), (192, 64), (96, 32), (80, 16), (77, None), (40, None)]
)
def test_the_longest_group_that_divides(length: int, group_len: int | None) -> None:
    assert group_len_of(length) == group_len
    assert (GroupedWeight.rounded(normal(2, length)) is None) == (group_len is None)


def test_weights_become_alike_without_another_value() -> None:
    numbers = torch.arange(128, dtype=torch.uint8).repeat(2, 1) % 16
    first = GroupedWeight(numbers, GroupValues(normal(2, 1)), None, 8, 4)
    scales, minimums = GroupValues(normal(2, 4)), GroupValues(normal(2, 4))
    second = GroupedWeight(numbers, scales, minimums, 0, 4)
    found = alike([first, second])
    assert {each.group_len for each in found} == {32}
    assert all(each.minimums is not None for each in found)
    for before, after in zip((first, second), found, strict=True):
        assert torch.equal(after.dense(), before.dense())


def test_scales_are_stored_in_as_few_bits_as_keep_them() -> None:
    numbers = torch.zeros(2, 512, dtype=torch.uint8)
    floats = GroupedWeight(numbers, GroupValues(normal(2, 16)), None, 8, 4)
    halves = GroupedWeight(numbers, GroupValues(normal(2, 16).half().float()), None, 8, 4)
    of_bytes = GroupValues(torch.full((2, 16), -3, dtype=torch.int8), normal(2, 2).half())
    with_factors = GroupedWeight(numbers, of_bytes, None, 8, 4)
    for weights, dtype in (
        ([floats], torch.float32),
        ([halves], torch.float16),
        ([with_factors], torch.int8),
        ([halves, with_factors], torch.float32),
    ):
        found = alike(weights)
        assert {each.scales.values.dtype for each in found} == {dtype}
        for before, after in zip(weights, found, strict=True):
            assert torch.equal(after.scales.floats(), before.scales.floats())


@pytest.mark.parametrize(
    ("num_inputs", "num_groups", "group_len"), [(256, 1, 128), (96, 3, 32), (80, 2, None)]
)
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_a_checkpoints_4_bits_keep_their_values(
    num_inputs: int, num_groups: int, group_len: int | None, is_symmetric: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    zeros = torch.randint(0, 17, (3, num_groups), generator=generator, dtype=torch.uint8)
    weight = Int4Weight(
        packed(torch.randint(0, 16, (3, num_inputs), generator=generator, dtype=torch.uint8)),
        normal(3, num_groups).half(),
        torch.full_like(zeros, 8) if is_symmetric else zeros,
    )
    grouped = weight.grouped()
    if group_len is None:
        assert grouped is None
        return
    assert grouped is not None
    assert grouped.group_len == group_len
    assert (grouped.minimums is None) == is_symmetric
    assert torch.equal(grouped.dense(), weight.dense(torch.float32))


def test_rounded_parameters_are_rounded_along_their_inputs() -> None:
    weight = normal(48, 64)
    experts = normal(2, 64, 48)
    norm = normal(64)
    given = {"rows": weight, "turned": weight.T, "experts": experts, "norm": norm}
    rounded = RoundedParameters(given, {"rows": False, "turned": True, "experts": True})
    expected = GroupedWeight.rounded(weight)
    assert expected is not None
    assert torch.equal(rounded["rows"], expected.dense())
    assert torch.equal(rounded["turned"], expected.dense().T)
    one = GroupedWeight.rounded(experts[1].T)
    assert one is not None
    assert torch.equal(rounded["experts"][1], one.dense().T)
    assert rounded["norm"] is norm
    assert sorted(rounded) == sorted(given)
