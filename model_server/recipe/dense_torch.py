"""The oracle: a recipe in plain torch, on whole sequences. Short rather than fast.

It runs small models of the reader's and real checkpoints alike: weights may be stored in bfloat16
while it computes in float32, and no more than a piece of one is converted at a time.

Its pieces (norms, linear layers, rotations, MLPs, experts) take and give [num_tokens, width] and
compute in their input's dtype. Cosines and sines come from the rotary modules of the transformers
model: frequencies come in a dozen kinds (linear, yarn, longrope, ...), and the modules that make
them are part of the model anyway. An executor asks them once, for a table of all positions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.recipe.recipe import (
    Attention,
    Groups,
    Head,
    Layer,
    Linear,
    Mlp,
    Moe,
    Norm,
    Recipe,
    Rotary,
)

# positions [num_tokens] int64 -> cos and sin [num_tokens, n / 2] float32, each angle once
Angles: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]


def angles_of(recipe: Recipe, model: Any) -> tuple[Angles, ...]:
    """One per entry of `recipe.rotary`; `model` is the recipe's, with weights."""
    return tuple(_angles(rotary, model) for rotary in recipe.rotary)


def _angles(rotary: Rotary, model: Any) -> Angles:
    module = model.get_submodule(rotary.module)

    def angles(positions: Tensor) -> tuple[Tensor, Tensor]:
        like = torch.empty(1, dtype=torch.float32, device=positions.device)
        cos, sin = module(like, positions[None], *rotary.arguments)
        return each_once(cos[0], rotary.layout), each_once(sin[0], rotary.layout)

    return angles


