"""The tokens that are the edges of a search, sorted by how often they lead to an end."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask
from constraints.vocabulary import Vocabulary, is_mark
from constraints.vocabulary_cache import kept_with_vocabulary

# The bytes of well-formed UTF-8.
_UTF8 = frozenset({*range(0xC0), *range(0xC2, 0xF5)})
# Bytes that form a kind of their own each.
MAX_FEW = 4
# Kinds of bytes, those first that tend to lead to an end: closing, short, opening. One byte of each
# kind is tried before the other bytes of the kinds.
_KINDS = (
    *(b'"', b"}", b"]", b")", b"0123456789", b"ntfabcdeghijklmopqrsuvwxyz"),
    *(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b">", b"';", b".", b"-", b":", b"@", b",", b"[", b"{", b"("),
    *(b"/", b" ", b"\n", bytes(range(33, 127)), bytes(range(128, 256)), bytes(range(128))),
)


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The tokens of single edges, sorted by kind.

    ids:      token ids, [num_edges], at least one for each byte that a token begins with, and the
              special ones
    is_whole: every text that tokens can spell can be spelled in these
    spells_utf8: every text can be spelled in these, so tokens complete whatever bytes complete
    singles:  by byte, the token that is this byte
    """

    is_whole: bool
    spells_utf8: bool
    singles: tuple[int | None, ...]
    ids: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int32]

    def allowed(self, row: Bitmask) -> tuple[npt.NDArray[np.int64], int]:
        """The tokens that the bitmask allows: the first of each kind, then the others.

        Also returns how many are the first of their kind; all are, where there are few.
        """
        places = np.flatnonzero((row[self.words] >> self.shifts) & 1)
        is_first = np.ones(len(places), dtype=np.bool_)
        kinds = self.kinds[places]
        is_first[1:] = kinds[1:] != kinds[:-1]
        order: npt.NDArray[np.int64] = np.concatenate([places[is_first], places[~is_first]])
        return self.ids[order], len(order) if len(order) <= MAX_FEW else int(is_first.sum())


@kept_with_vocabulary(1)
def alphabet_of(vocabulary: Vocabulary) -> Alphabet:
    """The alphabet of a vocabulary: single bytes, and short tokens for bytes that have none."""
    shortest: dict[int, list[int]] = {}
    marks = []
    for token_id, token in enumerate(vocabulary.tokens):
        if is_mark(token):
            marks.append(token_id)
        if not token or is_mark(token):
            continue
        best = shortest.setdefault(token[0], [token_id])
        best_len = len(vocabulary.tokens[best[0]])
        if len(token) < best_len:
            shortest[token[0]] = [token_id]
        elif len(token) == best_len > 1 and token_id != best[0]:
            best.append(token_id)
    kind_of: dict[int, int] = {}
    for kind, members in enumerate(_KINDS):
        for byte in members:
            kind_of.setdefault(byte, kind)
    order = sorted(kind_of, key=kind_of.__getitem__)  # stable: in the order of _KINDS
    pairs = [(token_id, kind_of[byte]) for byte in order for token_id in shortest.get(byte, [])]
    # A special token is the only way on where it is legal, or one that the format has in any case.
    pairs += [(token_id, len(_KINDS)) for token_id in marks]
    ids = np.array([token_id for token_id, _ in pairs], dtype=np.int64)
    kinds = np.array([kind for _, kind in pairs], dtype=np.int64)
    single = {
        vocabulary.tokens[token_id][0]: token_id
        for token_id in ids.tolist()
        if len(vocabulary.tokens[token_id]) == 1
    }
    texts = b"".join([token for token in vocabulary.tokens if not is_mark(token)])
    is_whole = single.keys() >= set(texts)
    singles = tuple(single.get(byte) for byte in range(256))
    spells_utf8 = single.keys() >= _UTF8
    return Alphabet(
        is_whole, spells_utf8, singles, ids, kinds, ids >> 5, (ids & 31).astype(np.int32)
    )
