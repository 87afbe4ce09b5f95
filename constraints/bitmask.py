"""Bitmasks over a vocabulary: a token is legal if bit `id % 32` of word `id // 32` is set."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# [ceil(vocab_size / 32)] int32
Bitmask: TypeAlias = npt.NDArray[np.int32]


def row_of(token_ids: Sequence[int] | npt.NDArray[np.int64], num_words: int) -> Bitmask:
    """A row of these tokens alone."""
    bits = np.zeros(num_words * 32, dtype=np.bool_)
    bits[np.asarray(token_ids, dtype=np.int64)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


def set_bits(row: Bitmask, token_ids: Iterable[int]) -> None:
    """Allow these tokens."""
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def is_set(row: Bitmask, token_id: int) -> bool:
    """Whether the token is allowed."""
    return bool((int(row[token_id >> 5]) >> (token_id & 31)) & 1)


def clear_bits(row: Bitmask, token_ids: Iterable[int]) -> None:
    """Forbid these tokens."""
    words = row.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))


def allowed_ids(row: Bitmask) -> npt.NDArray[np.int64]:
    """The allowed tokens, in ascending order."""
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
