"""How kernels are launched: one seam, so that a test may count launches instead of making them.

Triton comes with torch for CUDA and is optional. Whoever may run without it imports the modules of
kernels inside of a function, once a CUDA device is found.

Rules for every kernel here:
    values are widened to float32 right after they are loaded; bfloat16 is for memory and for the
    operands of a matrix product
    the order of a sum depends on the sequence alone, not on the batch, its padding or the grid
    nothing is read back on the host, so that a CUDA graph can capture every launch
    numbers that differ from step to step are in do_not_specialize: Triton compiles a kernel again
    for a 1 and for a multiple of 16, which takes a step a second
"""

from typing import Any, Protocol

import triton

Grid = tuple[int, ...]


class Launch(Protocol):
    """Runs a kernel over a grid. `constants` are its constexpr arguments and compiler options."""

    def __call__(self, kernel: Any, grid: Grid, /, *arguments: Any, **constants: Any) -> None: ...


def launch(kernel: Any, grid: Grid, /, *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the current device.

    Multiplications and additions are fused unless a kernel says otherwise: Triton's own default
    depends on its version, and the last bits of sums on this.
    """
    constants.setdefault("enable_fp_fusion", True)
    kernel[grid](*arguments, **constants)


def padded(width: int, least: int = 1) -> int:
    """The power of two that a dimension of a tile is filled up to."""
    return max(least, triton.next_power_of_2(width))
