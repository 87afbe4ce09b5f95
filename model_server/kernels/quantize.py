# mypy: disable-error-code="no-untyped-def"
"""Rows of numbers in 8-bit floating point, each with a scale of its own: one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from model_server.kernels.launch import Launch, launch, padded

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
        *(x, output, scales),
        WIDTH=width,
        WIDTH_PADDED=padded(width),
        num_warps=4 if width <= 2048 else 8 if width <= 8192 else 16,
    )
    return output, scales
