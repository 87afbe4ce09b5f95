"""A vocabulary of single bytes, over which searches run.

Masks over 256 tokens take microseconds, masks over a model's vocabulary milliseconds. No legal text
is lost, since every split of a legal text into tokens is legal.

The engine knows special tokens by their ids alone, which are other ones here. So `in_bytes` writes
a grammar's special tokens as texts, with a character that no text has in place of the byte that
begins marks; that byte's token stands for the character.
"""

import re
from functools import lru_cache

from llguidance import LLTokenizer, TokenizerWrapper

from constraints.vocabulary import MARK_BYTE, Vocabulary

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
    return _ByteVocabulary(tokens, (_END_ID,), "bytes", backend)


def in_bytes(grammar: str) -> str:
    """The engine's grammar for this vocabulary; special tokens are in lines of their own."""
    return _SPECIAL.sub(rf'\1"{_MARK}\2"', grammar)


def as_bytes(text: bytes) -> bytes:
    """What the engine forces in this vocabulary, in its tokens."""
    return text.replace(_MARK.encode(), MARK_BYTE)
