"""Philox 4x32-10: uniform numbers that depend on (seed, position) and on nothing else.

A counter-based generator has no state to keep, so a token's draw is the same alone, in a batch,
after a preemption and after a restart. This module knows no request and no tensor; it works in
numpy on the host, since seeds and positions are known there before the logits are.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import numpy as np
import numpy.typing as npt

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
