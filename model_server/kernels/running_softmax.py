# mypy: disable-error-code="no-untyped-def"
"""The softmax of attention, tile of keys by tile of keys (Milakov and Gimelshein, 2018).

    top:    the largest score so far, as a logarithm to the base of 2
    total:  the sum of the weights, relative to `top`
    sums:   of values by their weights, relative to `top`

The order of the sums is that of the tiles.
"""

import triton
import triton.language as tl

# numpy has no bfloat16, so Triton's interpreter cannot multiply matrices of it.
_WIDENS = tl.constexpr(triton.knobs.runtime.interpret)
LOG2E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1.0e30)  # finite: the difference of two of them is 0, not NaN
UNBOUNDED = 1 << 30  # a window or a chunk longer than any sequence


@triton.jit
def multiply_add(left, right, sums):
    """`sums` and the product of two tiles, in float32."""
    if _WIDENS:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, sums, input_precision="ieee")


@triton.jit
def first_key(position, window_len, chunk_len):
    """The first key position that a query at `position` sees; see LayerOptions.first_key."""
    return tl.maximum(tl.maximum(position - window_len + 1, 0), position // chunk_len * chunk_len)


@triton.jit
def blocks_of(block_table, tokens, is_there, BLOCK_SIZE: tl.constexpr):
    """The blocks of a sequence's tokens, [len(tokens)] int64."""
    return tl.load(block_table + tokens // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)


@triton.jit
def load_keys(
    keys, blocks, tokens, is_there, head, num_kv_heads, dims,
    DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Keys of a head, [dims, tokens], of a pool [num_blocks, BLOCK_SIZE, num_kv_heads, DIM]."""
    token_stride = num_kv_heads * DIM
    places = blocks * (BLOCK_SIZE * token_stride) + (tokens % BLOCK_SIZE) * token_stride
    return tl.load(
        keys + head * DIM + places[None, :] + dims[:, None],
        mask=is_there[None, :] & (dims[:, None] < DIM),
        other=0.0,
    )


@triton.jit
def load_values(
    values, blocks, tokens, is_there, head, num_kv_heads, dims,
    DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """As `load_keys`, [tokens, dims]."""
    token_stride = num_kv_heads * DIM
    places = blocks * (BLOCK_SIZE * token_stride) + (tokens % BLOCK_SIZE) * token_stride
    return tl.load(
        values + head * DIM + places[:, None] + dims[None, :],
        mask=is_there[:, None] & (dims[None, :] < DIM),
        other=0.0,
    )


@triton.jit
def score_tile(query, keys, is_seen, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """query [rows, dim] and keys [dim, tile] to scores [rows, tile], as logarithms of weights."""
    scores = (
        multiply_add(query, keys, tl.zeros((query.shape[0], keys.shape[1]), tl.float32)) * scale
    )
    if HAS_SOFTCAP:
        scores = softcap * (
            1.0 - 2.0 / (tl.exp(tl.minimum(2.0 * scores / softcap, 80.0)) + 1.0)
        )  # tanh
    return tl.where(is_seen, scores * LOG2E, MASKED)


@triton.jit
def take_in_tile(scores, values, is_seen, top, total, sums):
    """A tile of scores and of values, [tile, value_dim]."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.where(is_seen, tl.exp2(scores - new_top[:, None]), 0.0)
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, 1)
    sums = multiply_add(weights.to(values.dtype), values, sums * shrink[:, None])
    return new_top, total, sums