def each_once(table: Tensor, layout: str) -> Tensor:
    """[..., n / 2] of a module's table [..., n], or of one that has each angle once already."""
    if layout == "cat":
        return table[..., : table.shape[-1] // 2]
    return table[..., ::2] if layout == "repeat" else table


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
        weight = weight[rows]
        bias = None if bias is None else bias[rows]
    product = torch.cat([F.linear(x, part.to(x.dtype)) for part in weight.split(_MAX_ROWS)], -1)
    return product if bias is None else product + bias


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """x [num_tokens, heads, dim], cos and sin [num_tokens, n / 2]; what lies beyond n stays."""
    turned, rest = x.split((2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), -1)
    cos = cos.to(x.dtype).unsqueeze(-2)
    sin = sin.to(x.dtype).unsqueeze(-2)
    if pairing == "half":
        first, second = turned.chunk(2, -1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    else:
        first = turned[..., ::2]
        second = turned[..., 1::2]
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
        gate = gate.clamp(max=7.0)
        up = up.clamp(-7.0, 7.0)
        return (up + 1) * (gate * torch.sigmoid(gate * 1.702))
    return ACTIVATIONS[activation](gate) * up


def feed_forward(mlp: Mlp | Moe, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    if isinstance(mlp, Moe):
        return _mixture(mlp, x, weights)
    inner = torch.cat([multiply(linear, x, weights) for linear in mlp.ins], -1)
    return multiply(mlp.out, activate(mlp.layout, mlp.activation, inner), weights)


def route(moe: Moe, x: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Each token's experts and their weights, [num_tokens, top_k] both."""
    logits = multiply(moe.router, x, weights)
    scores = logits.sigmoid() if moe.scoring.startswith("sigmoid") else logits.softmax(-1)
    rank = scores
    if moe.correction is not None:
        rank = scores + weights[moe.correction].to(scores).flatten()
    if moe.groups is not None:
        rank = _in_best_groups(moe.groups, rank)
    experts = rank.topk(moe.top_k, -1).indices
    chosen = scores.gather(-1, experts)
    if moe.scoring.endswith("normed"):
        chosen = chosen / chosen.sum(-1, keepdim=True)
    return experts, chosen * moe.scale


def _in_best_groups(groups: Groups, rank: Tensor) -> Tensor:
    """`rank` [num_tokens, num_experts], minus infinity where a group is not chosen."""
    grouped = rank.unflatten(-1, (groups.num_groups, -1))
    best = grouped.topk(groups.num_best, -1).values.sum(-1).topk(groups.top_k, -1).indices
    is_best = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=rank.device)
    is_best = is_best.scatter(-1, best, True)
    return grouped.masked_fill(~is_best[..., None], -torch.inf).flatten(-2)


def _mixture(moe: Moe, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    experts, scores = route(moe, x, weights)
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


class DenseTorch:
    """Computes logits in `dtype`. `weights` are the parameters that the recipe names."""

    def __init__(
        self,
        recipe: Recipe,
        weights: Mapping[str, Tensor],
        rotary: Sequence[Angles],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._recipe = recipe
        self._weights = weights
        self._rotary = rotary
        self._dtype = dtype

    @torch.inference_mode()
    def logits(
        self, token_ids: Tensor, lens: Sequence[int], starts: Sequence[int] | None = None
    ) -> Tensor:
        """[num_tokens, vocab_size] of ragged sequences.

        token_ids: [num_tokens] int64, one sequence after the other
        lens:      tokens of each; their sum is num_tokens
        starts:    position of the first token of each; None: 0
        """
        recipe = self._recipe
        positions = torch.cat(
            [
                torch.arange(start, start + each, device=token_ids.device)
                for each, start in zip(lens, starts or [0] * len(lens), strict=True)
            ]
        )
        x = F.embedding(token_ids, self._weights[recipe.embedding]).to(self._dtype)
        x = x * recipe.embed_scale
        angles = [each(positions) for each in self._rotary]
        for layer in recipe.layers:
            x = self._layer(layer, x, angles, lens)
        x = self._norm(recipe.final_norm, x)
        logits = multiply(recipe.head, x, self._weights) * recipe.logit_scale
        if recipe.softcap is not None:
            logits = torch.tanh(logits / recipe.softcap) * recipe.softcap
        return logits

    def _layer(
        self,
        layer: Layer,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        lens: Sequence[int],
    ) -> Tensor:
        a = self._attention(layer.attention, self._norm(layer.attention_norm, x), angles, lens)
        y = x + self._norm(layer.attention_post_norm, a) * layer.residual_scale
        read = self._norm(layer.mlp_norm, x if layer.parallel else y)
        m = feed_forward(layer.mlp, read, self._weights)
        return y + self._norm(layer.mlp_post_norm, m) * layer.residual_scale

    def _attention(
        self,
        attention: Attention,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        lens: Sequence[int],
    ) -> Tensor:
        q = self._head(attention.query, attention.head_dim, x, angles)
        k = self._head(attention.key, attention.head_dim, x, angles)
        v = multiply(attention.value, x, self._weights).unflatten(-1, (attention.num_kv_heads, -1))
        num_shared = attention.num_heads // attention.num_kv_heads
        k = k.repeat_interleave(num_shared, 1)
        v = v.repeat_interleave(num_shared, 1)
        answers = [
            self._attend(attention, *(part.transpose(0, 1) for part in sequence))
            for sequence in zip(*(part.split(list(lens)) for part in (q, k, v)), strict=True)
        ]
        return multiply(attention.output, torch.cat(answers), self._weights)

    def _attend(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One sequence: q, k, v [num_heads, num_tokens, dim] -> [num_tokens, num_heads * dim]."""
        scores = q @ k.transpose(1, 2) * attention.scale
        if attention.softcap is not None:
            scores = torch.tanh(scores / attention.softcap) * attention.softcap
        scores = scores.masked_fill(_hidden(attention, q.shape[1], q.device), -torch.inf)
        if attention.sinks is not None:
            sinks = self._weights[attention.sinks].to(scores)[:, None, None]
            scores = torch.cat((scores, sinks.expand(-1, q.shape[1], 1)), -1)
        shares = scores.softmax(-1)[..., : q.shape[1]]
        return (shares @ v).transpose(0, 1).flatten(1)

    def _head(
        self, head: Head, head_dim: int, x: Tensor, angles: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """[num_tokens, heads, head_dim]"""
        x = multiply(head.linear, x, self._weights)
        if not head.norm_after_rope:
            x = self._norm(head.norm, x)
        x = x.unflatten(-1, (-1, head_dim))
        if head.rope is not None:
            x = rotate(x, *angles[head.rope.source], head.rope.pairing)
        if head.norm_after_rope:
            x = self._norm(head.norm, x.flatten(1)).unflatten(-1, (-1, head_dim))
        return x

    def _norm(self, norm: Norm | None, x: Tensor) -> Tensor:
        return x if norm is None else normalise(norm, x, self._weights)


def _hidden(attention: Attention, num_tokens: int, device: torch.device) -> Tensor:
    """[num_tokens, num_tokens]: where a query (row) does not see a key (column)."""
    keys = torch.arange(num_tokens, device=device)
    queries = keys[:, None]
    hidden = keys > queries
    if attention.window_len is not None:
        hidden |= queries - keys >= attention.window_len
    if attention.chunk_len is not None:
        hidden |= keys < queries // attention.chunk_len * attention.chunk_len
    return hidden
