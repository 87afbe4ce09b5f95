"""The tokens that are the edges of a search, and the vocabulary of single bytes over which it runs.

Masks over 256 tokens take microseconds, masks over a model's vocabulary milliseconds. No legal text
is lost, since every split of a legal text into tokens is legal. Edges are sorted by how often they
lead to an end.

The engine knows special tokens by their ids alone, which are other ones here. So `in_bytes` writes
a grammar's special tokens as texts, with a character that no text has in place of the byte that
begins marks; that byte's token stands for the character.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer, TokenizerWrapper

from constraints.bitmask import Bitmask
from constraints.vocabulary import MARK_BYTE, Vocabulary, is_mark, kept_with_vocabulary

# The bytes of well-formed UTF-8.
_UTF8 = frozenset({*range(0xC0), *range(0xC2, 0xF5)})
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
    spells_utf8: every text can be spelled in these, so tokens complete whatever bytes complete
    singles:  by byte, the token that is this byte
    """

    spells_utf8: bool
    singles: tuple[int | None, ...]
    ids: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int32]

    def allowed(self, row: Bitmask) -> npt.NDArray[np.int64]:
        """The tokens that the bitmask allows: the first of each kind, then the others."""
        places = np.flatnonzero((row[self.words] >> self.shifts) & 1)
        is_first = np.ones(len(places), dtype=np.bool_)
        kinds = self.kinds[places]
        is_first[1:] = kinds[1:] != kinds[:-1]
        order: npt.NDArray[np.int64] = np.concatenate([places[is_first], places[~is_first]])
        found: npt.NDArray[np.int64] = self.ids[order]
        return found


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
    singles = tuple(single.get(byte) for byte in range(256))
    spells_utf8 = single.keys() >= _UTF8
    return Alphabet(spells_utf8, singles, ids, kinds, ids >> 5, (ids & 31).astype(np.int32))


_END_ID = 256
# The last code point, which is no character. Terminals are greedy: one that ends before a special
# token must exclude the code points that begin with the same byte, from U+100000 on.
_MARK = "\U0010ffff"
_SPECIAL = re.compile(r"^(special-\d+: )<(\[\d+\])>$", re.MULTILINE)


class _Bytes:
    """The interface of a tokenizer for llguidance."""

    tokens = (*(bytes([byte]) for byte in range(255)), _MARK.encode(), b"<end>")
    eos_token_id = _END_ID
    bos_token_id = None
    special_token_ids = (_END_ID,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


class _ByteVocabulary(Vocabulary):
    """Where each text has one spelling, and each byte a token."""

    def spell(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def byte_vocabulary() -> Vocabulary:
    """The vocabulary: token i is byte i, and one end token."""
    tokens = (*(bytes([byte]) for byte in range(256)), b"")
    backend = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=len(tokens))
    return _ByteVocabulary(tokens, (_END_ID,), backend)


def in_bytes(grammar: str) -> str:
    """The engine's grammar for this vocabulary; special tokens are in lines of their own."""
    return _SPECIAL.sub(rf'\1"{_MARK}\2"', grammar)


def as_bytes(text: bytes) -> bytes:
    """What the engine forces in this vocabulary, in its tokens."""
    return text.replace(_MARK.encode(), MARK_BYTE)
