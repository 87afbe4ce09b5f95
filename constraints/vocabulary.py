"""The tokens of a model as bytes, which is all that masks need of a tokenizer.

The only file that reads tokenizer.json; it uses llguidance, whose masks must agree with ours.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from constraints.errors import NotEnforced
from constraints.text_tokens import special_beside, split


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Tokens by id.

    tokens:      each token's bytes; b"" for special tokens and unused ids, which no constraint
                 allows (except end tokens)
    end_ids:     tokens that end an output
    fingerprint: of all this, for caches
    backend:     llguidance's tokenizer of these tokens
    speller:     the tokenizer for texts in the model's own tokens, if it differs
    kept:        values computed from it, see `vocabulary_cache.py`
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
        """Read tokenizer.json, and the special tokens from the files beside it.

        vocab_size: width of the model's logits, which may have more columns than there are tokens
        Raises NotEnforced for a tokenizer whose tokens are not known as bytes.
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
        """The bytes in the model's own tokenization, if all of them have tokens."""
        return self._as_text(self._reader.tokenize_bytes(text))

    def spell_beginning(self, text: bytes) -> tuple[list[int], bytes]:
        """As `spell`, without the end that could be tokenized otherwise if more text followed."""
        token_ids, rest = self._reader.tokenize_partial(text)
        return self._as_text(token_ids), rest

    def beginning(self, text: bytes, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The first of these tokens that spell the text exactly: tokenizers may add a space."""
        num_bytes = 0
        for index, token_id in enumerate(token_ids):
            token = self.tokens[token_id]
            if not token or not text.startswith(token, num_bytes):
                return tuple(token_ids[:index])
            num_bytes += len(token)
        return tuple(token_ids)

    @property
    def num_words(self) -> int:
        """Words of a bitmask."""
        return -(-len(self.tokens) // 32)

    @property
    def _reader(self) -> LLTokenizer:
        return self.speller or self.backend

    def _as_text(self, token_ids: list[int]) -> list[int]:
        """The tokens, with special ones replaced by the spelling of their names.

        The engine produces them where a text contains their names. A second tokenizer without them
        would take 130 MB and a second to load, for 128 000 tokens.
        """
        names = {each: self._name(each) for each in set(token_ids) if not self.tokens[each]}
        if not names:
            return token_ids
        return [piece for each in token_ids for piece in names.get(each, (each,))]

    def _name(self, token_id: int) -> list[int]:
        """The tokens of a special token's name, split in two so that neither part is a name."""
        name = self.backend.decode_str([token_id])
        if len(name) < 2:
            return [token_id]
        return [*self.spell(name[:1].encode()), *self.spell(name[1:].encode())]
