"""The pieces of a recipe in plain torch: norms, linear layers, rotations, MLPs, experts.

Each takes and gives [num_tokens, width] and computes in its input's dtype; weights that are stored
in another are converted where they are used, as few at a time as there can be.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.recipe.recipe import Linear, Mlp, Moe, Norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
CLAMPED = "clamped_swiglu"  # no product activation(gate) * up

_MAX_ROWS = 16384  # of a weight that is converted at once


def normalise(norm: Norm, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """The weight is as long as the numbers that are normalised together, or as the whole row."""
    groups = x.unflatten(-1, (-1, norm.width))
    if norm.kind == "layer":
        groups = groups - groups.mean(-1, keepdim=True)
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + norm.eps)
    if norm.weights:
        weight = _concatenated(norm.weights, weights, x.dtype).unflatten(-1, (-1, norm.width))
        groups = groups * (weight + 1 if norm.plus_one else weight)
    if norm.biases:
        groups = groups + _concatenated(norm.biases, weights, x.dtype).unflatten(
            -1, (-1, norm.width)
        )
    return groups.flatten(-2)


def _concatenated(
    names: tuple[str, ...], weights: Mapping[str, Tensor], dtype: torch.dtype
) -> Tensor:
    return torch.cat([weights[name].flatten().to(dtype) for name in names])


def multiply(linear: Linear, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """[num_tokens, linear.rows.count]"""
    weight = weights[linear.weight]
    weight = weight.T if linear.transposed else weight
    bias = None if linear.bias is None else weights[linear.bias].to(x.dtype)
    if linear.rows.count != weight.shape[0]:
        rows = linear.rows.indices()
        weight, bias = weight[rows], None if bias is None else bias[rows]
    product = torch.cat([F.linear(x, part.to(x.dtype)) for part in weight.split(_MAX_ROWS)], -1)
    return product if bias is None else product + bias


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """x [num_tokens, heads, dim], cos and sin [num_tokens, n / 2]; what lies beyond n stays."""
    turned, rest = x.split((2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), -1)
    cos, sin = cos.to(x.dtype).unsqueeze(-2), sin.to(x.dtype).unsqueeze(-2)
    if pairing == "half":
        first, second = turned.chunk(2, -1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    else:
        first, second = turned[..., ::2], turned[..., 1::2]
        pairs = (first * cos - second * sin, second * cos + first * sin)
        turned = torch.stack(pairs, -1).flatten(-2)
    return torch.cat((turned, rest), -1)


def activate(layout: str, activation: str, inner: Tensor) -> Tensor:
    """What an MLP's last layer reads; half as wide as `inner` unless the layout is plain."""
    if layout == "plain":
        return ACTIVATIONS[activation](inner)
    is_paired = layout == "gate_up_pairs"
    gate, up = (inner[..., ::2], inner[..., 1::2]) if is_paired else inner.chunk(2, -1)
    if activation == CLAMPED:
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return (up + 1) * (gate * torch.sigmoid(gate * 1.702))
    return ACTIVATIONS[activation](gate) * up


def feed_forward(mlp: Mlp | Moe, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    if isinstance(mlp, Moe):
        return _mixture(mlp, x, weights)
    inner = torch.cat([multiply(linear, x, weights) for linear in mlp.ins], -1)
    return multiply(mlp.out, activate(mlp.layout, mlp.activation, inner), weights)


def _mixture(moe: Moe, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    scores, experts = multiply(moe.router, x, weights).softmax(-1).topk(moe.top_k, -1)
    if moe.scoring == "softmax_normed":
        scores = scores / scores.sum(-1, keepdim=True)
    output = torch.zeros_like(x)
    for expert in experts.unique().tolist():
        rows, slots = torch.where(experts == expert)
        inner = _expert(moe.gate_up, moe.gate_up_bias, moe.transposed, expert, x[rows], weights)
        inner = activate(moe.layout, moe.activation, inner)
        inner = _expert(moe.down, moe.down_bias, moe.transposed, expert, inner, weights)
        output.index_add_(0, rows, inner * scores[rows, slots, None])
    if moe.shared is None:
        return output
    shared = feed_forward(moe.shared, x, weights)
    if moe.shared_gate is not None:
        shared = torch.sigmoid(multiply(moe.shared_gate, x, weights)) * shared
    return output + shared


def _expert(
    name: str,
    bias: str | None,
    transposed: bool,
    expert: int,
    x: Tensor,
    weights: Mapping[str, Tensor],
) -> Tensor:
    weight = weights[name][expert].to(x.dtype)
    x = x @ weight if transposed else F.linear(x, weight)
    return x if bias is None else x + weights[bias][expert].to(x.dtype)
