"""The operations of a layer by Triton kernels, one launch each; see LayerOps.

add_norm          residual += scale * post_norm(x), then norm(residual)
rotate_and_write  norm and rotation of queries and keys; keys and values into the pool
multiply_int4     products with a weight in 4 bits, made 16-bit numbers on the way
quantize_row      rows in 8-bit floating point, each with a scale of its own

Activations and gates are in triton_activations.py, experts in triton_experts.py, layers that keep a
state in triton_convolution.py and triton_delta.py, LoRA adapters in triton_adapters.py.
"""

# mypy: disable-error-code="no-untyped-def"

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from model_server.attention.triton import multiply_add
from model_server.executor.int4 import Int4Weight
from model_server.executor.layer_ops import (
    Convolution,
    DeltaRule,
    Experts,
    HeadLayout,
    NormWeights,
    Router,
    Routes,
    normalised,
)
from model_server.executor.triton_activations import activated, gated_rows
from model_server.executor.triton_adapters import add_low_rank
from model_server.executor.triton_convolution import convolve
from model_server.executor.triton_delta import apply_rule
from model_server.executor.triton_experts import mixed, routed
from model_server.recipe.recipe import Activation
from model_server.step import StateSlots
from model_server.triton_launch import Launch, launch, padded


@triton.jit
def _normalised_row(
    row, weight, bias, columns, inside, eps,
    WIDTH: tl.constexpr, IS_LAYER: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """A row of float32 numbers, zero where it is padding."""
    if IS_LAYER:
        row = tl.where(inside, row - tl.sum(row, 0) / WIDTH, 0.0)
    row = row * tl.rsqrt(tl.sum(row * row, 0) / WIDTH + eps)
    row = row * tl.load(weight + columns, mask=inside, other=0.0)
    if HAS_BIAS:
        row += tl.load(bias + columns, mask=inside, other=0.0)
    return row


@triton.jit
def add_norm(
    residual, x, post_weight, post_bias, weight, bias, output, scale, post_eps, eps,
    WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr, HAS_X: tl.constexpr,
    HAS_POST: tl.constexpr, POST_IS_LAYER: tl.constexpr, POST_HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr, IS_LAYER: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Grid (rows,); a row of WIDTH numbers each."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH_PADDED)
    inside = columns < WIDTH
    at = row * WIDTH + columns
    total = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_X:
        added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_POST:
            added = _normalised_row(
                added, post_weight, post_bias, columns, inside, post_eps,
                WIDTH, POST_IS_LAYER, POST_HAS_BIAS,
            )  # fmt: skip
        kept = (total + added * scale).to(residual.dtype.element_ty)
        tl.store(residual + at, kept, mask=inside)
        total = kept.to(tl.float32)  # the norm sees the sum as it was rounded
    if HAS_NORM:
        total = _normalised_row(
            total, weight, bias, columns, inside, eps, WIDTH, IS_LAYER, HAS_BIAS
        )  # fmt: skip
        tl.store(output + at, total, mask=inside)


def add_and_norm(
    residual: Tensor,
    x: Tensor | None,
    norm: NormWeights | None,
    output: Tensor,
    *,
    post_norm: NormWeights | None,
    scale: float,
    launch: Launch = launch,
) -> None:
    """See LayerOps.add_norm. All [num_rows, width], contiguous; `output` is of a norm alone.

    Raises ValueError for a norm that is not of a whole row.
    """
    num_rows, width = residual.shape
    for each in (norm, post_norm):
        if each is not None and each.width != width:
            raise ValueError(f"a norm of {each.width} numbers is not of a row of {width}")
    launch(
        add_norm,
        (num_rows,),
        residual,
        residual if x is None else x,
        *_tensors(post_norm, residual),
        *_tensors(norm, residual),
        output,
        scale,
        0.0 if post_norm is None else post_norm.eps,
        0.0 if norm is None else norm.eps,
        WIDTH=width,
        WIDTH_PADDED=padded(width),
        HAS_X=x is not None,
        HAS_POST=post_norm is not None,
        POST_IS_LAYER=post_norm is not None and post_norm.kind == "layer",
        POST_HAS_BIAS=post_norm is not None and post_norm.bias is not None,
        HAS_NORM=norm is not None,
        IS_LAYER=norm is not None and norm.kind == "layer",
        HAS_BIAS=norm is not None and norm.bias is not None,
        num_warps=4 if width <= 2048 else 8 if width <= 8192 else 16,
    )


def _tensors(norm: NormWeights | None, unread: Tensor) -> tuple[Tensor, Tensor]:
    if norm is None:
        return unread, unread
    return norm.weight, norm.weight if norm.bias is None else norm.bias


@triton.jit
def _normalised(
    x, other, weight, other_weight, bias, other_bias, inside, eps,
    DIM: tl.constexpr, IS_LAYER: tl.constexpr,
):  # fmt: skip
    """Heads [heads, dims] and, in `other`, each number's partner of the rotation."""
    if IS_LAYER:
        mean = tl.sum(x, 1) / DIM
        x = tl.where(inside, x - mean[:, None], 0.0)
        other = other - mean[:, None]
    factor = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)
    return x * factor[:, None] * weight + bias, other * factor[:, None] * other_weight + other_bias


@triton.jit
def _head(
    at, weight, bias, first, rows, dims, partner, is_head, is_rotated, cos, sin, eps,
    DIM: tl.constexpr, HAS_NORM: tl.constexpr, IS_LAYER: tl.constexpr, HAS_BIAS: tl.constexpr,
    NORM_IS_LAST: tl.constexpr,
):  # fmt: skip
    """Heads `first` + rows of a token, normalised and rotated: [rows, dims] float32.

    The partner of each number is loaded a second time, from the cache: nothing is shuffled.
    """
    inside = is_head & (dims[None, :] < DIM)
    with_partner = is_head & is_rotated[None, :]
    place = (first + rows)[:, None] * DIM
    x = tl.load(at + place + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(at + place + partner[None, :], mask=with_partner, other=0.0).to(tl.float32)
    if HAS_NORM:
        w = tl.load(weight + place + dims[None, :], mask=inside, other=0.0)
        b = tl.zeros_like(w)
        if HAS_BIAS:
            b = tl.load(bias + place + dims[None, :], mask=inside, other=0.0)
        if NORM_IS_LAST:
            turned = x * cos[None, :] + other * sin[None, :]
            turned, _ = _normalised(turned, other, w, w, b, b, inside, eps, DIM, IS_LAYER)
            return turned
        other_w = tl.load(weight + place + partner[None, :], mask=with_partner, other=0.0)
        other_b = tl.zeros_like(w)
        if HAS_BIAS:
            other_b = tl.load(bias + place + partner[None, :], mask=with_partner, other=0.0)
        x, other = _normalised(x, other, w, other_w, b, other_b, inside, eps, DIM, IS_LAYER)
    return x * cos[None, :] + other * sin[None, :]


@triton.jit
def rotate_and_write(
    qkv, query_weight, query_bias, key_weight, key_bias, cos_table, sin_table, positions, slots,
    query, keys, values, query_eps, key_eps,
    ROW_LEN: tl.constexpr, GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr, NUM_ANGLES: tl.constexpr,
    QUERY_NORM: tl.constexpr, QUERY_IS_LAYER: tl.constexpr, QUERY_BIAS: tl.constexpr,
    KEY_NORM: tl.constexpr, KEY_IS_LAYER: tl.constexpr, KEY_BIAS: tl.constexpr,
    NORM_IS_LAST: tl.constexpr,
):  # fmt: skip
    """Grid (key heads, tokens). Norm weights are as long as all query heads, or all key heads.

    qkv row, of ROW_LEN numbers:  | query heads | key heads | value heads | others |

    One program a key head and its queries.
    """
    head = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64)
    num_kv_heads = tl.num_programs(0)
    dims = tl.arange(0, DIM_PADDED)
    rows = tl.arange(0, GROUP_PADDED)
    is_rotated = dims < 2 * NUM_ANGLES
    partner = tl.where(dims < NUM_ANGLES, dims + NUM_ANGLES, dims - NUM_ANGLES)
    angle = tl.where(dims < NUM_ANGLES, dims, dims - NUM_ANGLES)
    angle += tl.load(positions + token) * NUM_ANGLES
    cos = tl.load(cos_table + angle, mask=is_rotated, other=1.0)
    sin = tl.load(sin_table + angle, mask=is_rotated, other=0.0)
    sin = tl.where(dims < NUM_ANGLES, -sin, sin)

    at = qkv + token * ROW_LEN
    is_head = rows[:, None] < GROUP
    q = _head(
        at, query_weight, query_bias, head * GROUP, rows, dims, partner, is_head, is_rotated,
        cos, sin, query_eps, DIM, QUERY_NORM, QUERY_IS_LAYER, QUERY_BIAS, NORM_IS_LAST,
    )  # fmt: skip
    heads = token * num_kv_heads * GROUP + head * GROUP + rows
    tl.store(query + heads[:, None] * DIM + dims[None, :], q, mask=is_head & (dims[None, :] < DIM))

    one = tl.arange(0, 1)
    is_key = one[:, None] < 1
    at += num_kv_heads * GROUP * DIM
    k = _head(
        at, key_weight, key_bias, head, one, dims, partner, is_key, is_rotated,
        cos, sin, key_eps, DIM, KEY_NORM, KEY_IS_LAYER, KEY_BIAS, NORM_IS_LAST,
    )  # fmt: skip
    is_dim = is_key & (dims[None, :] < DIM)
    v = tl.load(at + (num_kv_heads + head + one)[:, None] * DIM + dims[None, :], mask=is_dim)
    out = ((tl.load(slots + token) * num_kv_heads + head) * DIM + one)[:, None] + dims[None, :]
    tl.store(keys + out, k, mask=is_dim)
    tl.store(values + out, v, mask=is_dim)


def rotate_heads(
    qkv: Tensor,
    heads: HeadLayout,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    launch: Launch = launch,
) -> Tensor:
    """See LayerOps.rotate_and_write. All contiguous; norms are of a head each.

    Raises ValueError for a norm over all heads.
    """
    num_tokens = qkv.shape[0]
    head_dim = heads.head_dim
    for norm in (heads.query_norm, heads.key_norm):
        if norm is not None and norm.width != head_dim:
            raise ValueError(f"a norm of {norm.width} numbers is not of a head of {head_dim}")
    group = heads.num_heads // heads.num_kv_heads
    has_rope = heads.cos is not None
    query = qkv.new_empty((num_tokens, heads.num_heads, head_dim))
    launch(
        rotate_and_write,
        (heads.num_kv_heads, num_tokens),
        qkv,
        *_tensors(heads.query_norm, qkv),
        *_tensors(heads.key_norm, qkv),
        heads.cos if has_rope else qkv,
        heads.sin if has_rope else qkv,
        positions,
        slots,
        query,
        keys,
        values,
        _eps(heads.query_norm),
        _eps(heads.key_norm),
        ROW_LEN=qkv.shape[1],
        GROUP=group,
        GROUP_PADDED=padded(group),
        DIM=head_dim,
        DIM_PADDED=padded(head_dim),
        NUM_ANGLES=0 if heads.cos is None else heads.cos.shape[1],
        **_switches("QUERY", heads.query_norm),
        **_switches("KEY", heads.key_norm),
        NORM_IS_LAST=heads.norms_after_rope,
        num_warps=1 if group * head_dim <= 1024 else 4,
    )
    return query


def _eps(norm: NormWeights | None) -> float:
    return 0.0 if norm is None else norm.eps


def _switches(name: str, norm: NormWeights | None) -> dict[str, bool]:
    return {
        f"{name}_NORM": norm is not None,
        f"{name}_IS_LAYER": norm is not None and norm.kind == "layer",
        f"{name}_BIAS": norm is not None and norm.bias is not None,
    }


# Inputs at a time, of one group: the longest that divides it.
_INPUT_LENS = (64, 32, 16)


_MAX_ROWS = 64  # of a tile


@triton.jit(do_not_specialize=["num_rows"])
def multiply_int4(
    x,
    packed,
    scales,
    zeros,
    bias,
    output,
    num_rows,
    num_outputs,
    NUM_INPUTS: tl.constexpr,
    GROUP_LEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):
    """Grid (tiles of outputs, tiles of rows).

    The order of a sum is that of the inputs, whatever the tile.
    """
    NUM_WORDS: tl.constexpr = NUM_INPUTS // 8
    NUM_GROUPS: tl.constexpr = NUM_INPUTS // GROUP_LEN
    outputs = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    rows = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    has_output = outputs < num_outputs
    has_row = rows < num_rows
    columns = tl.arange(0, BLOCK_INPUTS)
    words = tl.arange(0, BLOCK_INPUTS // 8)
    shifts = tl.arange(0, 8) * 4
    x_rows = x + rows.to(tl.int64)[:, None] * NUM_INPUTS
    packed_rows = packed + outputs.to(tl.int64)[:, None] * NUM_WORDS
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), dtype=tl.float32)
    for start in range(0, NUM_INPUTS, BLOCK_INPUTS):
        numbers = tl.load(x_rows + start + columns[None, :], mask=has_row[:, None], other=0.0)
        loaded = tl.load(
            packed_rows + start // 8 + words[None, :], mask=has_output[:, None], other=0
        )
        nibbles = (loaded[:, :, None] >> shifts[None, None, :]) & 15
        nibbles = tl.reshape(nibbles, (BLOCK_OUTPUTS, BLOCK_INPUTS))
        group = outputs * NUM_GROUPS + start // GROUP_LEN
        scale = tl.load(scales + group, mask=has_output, other=0.0).to(tl.float32)
        zero = tl.load(zeros + group, mask=has_output, other=0).to(tl.float32)
        weights = (nibbles.to(tl.float32) - zero[:, None]) * scale[:, None]
        sums = multiply_add(numbers, tl.trans(weights.to(numbers.dtype)), sums)
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=has_output, other=0.0).to(tl.float32)[None, :]
    places = output + rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    inside = has_row[:, None] & has_output[None, :]
    tl.store(places, sums.to(output.dtype.element_ty), mask=inside)


