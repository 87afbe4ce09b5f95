"""White space that a mask would bring into a text, and the model would not write by itself.

Where a text has all the words that it may have, nothing but white space and the end may follow, and
a model that would rather write a word takes the first character that is left to it, such as U+001E.
So control characters that count as white space are masked unless the expression names them or
nothing else is legal; and a complete text is over where only white space could follow it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.regex.char_sets import WHITESPACE
from constraints.vocabulary import Vocabulary, kept_with_vocabulary
from constraints.where.machine import atoms, counter_of
from constraints.where.terms import (
    Contains,
    EndsWith,
    Expression,
    Matches,
    Measure,
    OneOf,
    StartsWith,
    StopsAt,
    StopsBefore,
)

SPACE = frozenset(chr(each) for first, last in WHITESPACE for each in range(first, last + 1))
CONTROL_SPACE = "\x0b\x0c\x1c\x1d\x1e\x1f"
# Escapes of a pattern that may name a character by its number, and those that name one.
_NUMBERED = re.compile(r"\\[xuUN0-7]")
_ESCAPED = {"\\v": "\x0b", "\\f": "\x0c"}


def _named(atom: Expression) -> Iterator[str]:
    """The control characters that an atom names, and others."""
    match atom:
        case OneOf(phrases) | StartsWith(phrases) | EndsWith(phrases):
            yield from "".join(phrases)
        case StopsAt(phrases) | StopsBefore(phrases):
            yield from "".join(phrases)
        case Contains(phrase):
            yield from phrase
        case Matches(pattern):
            yield from pattern
            yield from CONTROL_SPACE if _NUMBERED.search(pattern) else ()
            yield from (char for escape, char in _ESCAPED.items() if escape in pattern)


Bits = npt.NDArray[np.uint8]  # by token, little-endian


@dataclass(frozen=True, slots=True, eq=False)
class PlainSpace:
    """Tokens with control characters that the expression does not name, and those of white space.

    spaces: None: the expression counts no words
    """

    controls: Bits
    spaces: Bits | None

    @classmethod
    def of(cls, vocabulary: Vocabulary, expression: Expression) -> "PlainSpace":
        named = {char for atom in atoms(expression) for char in _named(atom)}
        controls = re.escape("".join(sorted(set(CONTROL_SPACE) - named)).encode())
        counts_words = counter_of(Measure.WORDS, expression) is not None
        return cls(
            _tokens_matching(vocabulary, b"(?s:.*[%b].*)" % controls if controls else b"(?!)"),
            _tokens_matching(vocabulary, _SPACES) if counts_words else None,
        )

    def cleared(self, mask: Bits, *, is_complete: bool) -> Bits:
        """The mask without white space that nobody asked for."""
        plain: Bits = mask & ~self.controls[: len(mask)]
        if not is_complete:
            return plain if plain.any() else mask
        is_over = self.spaces is not None and not (plain & ~self.spaces[: len(mask)]).any()
        return np.zeros_like(plain) if is_over else plain


@kept_with_vocabulary(16)
def _tokens_matching(vocabulary: Vocabulary, pattern: bytes) -> Bits:
    matches = re.compile(pattern).fullmatch
    bits = np.zeros(32 * vocabulary.num_words, dtype=np.bool_)
    bits[: len(vocabulary.tokens)] = [
        bool(token) and matches(token) is not None for token in vocabulary.tokens
    ]
    return np.packbits(bits, bitorder="little")


def _beginning(texts: list[bytes]) -> bytes:
    """A pattern of what any number of these texts begins with."""
    begun = {text[:end] for text in texts for end in range(1, len(text))}
    return b"(?:%b)*(?:%b)?" % tuple(b"|".join(map(re.escape, each)) for each in (texts, begun))


# The last character may be incomplete.
_SPACES = _beginning([char.encode() for char in sorted(SPACE)])
