"""The tokens of a model as bytes: all that a mask has to know of a tokenizer.

The one file that reads tokenizer.json; it asks llguidance, whose masks must agree with ours.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from constraints.errors import NotEnforced
from constraints.text_tokens import special_beside, split


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Tokens by id.

    tokens:      each token's bytes; b"" for special tokens and ids that stand for nothing, which
                 no constraint ever allows (end tokens apart)
    end_ids:     tokens that end an output
    fingerprint: of all this, for caches
    backend:     llguidance's view of the same
    speller:     what tells a text in the tokens that the model knows, where that is another
    kept:        what was made of it once (see `kept.py`); belongs to who made it
    """

    tokens: tuple[bytes, ...]
    end_ids: tuple[int, ...]
    fingerprint: str
    backend: LLTokenizer = field(repr=False)
    speller: LLTokenizer | None = field(default=None, repr=False)
    kept: dict[object, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def load(
        cls, tokenizer_path: Path, vocab_size: int | None, end_ids: Iterable[int]
    ) -> "Vocabulary":
        """Read tokenizer.json, and beside it which tokens are special.

        vocab_size: width of the model's logits, which may have more columns than there are tokens
        Raises NotEnforced for a tokenizer whose tokens cannot be told as bytes.
        """
        ends = tuple(dict.fromkeys(end_ids))

        def made(source: str) -> LLTokenizer:
            return LLTokenizer(source, n_vocab=vocab_size, eos_token=list(ends) or None)

        try:
            named_special = special_beside(tokenizer_path)
            sources = split(tokenizer_path.read_text(encoding="utf-8"), ends, named_special)
            backend = made(str(tokenizer_path) if sources is None else sources[0])
            speller = None if sources is None else made(sources[1])
        except (ValueError, RuntimeError, OSError) as error:
            raise NotEnforced(
                f"{tokenizer_path}: no token bytes, so no constraints: {error}"
            ) from error
        skipped = set(ends)
        tokens = tuple(
            b"" if i in skipped or backend.is_special_token(i) else backend.decode_bytes([i])
            for i in range(backend.vocab_size)
        )
        digest = hashlib.sha256(repr((tokens, ends)).encode()).hexdigest()
        return cls(tokens, ends, digest, backend, speller)

    def spell(self, text: bytes) -> list[int]:
        """The bytes in the tokens that the model would have read them in, if it knows them all."""
        return (self.speller or self.backend).tokenize_bytes(text)

    def spell_beginning(self, text: bytes) -> tuple[list[int], bytes]:
        """As `spell`, and the end that is left: it might be other tokens if more text followed."""
        return (self.speller or self.backend).tokenize_partial(text)

    @property
    def num_words(self) -> int:
        """Words of a bitmask."""
        return -(-len(self.tokens) // 32)
