"""The tokens of a model as bytes, which is all that masks need of a tokenizer.

The only file that reads tokenizer.json; it uses llguidance, whose masks must agree with ours.
What is computed from a vocabulary is kept as long as the vocabulary lives:

    @kept_with_vocabulary(4)
    def trie_of(vocabulary): ...        of each vocabulary the last 4 different calls
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer, TokenizerWrapper

from constraints.errors import NotEnforced
from constraints.special_tokens import HOLE, TextTokens, find_texts, special_beside

# The byte that begins a mark. No UTF-8 has it, and the engine gives it no other meaning.
MARK_BYTE = b"\xff"
_MARK = re.compile(rb"\xff\[(\d+)\]")


def mark_of(token_id: int) -> bytes:
    """The bytes for a special token: those that the engine forces where a grammar asks for it."""
    return b"\xff[%d]" % token_id


def is_mark(token: bytes) -> bool:
    """Whether a token's bytes are the mark of a special token."""
    return token.startswith(b"\xff[")


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Tokens by id.

    tokens:      each token's bytes; b"" for end tokens and unused ids. A special token is no text:
                 it has a mark, which is in no text, so only grammars that name it allow it
    end_ids:     tokens that end an output
    backend:     llguidance's tokenizer of these tokens
    speller:     the tokenizer for texts in the model's own tokens, if it differs
    kept:        values computed from it, see `kept_with_vocabulary`
    """

    tokens: tuple[bytes, ...]
    end_ids: tuple[int, ...]
    backend: LLTokenizer = field(repr=False)
    speller: LLTokenizer | None = field(default=None, repr=False)
    kept: dict[object, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def load(
        cls, tokenizer_path: Path, vocab_size: int | None, end_ids: Iterable[int]
    ) -> "Vocabulary":
        """Read tokenizer.json, and the special tokens from the files beside it.

        vocab_size: width of the model's logits, which may have more columns than there are tokens,
                    or none for the last added ones
        Raises NotEnforced for a tokenizer whose tokens are not known as bytes.
        """
        ends = tuple(dict.fromkeys(end_ids))
        speller = None
        try:
            text = tokenizer_path.read_text(encoding="utf-8")
            found = find_texts(text, ends, special_beside(tokenizer_path), vocab_size)
            del text
            if found is None:
                backend = LLTokenizer(
                    str(tokenizer_path), n_vocab=vocab_size, eos_token=list(ends) or None
                )
            else:
                # It makes no masks, so it needs none of the tables for them.
                speller = LLTokenizer(found.to_spell, n_vocab=vocab_size, slices=[])
                backend = LLTokenizer(
                    TokenizerWrapper(_Bytes(found, speller, ends)), eos_token=list(ends) or None
                )
        except (ValueError, RuntimeError, OSError) as error:
            raise NotEnforced(
                f"{tokenizer_path}: no token bytes, so no constraints: {error}"
            ) from error
        skipped = set(ends)

        def bytes_of(token_id: int) -> bytes:
            if token_id in skipped:
                return b""
            if not backend.is_special_token(token_id):
                return backend.decode_bytes([token_id])
            name = backend.decode_str([token_id])
            # The byte of marks has no name, and an id without a token has one like this.
            is_none = name in ("", f"<[{token_id}]>") or name.startswith(HOLE)
            return b"" if is_none else mark_of(token_id)

        tokens = tuple(bytes_of(token_id) for token_id in range(backend.vocab_size))
        return cls(tokens, ends, backend, speller)

    def spell(self, text: bytes) -> list[int]:
        """The bytes in the model's own tokenization, if all of them have tokens."""
        return self._spelled(text, self._reader.tokenize_bytes)

    def spell_greedily(self, text: bytes) -> list[int]:
        """In the longest tokens from left to right. Raises UnicodeDecodeError."""
        return self._spelled(text, lambda part: self.backend.greedy_tokenize(part.decode()))

    def spell_beginning(self, text: bytes) -> tuple[list[int], bytes]:
        """As `spell`, without the end that could be tokenized otherwise if more text followed."""
        *parts, last = self._parts(text)
        begun = self.spell(text[: len(text) - len(last)]) if parts else []
        last, cut, more = last.partition(MARK_BYTE)
        if cut:  # the beginning of a mark, at which the text before it ends
            return [*begun, *self.spell(last)], cut + more
        token_ids, rest = self._reader.tokenize_partial(last)
        return [*begun, *self._as_text(token_ids)], rest

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

    def _parts(self, text: bytes) -> list[bytes]:
        """Texts at even places, and the marks between them."""
        parts = []
        start = 0
        for match in _MARK.finditer(text) if MARK_BYTE in text else ():
            token_id = int(match[1])
            if token_id < len(self.tokens) and self.tokens[token_id] == match[0]:
                parts += [text[start : match.start()], match[0]]
                start = match.end()
        return [*parts, text[start:]]

    def _spelled(self, text: bytes, tokenize: Callable[[bytes], list[int]]) -> list[int]:
        token_ids: list[int] = []
        for place, part in enumerate(self._parts(text)):
            if place % 2:
                token_ids.append(int(part[2:-1]))
            elif part:
                token_ids += self._as_text(tokenize(part))
        return token_ids

    def _as_text(self, token_ids: list[int]) -> list[int]:
        """The tokens, with special ones replaced by the spelling of their names.

        The engine produces them where a text contains their names. A second tokenizer without them
        would take 130 MB and a second to load, for 128 000 tokens.
        """
        names = {
            each: self._name(each)
            for each in set(token_ids)
            if not self.tokens[each] or is_mark(self.tokens[each])
        }
        if not names:
            return token_ids
        return [piece for each in token_ids for piece in names.get(each, (each,))]

    def _name(self, token_id: int) -> list[int]:
        """The tokens of a special token's name, split in two so that neither part is a name."""
        name = self.backend.decode_str([token_id])
        if len(name) < 2:
            return [token_id]
        return [*self.spell(name[:1].encode()), *self.spell(name[1:].encode())]


