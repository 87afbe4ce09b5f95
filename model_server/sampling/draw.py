"""The random draw: uniform numbers by (seed, position), and one token from each row of masses.

Philox 4x32-10, a counter-based generator, keeps no state, so that a token's draw is the same alone,
in a batch, after a preemption and after a restart. It runs in numpy on the host, where seeds and
positions are known before the logits are.
(Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.)

The token is found by the inverse of the cumulative distribution. Masses are whole numbers, whose
sums are exact (masses.py), so the token does not depend on the order of summation: not on the row's
width, the rows beside it, the number of threads or the device.

    masses:      | 3 | 0 | 5 | 1 |      total 9
    cumulative:    3   3   8   9        target = floor(uniform * total) in 0..8
    token:         the first whose cumulative mass exceeds the target, so never one of mass 0
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.sampling.filters import CHUNK_LEN, chunk_at, in_chunks

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)

Words = npt.NDArray[np.uint64]


def philox4x32(counter: npt.ArrayLike, key: npt.ArrayLike) -> Words:
    """Ten rounds over each counter. Every word is 32 bits wide, held in 64.

    counter: [..., 4], key: [..., 2] of the same leading shape. Returns [..., 4].
    """
    counters = np.asarray(counter, dtype=np.uint64)
    keys = np.asarray(key, dtype=np.uint64)
    c0, c1, c2, c3 = (counters[..., word] for word in range(4))
    k0, k1 = keys[..., 0], keys[..., 1]
    for _ in range(_ROUNDS):
        left, right = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c2 = (right >> _WORD_BITS) ^ c1 ^ k0, (left >> _WORD_BITS) ^ c3 ^ k1
        c1, c3 = right & _LOW_WORD, left & _LOW_WORD
        k0, k1 = (k0 + _WEYL[0]) & _LOW_WORD, (k1 + _WEYL[1]) & _LOW_WORD
    return np.stack((c0, c1, c2, c3), axis=-1)


def uniforms(seeds: npt.NDArray[np.uint64], positions: Words) -> npt.NDArray[np.float64]:
    """One number in [0, 1) of 53 random bits for each (seed, position), two 64-bit words.

    counter = (position low, position high, 0, 0), key = (seed low, seed high). The first two words
    of the block give the number. `seeds` and `positions` broadcast; the result has their shape.
    """
    seeds, positions = np.broadcast_arrays(seeds, positions)
    zero = np.zeros_like(positions)
    counter = np.stack((positions & _LOW_WORD, positions >> _WORD_BITS, zero, zero), axis=-1)
    key = np.stack((seeds & _LOW_WORD, seeds >> _WORD_BITS), axis=-1)
    words = philox4x32(counter, key)
    high, low = words[..., 0] >> np.uint64(5), words[..., 1] >> np.uint64(6)
    return (high * np.float64(2**26) + low) * np.float64(2.0**-53)


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
