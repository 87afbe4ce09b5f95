"""Rounding to 4 bits: each number by itself, and with what is known of inputs."""

import pytest
import torch
from torch import Tensor

from model_server.executor.int4 import Int4Weight, unpacked
from model_server.quantizing.gptq import gptq, round_to_nearest

GROUP_LEN = 16


def weight_of(num_outputs: int, num_inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(seed))


def inputs_of(num_tokens: int, num_inputs: int) -> Tensor:
    """That depend on each other, and are of unlike sizes."""
    few = weight_of(num_tokens, num_inputs // 3, seed=1)
    mixed = few @ weight_of(num_inputs // 3, num_inputs, seed=2)
    sizes = torch.linspace(0.1, 3, num_inputs)[torch.randperm(num_inputs)]
    return (mixed + 0.3 * weight_of(num_tokens, num_inputs, seed=3)) * sizes


def wide_scales(weight: Int4Weight) -> Tensor:
    """[num_outputs, num_inputs]"""
    return weight.scales.float().repeat_interleave(weight.group_len, 1)


def numbers(weight: Int4Weight) -> Tensor:
    return unpacked(weight.packed).float() - 8


def test_every_number_is_the_nearest_by_a_scale_of_16_bits_that_clips_half_a_step() -> None:
    weight = weight_of(8, 64)
    rounded = round_to_nearest(weight, GROUP_LEN)
    assert rounded.scales.dtype == torch.float16
    assert rounded.group_len == GROUP_LEN
    assert bool((rounded.zeros == 8).all())
    scales = wide_scales(rounded)
    torch.testing.assert_close(
        rounded.scales.float(), weight.unflatten(1, (-1, GROUP_LEN)).abs().amax(-1) / 7.5,
        rtol=1e-3, atol=0,
    )  # fmt: skip
    assert torch.equal(numbers(rounded), (weight / scales).round().clamp(-8, 7))
    assert float(((rounded.dense(torch.float32) - weight) / scales).abs().max()) <= 0.51


def one_after_the_other(weight: Tensor, products: Tensor, scales: Tensor) -> Tensor:
    """The numbers by the method's definition: an input is rounded, and those that are not yet make
    the whole error as small as they can, by least squares in float64."""
    weight = weight.double().clone()
    products = products.double() + 0.01 * products.diagonal().mean().double() * torch.eye(
        len(products), dtype=torch.float64
    )
    found = torch.empty_like(weight)
    left = products.diagonal().argsort(descending=True).tolist()
    while left:
        first, *left = left
        scale = scales[:, first].double()
        found[:, first] = (weight[:, first] / scale).round().clamp(-8, 7)
        change = found[:, first] * scale - weight[:, first]
        if left:
            answer = torch.linalg.solve(products[left][:, left], products[left][:, first])
            weight[:, left] -= change[:, None] * answer
    return found


@pytest.mark.parametrize("num_inputs", [48, 160])
def test_those_left_make_up_for_each_error_by_least_squares(num_inputs: int) -> None:
    weight = weight_of(8, num_inputs)
    inputs = inputs_of(400, num_inputs)
    products = inputs.T @ inputs
    quantized = gptq(weight, products, GROUP_LEN)
    expected = one_after_the_other(weight, products, wide_scales(quantized))
    # Rounding in float32 may turn a number that lies half way.
    assert float((numbers(quantized) == expected).float().mean()) > 0.995


def test_what_a_layer_gives_is_nearer_than_by_rounding_alone() -> None:
    weight = weight_of(32, 96)
    inputs = inputs_of(500, 96)

    def error(quantized: Int4Weight) -> float:
        return float((inputs @ (quantized.dense(torch.float32) - weight).T).square().mean())

    assert error(gptq(weight, inputs.T @ inputs, GROUP_LEN)) < 0.25 * error(
        round_to_nearest(weight, GROUP_LEN)
    )


def test_inputs_that_have_nothing_in_common_are_rounded_each_by_itself() -> None:
    weight = weight_of(8, 64)
    quantized = gptq(weight, torch.eye(64), GROUP_LEN)
    assert torch.equal(numbers(quantized), (weight / wide_scales(quantized)).round().clamp(-8, 7))


def test_an_input_that_was_never_seen_keeps_its_weights() -> None:
    weight = weight_of(8, 64)
    inputs = inputs_of(100, 64)
    inputs[:, 5] = 0
    quantized = gptq(weight, inputs.T @ inputs, GROUP_LEN)
    expected = (weight / wide_scales(quantized)).round().clamp(-8, 7)
    assert torch.equal(numbers(quantized)[:, 5], expected[:, 5])


def test_weights_of_zero_stay_zero() -> None:
    weight = torch.zeros(8, 32)
    inputs = inputs_of(50, 32)
    for quantized in (
        round_to_nearest(weight, GROUP_LEN),
        gptq(weight, inputs.T @ inputs, GROUP_LEN),
    ):
        assert torch.equal(quantized.dense(torch.float32), weight)


def test_the_threads_of_torch_are_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        gptq(weight_of(8, 32), torch.eye(32), GROUP_LEN)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
