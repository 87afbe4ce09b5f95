"""The weights of a row's tokens, in whole numbers whose sums are exact in any order.

    score -> weight = e^(score - largest score), of additions and multiplications alone
          -> mass   = the weight in units of 2**-bits, rounded

So a draw has the same bits on any device, for any width of the row and any number of threads, and
`native/sample.cpp` and `kernels/token_masses.py` make the same one: change all or none.
"""

import torch
from torch import Tensor

# Doubles hold whole numbers exactly up to here.
EXACT_BITS = 53

LOWEST = -87.3  # below it the result would be subnormal, and is 0
ROUND = 12582912.0  # 1.5 * 2**23: adding it leaves the integer in the low bits
# Of Cephes' expf.
COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def mass_bits(width: int) -> int:
    """The bits of a mass of 1 such that a row of `width` masses has a sum below 2**EXACT_BITS."""
    return EXACT_BITS - width.bit_length()


def whole_masses(weights: Tensor, bits: int) -> Tensor:
    """Weights of at most 1 in units of 2**-bits, rounded. Their dtype stays.

    The row's sum must stay below 2**(53 - bits). float32 holds the result exactly, for rounding
    leaves at most its 24 bits.
    """
    return (weights * 2.0**bits).round_()


def exp_weights(log_weights: Tensor) -> Tensor:
    """e^x for float32 x <= 0, to 2 ulp and exactly 1 at 0: `exp_of` of native/vectors.h."""
    in_range = log_weights.clamp(min=LOWEST)
    shifted = in_range * 1.44269504 + ROUND
    n = shifted - ROUND
    r = (in_range - n * 0.693359375) + n * 2.12194440e-4
    p = r * COEFFICIENTS[0] + COEFFICIENTS[1]
    for coefficient in COEFFICIENTS[2:]:
        p = p.mul_(r).add_(coefficient)
    p = p.mul_(r * r).add_(r + 1.0)
    power = shifted.view(torch.int32).add_(127).bitwise_left_shift_(23).view(torch.float32)
    return p.mul_(power).masked_fill_(log_weights < LOWEST, 0.0)
