"""Weights in 4 bits, symmetric: value[o, i] = (number[o, i] - 8) * scale[o, i // group_len].

round_to_nearest  each number by itself
gptq              one input after the other, the greatest first: what rounding it makes wrong is
                  taken out of the inputs that are still to be rounded, by what is known of inputs

Scales are rounded to float16, as they are stored, before numbers are rounded by them. All groups'
scales are chosen before any number, so inputs may be taken in any order and keep their places.

Sources: Frantar et al., "GPTQ", 2022; order and scales are options of its code,
https://github.com/IST-DASLab/gptq ("act-order", "static-groups").
"""

import torch
from torch import Tensor

from model_server.executor.int4 import Int4Weight, packed
from model_server.recipe.proof import one_thread

_ZERO = 8
_MOST = 7  # numbers are -8 to 7 times the scale
# Of the diagonal's mean, added to it: inputs may depend on each other.
_DAMPING = 0.01
_BLOCK_LEN = 64  # inputs after which the others learn of their errors
# Of the scale that clips nothing.
_SHARES = tuple(1 - step / 40 for step in range(16))


def round_to_nearest(weight: Tensor, group_len: int) -> Int4Weight:
    """weight: [num_outputs, num_inputs] float32"""
    groups = weight.unflatten(1, (-1, group_len))
    scales = _stored(groups.abs().amax(-1) / (_MOST + 0.5))
    numbers = _nearest(groups, scales.float().unsqueeze(-1))
    return _int4(numbers.flatten(1), scales)


def gptq(weight: Tensor, products: Tensor, group_len: int) -> Int4Weight:
    """weight: [num_outputs, num_inputs] float32

    products: of inputs with each other, summed over tokens, [num_inputs, num_inputs] float32
    """
    num_inputs = weight.shape[1]
    order = products.diagonal().argsort(descending=True, stable=True)
    scales = _best_scales(weight, products.diagonal(), group_len)
    # From here on a row is an input, so that it lies in one piece.
    rest = weight.T[order].contiguous()
    scales_of = scales.float().T[order // group_len].contiguous()
    root = _inverse_root(products[order][:, order])
    numbers = torch.empty_like(rest)
    for first in range(0, num_inputs, _BLOCK_LEN):
        end = min(first + _BLOCK_LEN, num_inputs)
        with one_thread():
            errors = _round_block(
                rest[first:end],
                scales_of[first:end],
                root[first:end, first:end],
                numbers[first:end],
            )
        rest[end:] -= root[first:end, end:].T @ errors
    in_place = torch.empty_like(numbers)
    in_place[order] = numbers
    return _int4(in_place.T, scales)


def _round_block(block: Tensor, scales: Tensor, root: Tensor, numbers: Tensor) -> Tensor:
    """Fill in `numbers`, and change `block`; what it makes wrong, each by its part of the root.

    block, scales, numbers: [n, num_outputs], a row for each input; root: [n, n]
    """
    errors = torch.empty_like(block)
    for index in range(len(block)):
        numbers[index] = _nearest(block[index], scales[index])
        errors[index] = (block[index] - numbers[index] * scales[index]) / root[index, index]
        block[index + 1 :].addr_(root[index, index + 1 :], errors[index], alpha=-1)
    return errors


def _inverse_root(products: Tensor) -> Tensor:
    """The upper root of the inverse of what inputs have in common."""
    wide = products.double()
    diagonal = wide.diagonal()
    # An input that was always zero has nothing in common with others, and is rounded all the same.
    diagonal[diagonal == 0] = 1
    diagonal += _DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(wide))
    return torch.linalg.cholesky(inverse, upper=True).float()


def _best_scales(weight: Tensor, weights_of_inputs: Tensor, group_len: int) -> Tensor:
    """[num_outputs, num_groups] float16: those that round best, an input counting by its size."""
    groups = weight.unflatten(1, (-1, group_len))
    counts = weights_of_inputs.unflatten(0, (-1, group_len))
    widest = groups.abs().amax(-1) / (_MOST + 0.5)
    best = _stored(widest)
    least = torch.full_like(widest, torch.inf)
    for share in _SHARES:
        scales = _stored(widest * share)
        wide = scales.float().unsqueeze(-1)
        errors = ((_nearest(groups, wide) * wide - groups).square() * counts).sum(-1)
        best = torch.where(errors < least, scales, best)
        least = torch.minimum(errors, least)
    return best


def _stored(scales: Tensor) -> Tensor:
    """As the file has them; none is zero, by which nothing could be divided."""
    return scales.half().clamp_min(torch.finfo(torch.float16).smallest_normal)


def _nearest(values: Tensor, scales: Tensor) -> Tensor:
    return torch.round(values / scales).clamp_(-_ZERO, _MOST)


def _int4(numbers: Tensor, scales: Tensor) -> Int4Weight:
    zeros = torch.full_like(scales, _ZERO, dtype=torch.uint8)
    return Int4Weight(packed(numbers + _ZERO), scales, zeros)
