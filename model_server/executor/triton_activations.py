"""The activations of MLPs and experts, and attention's gate, by Triton kernels; see LayerOps."""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from model_server.recipe.recipe import Activation
from model_server.triton_launch import Launch, launch

KINDS: dict[Activation, int] = {
    "silu": 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "relu": 3,
    "relu2": 4,
    "clamped_swiglu": 5,
}


_LAYOUTS = {"plain": 0, "gate_up": 1, "gate_up_pairs": 2}


_BLOCK = 1024


_SQRT_HALF = tl.constexpr(0.7071067811865476)


_TANH_SCALE = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)


@triton.jit
def ungated(x, KIND: tl.constexpr):
    """Of a number without a gate, in float32."""
    if KIND == 0:
        return x / (1.0 + tl.exp(-x))
    elif KIND == 1:
        return 0.5 * x * (1.0 + tl.erf(x * _SQRT_HALF))
    elif KIND == 2:
        inner = _TANH_SCALE * (x + 0.044715 * x * x * x)
        return x * (1.0 - 1.0 / (tl.exp(tl.minimum(2.0 * inner, 80.0)) + 1.0))  # (1 + tanh) / 2
    elif KIND == 3:
        return tl.maximum(x, 0.0)
    else:
        x = tl.maximum(x, 0.0)
        return x * x


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """Of a gate and what it lets pass, in float32."""
    if KIND == 5:
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0)
        return (up + 1.0) * (gate / (1.0 + tl.exp(-1.702 * gate)))
    else:
        return ungated(gate, KIND) * up


@triton.jit
def activate(
    inner, output, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LAYOUT: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """Grid (rows, ceil(WIDTH / BLOCK)): WIDTH numbers of output a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    if LAYOUT == 0:
        x = tl.load(inner + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        result = ungated(x, KIND)
    else:
        at = inner + row * 2 * WIDTH
        if LAYOUT == 1:
            gate = tl.load(at + columns, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(at + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        else:
            gate = tl.load(at + 2 * columns, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(at + 2 * columns + 1, mask=inside, other=0.0).to(tl.float32)
        result = gated(gate, up, KIND)
    tl.store(output + row * WIDTH + columns, result, mask=inside)


def activated(
    inner: Tensor, layout: str, activation: Activation, launch: Launch = launch
) -> Tensor:
    """See LayerOps.activate; `inner` is contiguous."""
    num_rows, num_columns = inner.shape
    width = num_columns if layout == "plain" else num_columns // 2
    output = inner.new_empty((num_rows, width))
    launch(
        activate,
        (num_rows, triton.cdiv(width, _BLOCK)),
        inner,
        output,
        WIDTH=width,
        BLOCK=_BLOCK,
        LAYOUT=_LAYOUTS[layout],
        KIND=KINDS[activation],
        num_warps=4,
    )
    return output


@triton.jit
def gate(
    attended, rows, output, WIDTH: tl.constexpr, ROW_LEN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Grid (rows, ceil(WIDTH / BLOCK)); the gates are the last numbers of a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    at = rows + row * ROW_LEN + (ROW_LEN - WIDTH) + columns
    gates = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(attended + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * WIDTH + columns, x / (1.0 + tl.exp(-gates)), mask=inside)


def gated_rows(attended: Tensor, rows: Tensor, launch: Launch = launch) -> Tensor:
    """See LayerOps.gate; both are contiguous."""
    num_rows, width = attended.shape
    output = attended.new_empty(attended.shape)
    launch(
        gate,
        (num_rows, triton.cdiv(width, _BLOCK)),
        attended,
        rows,
        output,
        WIDTH=width,
        ROW_LEN=rows.shape[1],
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return output