class _Bytes:
    """A tokenizer as the engine takes it that is given tokens as bytes.

    So it is not read a second time, which takes seconds for 260 000 tokens.
    """

    bos_token_id = None

    def __init__(self, found: TextTokens, speller: LLTokenizer, ends: Sequence[int]) -> None:
        texts = found.texts
        size = max(speller.vocab_size, 1 + max(found.special, default=-1))
        names = {
            # Columns of the logits beyond the tokens.
            token_id: f"{HOLE}{token_id}|>"
            for token_id in range(speller.vocab_size)
            if speller.is_special_token(token_id) and token_id not in texts
        } | dict(found.special)
        self.special_token_ids = sorted(names)
        # The engine needs one.
        self.eos_token_id = next(iter((*ends, *self.special_token_ids)), 0)
        self.tokens = [
            names[token_id].encode()
            if token_id in names
            else texts[token_id]
            if token_id in texts
            else speller.decode_bytes([token_id])
            for token_id in range(size)
        ]
        self._speller = speller

    def __call__(self, text: bytes) -> list[int]:
        return self._speller.tokenize_bytes(text)


P = ParamSpec("P")
T = TypeVar("T")
_Made = Callable[Concatenate[Vocabulary, P], T]


def kept_with_vocabulary(maxsize: int) -> Callable[[_Made[P, T]], _Made[P, T]]:
    """Cache the last `maxsize` different calls for each vocabulary. For pure functions.

    Two threads may compute the same value at the same time.
    """

    def decorator(make: _Made[P, T]) -> _Made[P, T]:
        @wraps(make)
        def kept(vocabulary: Vocabulary, /, *args: P.args, **kwargs: P.kwargs) -> T:
            made = vocabulary.kept.get(make)
            if made is None:
                # A cached value that refers to the vocabulary is a cycle; the collector frees it.
                fresh = lru_cache(maxsize)(partial(make, vocabulary))
                made = vocabulary.kept.setdefault(make, fresh)
            found: T = made(*args, **kwargs)
            return found

        return kept

    return decorator


@kept_with_vocabulary(1)
def first_bytes_of(vocabulary: Vocabulary) -> npt.NDArray[np.uint8]:
    """The first byte of each token; 0 of those without text."""
    return np.array([token[0] if token else 0 for token in vocabulary.tokens], dtype=np.uint8)
