"""A vocabulary of single bytes, over which searches run.

Masks over 256 tokens take microseconds, masks over a model's vocabulary milliseconds. No legal text
is lost, since every split of a legal text into tokens is legal.
"""

from functools import lru_cache

from llguidance import LLTokenizer, TokenizerWrapper

from constraints.vocabulary import Vocabulary

_END_ID = 256


class _Bytes:
    """The interface of a tokenizer for llguidance."""

    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    eos_token_id = _END_ID
    bos_token_id = None
    special_token_ids = (_END_ID,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=1)
def byte_vocabulary() -> Vocabulary:
    """The vocabulary: token i is byte i, and one end token."""
    tokens = (*(bytes([byte]) for byte in range(256)), b"")
    backend = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=len(tokens))
    return Vocabulary(tokens, (_END_ID,), "bytes", backend)
