"""What a dense decoder layer computes between its matrix products and its attention.

    LayerOps:       the interface; one call is one launch, or two
    TorchLayerOps:  in plain torch, on any device: the reference of the kernels, and the fallback

All rows are [num_tokens, width] of the model's dtype. Sums and products inside an operation are
float32; what it returns is rounded once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from model_server.executor.int4 import Int4Weight
from model_server.recipe.dense_torch import (
    activate,
    apply_rule,
    choose,
    gate_heads,
    log_decay,
    of_key_heads,
    rotate,
    unit,
)
from model_server.recipe.recipe import Activation, Moe
from model_server.step import StateSlots

LARGEST_FLOAT8 = 448.0  # of e4m3


@dataclass(frozen=True, slots=True, eq=False)
class NormWeights:
    """A norm's kind and numbers; see recipe.Norm.

    kind:   "rms" or "layer"
    width:  how many neighbouring numbers are normalised together: a whole row, or a head of it
    weight: [row_len] float32, where a weight stored as its difference to one is one larger
    bias:   [row_len] float32, or None
    """

    kind: str
    width: int
    eps: float
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class HeadLayout:
    """How a row of queries, keys and values becomes heads.

        qkv row:  | query heads ... num_heads | key heads ... num_kv_heads | value heads ... |

    query_norm, key_norm: over a head each, or over all heads of the row
    cos, sin:             [num_positions, n / 2] float32, contiguous: number i of a head turns with
                          i + n / 2, what lies past n stays. None: there is no rope
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_norm: NormWeights | None = None
    key_norm: NormWeights | None = None
    norms_after_rope: bool = False
    cos: Tensor | None = None
    sin: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """What chooses each token's experts; see recipe.Moe for how.

    weight:     [num_experts, hidden_size] of the model's dtype, or of a wider one that its
                parameters have; a shared expert's gate is one more row
    bias:       a number for each row, or None
    correction: [num_experts] float32, or None
    """

    moe: Moe
    weight: Tensor
    bias: Tensor | None = None
    correction: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """The weights of all experts, of the model's dtype and contiguous.

    ins:       [num_experts, 2 * inner_len, hidden_size], see recipe.Mlp for the layout of its rows
    ins_bias:  [num_experts, 2 * inner_len], or None
    outs:      [num_experts, hidden_size, inner_len]
    outs_bias: [num_experts, hidden_size], or None
    layout:    "gate_up" or "gate_up_pairs"
    """

    ins: Tensor
    ins_bias: Tensor | None
    outs: Tensor
    outs_bias: Tensor | None
    layout: str
    activation: Activation


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Each token's experts [num_tokens, top_k] int32, and their weights in float32.

    Where there is a shared expert, its weight is one more column.
    """

    experts: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """Of each channel, over its last tokens; see recipe.Conv. Numbers are float32.

    weight: [num_channels, num_taps]; bias: [num_channels], or None
    """

    weight: Tensor
    bias: Tensor | None

    @property
    def window_shape(self) -> tuple[int, int]:
        """Of the rows before a token that its sum reads: [num_taps - 1, num_channels]."""
        num_channels, num_taps = self.weight.shape
        return num_taps - 1, num_channels


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRule:
    """What a gated delta rule has beside its products; see recipe.Delta. Numbers are float32.

        row of the product:  | queries | keys | values | gates | betas | alphas |

    conv:           of queries, keys and values
    a_log, dt_bias: [num_heads]
    norm:           of value_dim numbers, without a bias
    """

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    conv: Convolution
    a_log: Tensor
    dt_bias: Tensor
    beta_scale: float
    norm: NormWeights

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of a window and of the heads' matrices."""
        return self.conv.window_shape, (self.num_heads, self.value_dim, self.key_dim)