def multiply(x: Tensor, weight: Int4Weight, bias: Tensor | None, launch: Launch = launch) -> Tensor:
    """See LayerOps.multiply_int4; `x` is contiguous."""
    num_rows, num_inputs = x.shape
    output = torch.empty((num_rows, weight.num_outputs), dtype=x.dtype, device=x.device)
    block_rows = min(padded(num_rows, 16), _MAX_ROWS)
    block_outputs = 32 if num_rows <= 16 else 64
    block_inputs = next(each for each in _INPUT_LENS if weight.group_len % each == 0)
    launch(
        multiply_int4,
        (triton.cdiv(weight.num_outputs, block_outputs), triton.cdiv(num_rows, block_rows)),
        x,
        weight.packed,
        weight.scales,
        weight.zeros,
        x if bias is None else bias,
        output,
        num_rows,
        weight.num_outputs,
        NUM_INPUTS=num_inputs,
        GROUP_LEN=weight.group_len,
        HAS_BIAS=bias is not None,
        BLOCK_ROWS=block_rows,
        BLOCK_OUTPUTS=block_outputs,
        BLOCK_INPUTS=block_inputs,
        num_warps=4 if num_rows <= 32 else 8,
        num_stages=4,
    )
    return output


_LARGEST = tl.constexpr(448.0)  # of e4m3


