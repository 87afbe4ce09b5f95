# mypy: disable-error-code="no-untyped-def"
"""A residual sum and the norms around it: one launch. See LayerOps.add_norm.

residual += scale * post_norm(x)
output    = norm(residual)
"""

import triton
import triton.language as tl
from torch import Tensor

from model_server.executor.layer_ops import NormWeights
from model_server.kernels.launch import Launch, launch, padded


@triton.jit
def normalised(
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
            added = normalised(
                added, post_weight, post_bias, columns, inside, post_eps,
                WIDTH, POST_IS_LAYER, POST_HAS_BIAS,
            )  # fmt: skip
        kept = (total + added * scale).to(residual.dtype.element_ty)
        tl.store(residual + at, kept, mask=inside)
        total = kept.to(tl.float32)  # the norm sees the sum as it was rounded
    if HAS_NORM:
        total = normalised(
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
