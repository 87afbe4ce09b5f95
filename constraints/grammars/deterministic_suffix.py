"""The bytes that masks force, found one by one.

The engine computes them faster, but does not stop where they repeat without end.
"""

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from constraints.bitmask import Bitmask, allowed_ids
from constraints.guiding.alphabet import alphabet_of
from constraints.vocabulary import MARK_BYTE, Vocabulary
from constraints.vocabulary_cache import kept_with_vocabulary

# More bytes than are usually taken at once; a search continues from there.
MAX_FORCED_BYTES = 64


def deterministic_suffix_of(inner: LLMatcher, vocabulary: Vocabulary) -> bytes:
    """The bytes with which every legal text continues; `inner` is advanced, or breaks."""
    row: Bitmask = np.zeros(vocabulary.num_words, dtype=np.int32)
    singles = alphabet_of(vocabulary).singles
    forced = bytearray()
    while len(forced) < MAX_FORCED_BYTES and not inner.is_accepting():
        inner.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        byte = None if inner.is_error() else _only_first_byte(row, vocabulary)
        if byte is None:
            break
        token_id = singles[byte]
        if byte == MARK_BYTE[0] and token_id is None:
            token_id = _only_token(row)
            forced += b"" if token_id is None else vocabulary.tokens[token_id]
        else:
            forced.append(byte)
        if token_id is None or inner.try_consume_tokens([token_id]) != 1:
            break
    return bytes(forced)


def _only_first_byte(row: Bitmask, vocabulary: Vocabulary) -> int | None:
    """The byte with which all tokens of a mask begin; None: several bytes, or no tokens."""
    places = np.flatnonzero(row)
    if not len(places):
        return None
    word = int(row[places[0]])
    first = vocabulary.tokens[32 * int(places[0]) + (word & -word).bit_length() - 1]
    if not first:
        return None
    return None if (row & ~_beginning_with(vocabulary, first[0])).any() else first[0]


def _only_token(row: Bitmask) -> int | None:
    """The token of a mask that has no other."""
    legal = allowed_ids(row)
    return int(legal[0]) if len(legal) == 1 else None


@kept_with_vocabulary(256)
def _beginning_with(vocabulary: Vocabulary, byte: int) -> npt.NDArray[np.int32]:
    """The tokens that begin with a byte, as a mask."""
    bits = np.zeros(32 * vocabulary.num_words, dtype=np.uint8)
    bits[: len(vocabulary.tokens)] = [token[:1] == bytes([byte]) for token in vocabulary.tokens]
    return np.packbits(bits, bitorder="little").view(np.int32)
