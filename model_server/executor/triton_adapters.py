"""What LoRA adapters add to a product's rows, by two launches; see LayerOps.add_low_rank.

shrink_rows  x @ shrink.T, a row of `rank` numbers
expand_rows  product += (x @ shrink.T) @ expand.T

Each row reads its own adapter, so neighbours do not change its bits. A row without one costs its
programs' start.
"""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from model_server.triton_launch import Launch, launch, padded

# Few ranks a program: at batch 1 the programs of one row are to fill the device.
_BLOCK_RANKS = 4
_MAX_BLOCK_INPUTS = 1024
_BLOCK_NUMBERS = 4096  # of `expand`, a program


@triton.jit
def shrink_rows(
    x, shrinks, places, shrunk,
    NUM_INPUTS: tl.constexpr, RANK: tl.constexpr, BLOCK_RANKS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of ranks, rows)."""
    row = tl.program_id(1).to(tl.int64)
    place = tl.load(places + row).to(tl.int64)
    if place >= 0:
        ranks = tl.program_id(0) * BLOCK_RANKS + tl.arange(0, BLOCK_RANKS)
        inside = ranks < RANK
        weights = shrinks + (place * RANK + ranks)[:, None] * NUM_INPUTS
        sums = tl.zeros((BLOCK_RANKS, BLOCK_INPUTS), tl.float32)
        for start in range(0, NUM_INPUTS, BLOCK_INPUTS):
            inputs = start + tl.arange(0, BLOCK_INPUTS)
            has_input = inputs < NUM_INPUTS
            numbers = tl.load(x + row * NUM_INPUTS + inputs, mask=has_input, other=0.0)
            both = inside[:, None] & has_input[None, :]
            weight = tl.load(weights + inputs[None, :], mask=both, other=0.0)
            sums += weight * numbers.to(tl.float32)[None, :]
        tl.store(shrunk + row * RANK + ranks, tl.sum(sums, 1), mask=inside)


@triton.jit
def expand_rows(
    shrunk, expands, places, product,
    NUM_OUTPUTS: tl.constexpr, RANK: tl.constexpr, RANK_PADDED: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of outputs, rows)."""
    row = tl.program_id(1).to(tl.int64)
    place = tl.load(places + row).to(tl.int64)
    if place >= 0:
        outputs = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
        ranks = tl.arange(0, RANK_PADDED)
        has_output = outputs < NUM_OUTPUTS
        has_rank = ranks < RANK
        numbers = tl.load(shrunk + row * RANK + ranks, mask=has_rank, other=0.0)
        weights = expands + (place * NUM_OUTPUTS + outputs)[:, None] * RANK + ranks[None, :]
        both = has_output[:, None] & has_rank[None, :]
        weight = tl.load(weights, mask=both, other=0.0)
        at = product + row * NUM_OUTPUTS + outputs
        total = tl.load(at, mask=has_output, other=0.0).to(tl.float32)
        total += tl.sum(weight * numbers[None, :], 1)
        tl.store(at, total.to(product.dtype.element_ty), mask=has_output)


def add_low_rank(
    x: Tensor,
    shrinks: Tensor,
    expands: Tensor,
    places: Tensor,
    product: Tensor,
    launch: Launch = launch,
) -> None:
    """See LayerOps.add_low_rank; all are contiguous."""
    num_rows, num_inputs = x.shape
    _, num_outputs, rank = expands.shape
    shrunk = torch.empty((num_rows, rank), dtype=torch.float32, device=x.device)
    launch(
        shrink_rows,
        (triton.cdiv(rank, _BLOCK_RANKS), num_rows),
        x,
        shrinks,
        places,
        shrunk,
        NUM_INPUTS=num_inputs,
        RANK=rank,
        BLOCK_RANKS=_BLOCK_RANKS,
        BLOCK_INPUTS=min(padded(num_inputs), _MAX_BLOCK_INPUTS),
        num_warps=4,
    )
    rank_padded = padded(rank)
    block_outputs = max(16, _BLOCK_NUMBERS // rank_padded)
    launch(
        expand_rows,
        (triton.cdiv(num_outputs, block_outputs), num_rows),
        shrunk,
        expands,
        places,
        product,
        NUM_OUTPUTS=num_outputs,
        RANK=rank,
        RANK_PADDED=rank_padded,
        BLOCK_OUTPUTS=block_outputs,
        num_warps=4,
    )
