# mypy: disable-error-code="no-untyped-def"
"""Scores after temperature, and their masses: sampling/masses.py to the last bit.

Whoever calls these must be launched with enable_fp_fusion=False.
"""

import triton
import triton.language as tl

from model_server.sampling import masses

_LOWEST = tl.constexpr(masses.LOWEST)
_ROUND = tl.constexpr(masses.ROUND)
_C0, _C1, _C2, _C3, _C4, _C5 = map(tl.constexpr, masses.COEFFICIENTS)
_WHOLE = tl.constexpr(2.0**23)  # float32 of at least this are whole

_LOWER_BITS = tl.constexpr(0x7FFFFFFF)


@triton.jit
def scaled(scores, tokens, width, temperature):
    """The scores of some tokens of a row; NaN becomes +inf, which fails the row as well.

    scores: of the row; tokens: [n], -inf from `width` on; temperature: None for 1
    """
    score = tl.load(scores + tokens, mask=tokens < width, other=float("-inf"))
    if temperature is not None:
        score = tl.div_rn(score, temperature)
    return tl.where(score == score, score, float("inf"))


@triton.jit
def weights_of(log_weights):
    """e^x for x <= 0, as `exp_weights`; NaN stays."""
    is_low = log_weights < _LOWEST
    in_range = tl.where(is_low, _LOWEST, log_weights)
    shifted = in_range * 1.44269504 + _ROUND
    n = shifted - _ROUND
    r = (in_range - n * 0.693359375) + n * 2.12194440e-4
    p = r * _C0 + _C1
    p = p * r + _C2
    p = p * r + _C3
    p = p * r + _C4
    p = p * r + _C5
    p = p * (r * r) + (r + 1.0)
    power = ((shifted.to(tl.int32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(is_low, 0.0, p * power)


@triton.jit
def masses_of(score, top, unit):
    """Whole numbers in float32: weights in `unit`, rounded to the nearest, ties to even."""
    mass = weights_of(score - top) * unit
    return tl.where(mass < _WHOLE, (mass + _WHOLE) - _WHOLE, mass)


@triton.jit
def key_of(score):
    """An int64 that orders a score among others, none of them NaN."""
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ _LOWER_BITS).to(tl.int64)


@triton.jit
def score_of(key):
    """The score of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ _LOWER_BITS).to(tl.float32, bitcast=True)
