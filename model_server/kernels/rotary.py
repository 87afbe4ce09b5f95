# mypy: disable-error-code="no-untyped-def"
"""Heads of queries and keys: norm, rotation, and keys and values into the pool; one launch.

qkv row:  | query heads | key heads | value heads |     one program a key head and its queries
"""

import triton
import triton.language as tl
from torch import Tensor

from model_server.executor.layer_ops import HeadLayout, NormWeights
from model_server.kernels.launch import Launch, launch, padded


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
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    NUM_ANGLES: tl.constexpr,
    QUERY_NORM: tl.constexpr, QUERY_IS_LAYER: tl.constexpr, QUERY_BIAS: tl.constexpr,
    KEY_NORM: tl.constexpr, KEY_IS_LAYER: tl.constexpr, KEY_BIAS: tl.constexpr,
    NORM_IS_LAST: tl.constexpr,
):  # fmt: skip
    """Grid (key heads, tokens). Norm weights are as long as all query heads, or all key heads."""
    head, token = tl.program_id(0), tl.program_id(1).to(tl.int64)
    num_kv_heads = tl.num_programs(0)
    dims, rows = tl.arange(0, DIM_PADDED), tl.arange(0, GROUP_PADDED)
    is_rotated = dims < 2 * NUM_ANGLES
    partner = tl.where(dims < NUM_ANGLES, dims + NUM_ANGLES, dims - NUM_ANGLES)
    angle = tl.where(dims < NUM_ANGLES, dims, dims - NUM_ANGLES)
    angle += tl.load(positions + token) * NUM_ANGLES
    cos = tl.load(cos_table + angle, mask=is_rotated, other=1.0)
    sin = tl.load(sin_table + angle, mask=is_rotated, other=0.0)
    sin = tl.where(dims < NUM_ANGLES, -sin, sin)

    at = qkv + token * (num_kv_heads * (GROUP + 2)) * DIM
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
        *(heads.cos if has_rope else qkv, heads.sin if has_rope else qkv),
        *(positions, slots, query, keys, values),
        *(_eps(heads.query_norm), _eps(heads.key_norm)),
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


def _tensors(norm: NormWeights | None, unread: Tensor) -> tuple[Tensor, Tensor]:
    if norm is None:
        return unread, unread
    return norm.weight, norm.weight if norm.bias is None else norm.bias


def _eps(norm: NormWeights | None) -> float:
    return 0.0 if norm is None else norm.eps


def _switches(name: str, norm: NormWeights | None) -> dict[str, bool]:
    return {
        f"{name}_NORM": norm is not None,
        f"{name}_IS_LAYER": norm is not None and norm.kind == "layer",
        f"{name}_BIAS": norm is not None and norm.bias is not None,
    }