class LayerOps(Protocol):
    """The operations of a layer; each returns a new tensor, contiguous."""

    def add_norm(
        self,
        residual: Tensor,
        x: Tensor | None,
        norm: NormWeights | None,
        *,
        post_norm: NormWeights | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """residual += scale * post_norm(x), in place; returns norm(residual).

        Without `x` the residual stays; without `norm` it is the residual itself that is returned.
        The norm sees the residual as it was rounded.
        """

    def rotate_and_write(
        self,
        qkv: Tensor,
        heads: HeadLayout,
        positions: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Norm and rotate queries and keys, and write keys and values to their slots.

        qkv [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], and more columns that are not
        read; positions and slots [num_tokens] int64, keys and values [num_blocks, block_size,
        num_kv_heads, head_dim]. Returns the queries, [num_tokens, num_heads, head_dim].
        """

    def gate(self, attended: Tensor, rows: Tensor) -> Tensor:
        """attended [num_tokens, width] times the sigmoid of the last `width` columns of `rows`."""

    def apply_rule(
        self, rows: Tensor, rule: DeltaRule, windows: Tensor, matrices: Tensor, slots: StateSlots
    ) -> Tensor:
        """What the last product of a delta rule reads, [num_tokens, num_heads * value_dim].

        rows: of its first product. windows, matrices: of all slots, float32; the step's are read
        and written.
        """

    def convolve(
        self, rows: Tensor, conv: Convolution, windows: Tensor, slots: StateSlots
    ) -> Tensor:
        """What the last product of a short convolution reads, [num_tokens, num_channels].

        rows: | gates before | values | gates behind |; see recipe.ShortConv, and `apply_rule`
        """

    def activate(self, inner: Tensor, layout: str, activation: Activation) -> Tensor:
        """What an MLP's last layer reads: see recipe.Mlp; "gate_up" is half as wide as `inner`."""

    def route(self, x: Tensor, router: Router) -> Routes:
        """Chooses by scores in float32; of equal ones the first, but in plain torch."""

    def mix(self, x: Tensor, experts: Experts, routes: Routes, shared: Tensor | None) -> Tensor:
        """The weighted sum of what each token's experts make of it, and of `shared`, if any."""

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows in float8_e4m3fn, and scales [num_rows, 1] float32: `x` is about their product."""

    def multiply_int4(self, x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
        """[num_tokens, num_inputs] to [num_tokens, num_outputs], in the dtype of `x`.

        Groups are of a multiple of 16 inputs.
        """

    def add_low_rank(
        self, x: Tensor, shrinks: Tensor, expands: Tensor, places: Tensor, product: Tensor
    ) -> None:
        """product += x @ shrink.T @ expand.T, in place, with each row's own shrink and expand.

        shrinks: [num_places, rank, num_inputs] float32
        expands: [num_places, num_outputs, rank] float32
        places:  [num_rows] int32; -1: nothing is added to this row
        """


class TorchLayerOps:
    """See LayerOps."""

    def add_norm(
        self,
        residual: Tensor,
        x: Tensor | None,
        norm: NormWeights | None,
        *,
        post_norm: NormWeights | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """See LayerOps.add_norm."""
        if x is not None:
            added = x.float() if post_norm is None else normalised(x, post_norm)
            residual.copy_(residual.float() + added * scale)
        return residual if norm is None else normalised(residual, norm).to(residual.dtype)

    def rotate_and_write(
        self,
        qkv: Tensor,
        heads: HeadLayout,
        positions: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """See LayerOps.rotate_and_write."""
        num_queries = heads.num_heads * heads.head_dim
        num_keys = heads.num_kv_heads * heads.head_dim
        num_more = qkv.shape[1] - num_queries - 2 * num_keys
        query, key, value, _ = qkv.split((num_queries, num_keys, num_keys, num_more), 1)
        query = self._rotated(query, heads, heads.query_norm, positions)
        key = self._rotated(key, heads, heads.key_norm, positions)
        keys.flatten(0, 1).index_copy_(0, slots, key.to(keys.dtype))
        value = value.unflatten(1, (-1, heads.head_dim))
        values.flatten(0, 1).index_copy_(0, slots, value.to(values.dtype))
        return query.to(qkv.dtype)

    def gate(self, attended: Tensor, rows: Tensor) -> Tensor:
        """See LayerOps.gate."""
        gates = rows[:, -attended.shape[1] :].float()
        return gate_heads(attended.float(), gates).to(attended.dtype)

    def apply_rule(
        self, rows: Tensor, rule: DeltaRule, windows: Tensor, matrices: Tensor, slots: StateSlots
    ) -> Tensor:
        """See LayerOps.apply_rule."""
        num_channels = len(rule.conv.weight)
        width = rule.num_heads * rule.value_dim
        raw, gates, betas, alphas = rows.float().split(
            (num_channels, width, rule.num_heads, rule.num_heads), 1
        )
        keys_len = rule.num_key_heads * rule.key_dim
        mixed = functional.silu(convolved(raw, rule.conv, windows, slots))
        q, k, v = mixed.split((keys_len, keys_len, width), 1)
        q = unit(q.unflatten(1, (-1, rule.key_dim))) * rule.key_dim**-0.5
        k = unit(k.unflatten(1, (-1, rule.key_dim)))
        q = of_key_heads(q, rule.num_heads)
        k = of_key_heads(k, rule.num_heads)
        v = v.unflatten(1, (-1, rule.value_dim))
        decay = log_decay(alphas, rule.a_log, rule.dt_bias)
        beta = rule.beta_scale * betas.sigmoid()
        answers = torch.empty_like(v)
        for first, end, read in _sequences(slots):
            known = matrices.new_zeros(matrices.shape[1:]) if read < 0 else matrices[read]
            known = known.mT
            for token in range(first, end):
                one = slice(token, token + 1)
                answers[one], known = apply_rule(
                    q[one], k[one], v[one], decay[one], beta[one], known
                )
                _keep(matrices, known.mT, token, slots)
        inner = normalised(answers, rule.norm).flatten(1) * functional.silu(gates)
        return inner.to(rows.dtype)

    def convolve(
        self, rows: Tensor, conv: Convolution, windows: Tensor, slots: StateSlots
    ) -> Tensor:
        """See LayerOps.convolve."""
        before, values, behind = rows.float().chunk(3, 1)
        return (behind * convolved(before * values, conv, windows, slots)).to(rows.dtype)

    def activate(self, inner: Tensor, layout: str, activation: Activation) -> Tensor:
        """See LayerOps.activate."""
        return activate(layout, activation, inner.float()).to(inner.dtype)

    def route(self, x: Tensor, router: Router) -> Routes:
        """See LayerOps.route."""
        moe = router.moe
        bias = None if router.bias is None else router.bias.float()
        logits = functional.linear(x.float(), router.weight.float(), bias)
        chosen, weights = choose(moe, logits[:, : moe.num_experts], router.correction)
        if moe.shared is not None:
            gate = logits[:, moe.num_experts :].sigmoid()
            weights = torch.cat(
                (weights, gate if gate.shape[1] else weights.new_ones(len(x), 1)), 1
            )
        return Routes(chosen.to(torch.int32), weights)

    def mix(self, x: Tensor, experts: Experts, routes: Routes, shared: Tensor | None) -> Tensor:
        """See LayerOps.mix."""
        output = x.new_zeros(x.shape, dtype=torch.float32)
        for expert in routes.experts.unique().tolist():
            rows, places = torch.where(routes.experts == expert)
            bias = None if experts.ins_bias is None else experts.ins_bias[expert]
            inner = functional.linear(x[rows], experts.ins[expert], bias)
            inner = self.activate(inner, experts.layout, experts.activation)
            bias = None if experts.outs_bias is None else experts.outs_bias[expert]
            outs = functional.linear(inner, experts.outs[expert], bias)
            output.index_add_(0, rows, outs.float() * routes.weights[rows, places, None])
        if shared is not None:
            output += shared.float() * routes.weights[:, -1:]
        return output.to(x.dtype)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See LayerOps.quantize."""
        return quantized(x)

    def multiply_int4(self, x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
        """See LayerOps.multiply_int4."""
        return functional.linear(x, weight.dense(x.dtype), bias)

    def add_low_rank(
        self, x: Tensor, shrinks: Tensor, expands: Tensor, places: Tensor, product: Tensor
    ) -> None:
        """See LayerOps.add_low_rank."""
        at = places.clamp(min=0)
        shrunk = torch.einsum("ni,nri->nr", x.float(), shrinks[at])
        sums = product.float() + torch.einsum("nr,nor->no", shrunk, expands[at])
        product.copy_(torch.where(places[:, None] >= 0, sums, product.float()))

    def _rotated(
        self, x: Tensor, heads: HeadLayout, norm: NormWeights | None, positions: Tensor
    ) -> Tensor:
        """[num_tokens, heads, head_dim] float32"""
        x = x.float()
        if norm is not None and not heads.norms_after_rope:
            x = normalised(x, norm)
        x = x.unflatten(1, (-1, heads.head_dim))
        if heads.cos is not None and heads.sin is not None:
            cos = heads.cos.index_select(0, positions)
            sin = heads.sin.index_select(0, positions)
            x = rotate(x, cos, sin, "half")
        if norm is not None and heads.norms_after_rope:
            x = normalised(x.flatten(1), norm).unflatten(1, (-1, heads.head_dim))
        return x


def normalised(x: Tensor, norm: NormWeights) -> Tensor:
    """In float32."""
    groups = x.float().unflatten(-1, (-1, norm.width))
    if norm.kind == "layer":
        groups = groups - groups.mean(-1, keepdim=True)
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + norm.eps)
    scaled = groups.flatten(-2) * norm.weight
    return scaled if norm.bias is None else scaled + norm.bias


def convolved(raw: Tensor, conv: Convolution, windows: Tensor, slots: StateSlots) -> Tensor:
    """Rows [num_tokens, num_channels] float32 behind their windows, which are read and written."""
    num_kept, num_channels = conv.window_shape
    outputs = []
    for first, end, read in _sequences(slots):
        window = windows.new_zeros(windows.shape[1:]) if read < 0 else windows[read]
        known = torch.cat((window, raw[first:end]))
        outputs.append(
            functional.conv1d(known.T, conv.weight[:, None], conv.bias, groups=num_channels).T
        )
        for token in range(first, end):
            behind = token - first + 1
            _keep(windows, known[behind : behind + num_kept], token, slots)
    return torch.cat(outputs)


def _sequences(slots: StateSlots) -> Iterator[tuple[int, int, int]]:
    """Of each its first token, its end, and the slot that it reads."""
    bounds: list[int] = slots.cu_query_lens.tolist()
    return zip(bounds[:-1], bounds[1:], slots.reads.tolist(), strict=True)


def _keep(pool: Tensor, state: Tensor, token: int, slots: StateSlots) -> None:
    """Write what stands behind a token to its slots."""
    for slot in (int(slots.writes[token]), int(slots.kept[token])):
        if slot >= 0:
            pool[slot] = state


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """See LayerOps.quantize."""
    numbers = x.float()
    scales = (numbers.abs().amax(1, keepdim=True) / LARGEST_FLOAT8).clamp_min(1e-12)
    scaled = (numbers / scales).clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8)
    return scaled.to(torch.float8_e4m3fn), scales
