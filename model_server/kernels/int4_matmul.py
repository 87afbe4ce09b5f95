# mypy: disable-error-code="no-untyped-def"
"""Products with a weight in 4 bits: its numbers are made 16-bit ones on their way to a product."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from model_server.executor.int4_weight import Int4Weight
from model_server.kernels.launch import Launch, launch, padded
from model_server.kernels.running_softmax import multiply_add

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
    has_output, has_row = outputs < num_outputs, rows < num_rows
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
        *(x, weight.packed, weight.scales, weight.zeros, x if bias is None else bias, output),
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
