"""Convolutions over a sequence's last tokens by a Triton kernel; see LayerOps.convolve.

A window is what the next token's sum reads of the tokens before it. A step reads one slot of a
sequence and writes others, so it may be done twice; a sum has the order of its taps, so that bits
depend neither on the batch nor on how tokens are cut into steps.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from model_server.executor.layer_ops import Convolution
from model_server.step import StateSlots
from model_server.triton_launch import Launch, launch

_BLOCK = 256


@triton.jit
def convolved(
    rows, weight, bias, windows, cu_query_lens, sequences, reads, writes, kept, token, channels,
    inside,
    CHANNELS: tl.constexpr, ROW_LEN: tl.constexpr, NUM_TAPS: tl.constexpr, HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
):  # fmt: skip
    """Some channels of a token; their windows behind it are written where that is asked for.

    IS_GATED: what is convolved is a product of two, CHANNELS apart in a row
    """
    seq = tl.load(sequences + token)
    place = token - tl.load(cu_query_lens + seq)
    read = tl.load(reads + seq).to(tl.int64)
    write = tl.load(writes + token).to(tl.int64)
    keep = tl.load(kept + token).to(tl.int64)
    total = tl.zeros_like(channels).to(tl.float32)
    for tap in tl.static_range(NUM_TAPS):
        back = NUM_TAPS - 1 - tap  # tokens
        is_old = inside & (place + 0 * channels < back)
        is_known = is_old & (read + 0 * channels >= 0)
        is_new = inside & (place + 0 * channels >= back)
        old = windows + (read * (NUM_TAPS - 1) + place + tap) * CHANNELS + channels
        new = rows + (token - back) * ROW_LEN + channels
        x = tl.load(new, mask=is_new, other=0.0).to(tl.float32)
        if IS_GATED:
            x *= tl.load(new + CHANNELS, mask=is_new, other=0.0).to(tl.float32)
        x += tl.load(old, mask=is_known, other=0.0)
        total += x * tl.load(weight + channels * NUM_TAPS + tap, mask=inside, other=0.0)
        if tap > 0:
            at = windows + (tap - 1) * CHANNELS + channels
            if write >= 0:
                tl.store(at + write * (NUM_TAPS - 1) * CHANNELS, x, mask=inside)
            if keep >= 0:
                tl.store(at + keep * (NUM_TAPS - 1) * CHANNELS, x, mask=inside)
    if HAS_BIAS:
        total += tl.load(bias + channels, mask=inside, other=0.0)
    return total


@triton.jit
def convolve_rows(
    rows, weight, bias, windows, cu_query_lens, sequences, reads, writes, kept, output,
    CHANNELS: tl.constexpr, NUM_TAPS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, ceil(CHANNELS / BLOCK))."""
    token = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < CHANNELS
    total = convolved(
        rows, weight, bias, windows, cu_query_lens, sequences, reads, writes, kept, token,
        channels, inside, CHANNELS, 3 * CHANNELS, NUM_TAPS, HAS_BIAS, True,
    )  # fmt: skip
    gate = rows + (3 * token + 2) * CHANNELS + channels
    total *= tl.load(gate, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + token * CHANNELS + channels, total, mask=inside)


def convolve(
    rows: Tensor, conv: Convolution, windows: Tensor, slots: StateSlots, launch: Launch = launch
) -> Tensor:
    """See LayerOps.convolve; all are contiguous."""
    num_tokens = rows.shape[0]
    num_channels, num_taps = conv.weight.shape
    output = rows.new_empty((num_tokens, num_channels))
    launch(
        convolve_rows,
        (num_tokens, triton.cdiv(num_channels, _BLOCK)),
        rows,
        conv.weight,
        conv.weight if conv.bias is None else conv.bias,
        windows,
        slots.cu_query_lens,
        slots.sequences,
        slots.reads,
        slots.writes,
        slots.kept,
        output,
        CHANNELS=num_channels,
        NUM_TAPS=num_taps,
        HAS_BIAS=conv.bias is not None,
        BLOCK=_BLOCK,
        num_warps=2,
    )
    return output