_SMALLEST_SCALE = tl.constexpr(1e-12)


@triton.jit
def quantize_row(x, output, scales, WIDTH: tl.constexpr, WIDTH_PADDED: tl.constexpr):
    """Grid (rows,); a row of WIDTH numbers each."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH_PADDED)
    inside = columns < WIDTH
    numbers = tl.load(x + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(numbers), 0) / _LARGEST, _SMALLEST_SCALE)
    scaled = tl.minimum(tl.maximum(numbers / scale, -_LARGEST), _LARGEST)
    tl.store(output + row * WIDTH + columns, scaled.to(output.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def quantize_rows(x: Tensor, launch: Launch = launch) -> tuple[Tensor, Tensor]:
    """See LayerOps.quantize; `x` is contiguous."""
    num_rows, width = x.shape
    output = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    scales = x.new_empty((num_rows, 1), dtype=torch.float32)
    launch(
        quantize_row,
        (num_rows,),
        x,
        output,
        scales,
        WIDTH=width,
        WIDTH_PADDED=padded(width),
        num_warps=4 if width <= 2048 else 8 if width <= 8192 else 16,
    )
    return output, scales


class TritonLayerOps:
    """See LayerOps. `launch` runs the kernels."""

    def __init__(self, launch: Launch = launch) -> None:
        self._launch = launch

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
        if x is None and norm is None:
            return residual
        output = residual if norm is None else residual.new_empty(residual.shape)
        add_and_norm(
            residual, x, norm, output, post_norm=post_norm, scale=scale, launch=self._launch
        )
        return output

    def rotate_and_write(
        self,
        qkv: Tensor,
        heads: HeadLayout,
        positions: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """See LayerOps.rotate_and_write. Norms over all heads are torch's, before the kernel."""
        query_len = heads.num_heads * heads.head_dim
        key_len = heads.num_kv_heads * heads.head_dim
        queries = qkv.narrow(1, 0, query_len)
        new_keys = qkv.narrow(1, query_len, key_len)
        query_norm = self._left(heads.query_norm, queries, heads)
        key_norm = self._left(heads.key_norm, new_keys, heads)
        heads = replace(heads, query_norm=query_norm, key_norm=key_norm)
        return rotate_heads(qkv, heads, positions, slots, keys, values, self._launch)

    def gate(self, attended: Tensor, rows: Tensor) -> Tensor:
        """See LayerOps.gate."""
        return gated_rows(attended, rows, self._launch)

    def apply_rule(
        self, rows: Tensor, rule: DeltaRule, windows: Tensor, matrices: Tensor, slots: StateSlots
    ) -> Tensor:
        """See LayerOps.apply_rule."""
        return apply_rule(rows, rule, windows, matrices, slots, self._launch)

    def convolve(
        self, rows: Tensor, conv: Convolution, windows: Tensor, slots: StateSlots
    ) -> Tensor:
        """See LayerOps.convolve."""
        return convolve(rows, conv, windows, slots, self._launch)

    def activate(self, inner: Tensor, layout: str, activation: Activation) -> Tensor:
        """See LayerOps.activate."""
        return activated(inner, layout, activation, self._launch)

    def route(self, x: Tensor, router: Router) -> Routes:
        """See LayerOps.route."""
        return routed(x, router, self._launch)

    def mix(self, x: Tensor, experts: Experts, routes: Routes, shared: Tensor | None) -> Tensor:
        """See LayerOps.mix."""
        return mixed(x, experts, routes, shared, self._launch)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See LayerOps.quantize."""
        return quantize_rows(x, self._launch)

    def multiply_int4(self, x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
        """See LayerOps.multiply_int4."""
        return multiply(x, weight, bias, self._launch)

    def add_low_rank(
        self, x: Tensor, shrinks: Tensor, expands: Tensor, places: Tensor, product: Tensor
    ) -> None:
        """See LayerOps.add_low_rank."""
        add_low_rank(x, shrinks, expands, places, product, self._launch)

    def _left(
        self, norm: NormWeights | None, part: Tensor, heads: HeadLayout
    ) -> NormWeights | None:
        """What is left to the kernel of a norm: one over all heads is applied here, in place.

        Raises ValueError where that would have to come after the rope.
        """
        if norm is None or norm.width == heads.head_dim:
            return norm
        if heads.norms_after_rope:
            raise ValueError(f"a norm of {norm.width} numbers, over all heads, after the rope")
        part.copy_(normalised(part, norm))
        return None
