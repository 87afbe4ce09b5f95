"""Vocabularies of a few tokens."""

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from constraints.vocabulary import Vocabulary


class TokenList:
    """A tokenizer that is nothing but its tokens: texts are cut into single bytes, if known."""

    def __init__(self, tokens: Sequence[bytes], end_id: int) -> None:
        self.tokens = [token or b"<end>" for token in tokens]
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.special_token_ids = [index for index, token in enumerate(tokens) if not token]

    def __call__(self, text: bytes | str) -> list[int]:
        octets = text.encode() if isinstance(text, str) else text
        singles = [bytes([byte]) for byte in octets]
        return [self.tokens.index(single) for single in singles if single in self.tokens]


def vocabulary_of(tokens: Sequence[bytes], end_ids: Sequence[int]) -> Vocabulary:
    """A vocabulary of these very tokens."""
    backend = LLTokenizer(TokenizerWrapper(TokenList(tokens, end_ids[0])), n_vocab=len(tokens))
    return Vocabulary(tuple(tokens), tuple(end_ids), "of a test", backend)
