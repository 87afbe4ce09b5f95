"""One token from each row of masses, by the inverse of the cumulative distribution.

It knows neither seeds nor filters. Masses are whole numbers and sums of whole numbers are exact, so
the token does not depend on the order of summation: not on the row's width, on the rows beside it,
on the number of threads or on the device.

    masses:      | 3 | 0 | 5 | 1 |      total 9
    cumulative:    3   3   8   9        target = floor(uniform * total) in 0..8
    token:         the first whose cumulative mass exceeds the target, so never one of mass 0
"""

import torch
from torch import Tensor

from model_server.sampling.ranking import CHUNK_LEN, chunk_at, in_chunks

# Doubles hold whole numbers exactly up to here.
EXACT_BITS = 53


def whole_masses(weights: Tensor, bits: int) -> Tensor:
    """Weights of at most 1 in units of 2**-bits, rounded. Their dtype stays.

    The row's sum must stay below 2**(53 - bits). float32 holds the result exactly, for rounding
    leaves at most its 24 bits.
    """
    return (weights * 2.0**bits).round_()


def draw(masses: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The index drawn from each row [n], and the row's total mass [n] in float64.

    masses:   [n, width] whole, row sums below 2**53; width a multiple of CHUNK_LEN
    uniforms: [n] float64 in [0, 1)
    A row of NaN, or without any mass, gives a meaningless index, within the row.
    """
    if masses.shape[-1] == CHUNK_LEN:
        cumulative = masses.cumsum(-1, dtype=torch.float64)
        totals = cumulative[:, -1:]
        return _first_above(cumulative, _target(uniforms, totals)).squeeze(-1), totals.squeeze(-1)
    chunks = in_chunks(masses)
    cumulative = chunks.sum(-1, dtype=torch.float64).cumsum(-1)  # [n, num_chunks]
    totals = cumulative[:, -1:]
    target = _target(uniforms, totals)
    chunk = _first_above(cumulative, target)
    before = cumulative.gather(1, (chunk - 1).clamp_(min=0)).masked_fill_(chunk == 0, 0.0)
    inner = chunk_at(chunks, chunk).squeeze(1).cumsum(-1, dtype=torch.float64)
    within = _first_above(inner, target - before)
    return (chunk * CHUNK_LEN + within).squeeze(-1), totals.squeeze(-1)


def _target(uniforms: Tensor, totals: Tensor) -> Tensor:
    """[n, 1], below the total: its product with a double below 1 never rounds up to itself."""
    return (uniforms.unsqueeze(-1) * totals).floor_()


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """Index of each row's first element above its target [n, 1]; the last one if none is."""
    return (cumulative <= target).sum(-1, keepdim=True).clamp(max=cumulative.shape[-1] - 1)
