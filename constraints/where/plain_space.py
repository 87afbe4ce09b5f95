"""White space that a mask would bring into a text, and the model would not write by itself.

Where a text has all the words that it may have, nothing but white space and the end may follow, and
a model that would rather write a word takes the first character that is left to it, such as U+001E.
So texts have no control characters that count as white space; and behind their last word they have
one token of white space at most, which is how such a model ends a word. What an expression names by
itself, in a phrase or a pattern, stays as it is.
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
    Not,
    OneOf,
    StartsWith,
    StopsAt,
    StopsBefore,
    all_of,
)

Bits = npt.NDArray[np.uint8]  # by token, little-endian

SPACE = frozenset(chr(each) for first, last in WHITESPACE for each in range(first, last + 1))
CONTROL_SPACE = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
# Escapes of a pattern that may name a character by its number, and those that name one.
_NUMBERED = re.compile(r"\\[xuUN0-7]")
_ESCAPED = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\v": "\x0b", "\\f": "\x0c"}


def named_space(expression: Expression) -> frozenset[str]:
    """White space that phrases and patterns name."""
    return frozenset(char for atom in atoms(expression) for char in _named(atom)) & SPACE


def _named(atom: Expression) -> Iterator[str]:
    match atom:
        case OneOf(phrases) | StartsWith(phrases) | EndsWith(phrases):
            yield from "".join(phrases)
        case StopsAt(phrases) | StopsBefore(phrases):
            yield from "".join(phrases)
        case Contains(phrase):
            yield from phrase
        case Matches(pattern):
            yield from pattern
            yield from SPACE if _NUMBERED.search(pattern) else ()
            yield from (char for escape, char in _ESCAPED.items() if escape in pattern)
            if "\\s" in pattern:
                yield from SPACE - frozenset(CONTROL_SPACE)


def without_control_space(expression: Expression) -> Expression:
    """The expression of its texts that have no control space but what it names."""
    named = named_space(expression)
    absent = [Not(Contains(char)) for char in CONTROL_SPACE if char not in named]
    return all_of((expression, *absent))


@dataclass(frozen=True, slots=True, eq=False)
class ClosingSpace:
    """Tokens of white space alone: `every` one, and those that the expression does not name."""

    every: Bits
    unnamed: Bits

    @classmethod
    def of(cls, vocabulary: Vocabulary, expression: Expression) -> "ClosingSpace | None":
        """None: the expression counts no words."""
        if counter_of(Measure.WORDS, expression) is None:
            return None
        named = named_space(expression)
        return cls(_tokens_of(vocabulary, SPACE), _tokens_of(vocabulary, SPACE - named))

    def cleared(self, mask: Bits) -> Bits:
        """The mask behind a complete text: where no more words may follow, nor does white space."""
        more = mask & ~self.every[: len(mask)]
        return mask if more.any() else mask & ~self.unnamed[: len(mask)]


@kept_with_vocabulary(16)
def _tokens_of(vocabulary: Vocabulary, chars: frozenset[str]) -> Bits:
    """The tokens that begin texts of these characters alone."""
    spelled = [char.encode() for char in chars]
    whole = _any_of(spelled)
    begun = _any_of([each[:cut] for each in spelled for cut in range(1, len(each))])
    pattern = re.compile(b"(%b)*(%b)?" % (whole, begun))
    bits = np.zeros(32 * vocabulary.num_words, dtype=np.bool_)
    bits[: len(vocabulary.tokens)] = [
        bool(token) and pattern.fullmatch(token) is not None for token in vocabulary.tokens
    ]
    return np.packbits(bits, bitorder="little")


def _any_of(texts: list[bytes]) -> bytes:
    """A pattern; of no text it matches none."""
    return b"|".join(re.escape(text) for text in sorted(filter(None, texts))) or b"(?!)"
