"""White space that a mask would bring into a text, and the model would not write by itself.

Where a text has all the words that it may have, nothing but white space and the end may follow, and
a model that would rather write a word takes the first character that is left to it, such as U+001E.
So texts have no control characters that count as white space; and behind their last word they have
one token of blanks or line ends at most, which is how such a model ends a word. What an expression
names by itself, in a phrase or a pattern, stays as it is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from constraints.regex.char_sets import WHITESPACE
from constraints.vocabulary import Vocabulary, kept_with_vocabulary
from constraints.where.counter_grid import (
    NEVER,
    CounterGrid,
    Induction,
    Slacks,
    best_through,
    ways_of,
)
from constraints.where.machine import Machine, atoms
from constraints.where.terms import (
    Contains,
    EndsWith,
    Expression,
    Matches,
    Not,
    OneOf,
    StartsWith,
    StopsAt,
    StopsBefore,
    all_of,
)
from constraints.where.token_transitions import ByteTable

SPACE = frozenset(chr(each) for first, last in WHITESPACE for each in range(first, last + 1))
CONTROL_SPACE = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
# With which models end what they write.
_USUAL = frozenset(" \n")
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
    """Tokens of white space alone, and where they do not lead to any other character.

    tokens: as a bitmask, little-endian; the last character may be incomplete
    odd:    those of them that are not blanks and line ends alone
    slacks: of every place, with which another character may still follow
    """

    tokens: npt.NDArray[np.uint8]
    odd: npt.NDArray[np.uint8]
    slacks: Slacks

    @classmethod
    def of(
        cls,
        vocabulary: Vocabulary,
        machine: Machine,
        counter_grid: CounterGrid,
        table: ByteTable,
        by_state: Slacks,
        named: frozenset[str],
    ) -> "ClosingSpace":
        """by_state: the coaccessible slacks of every state between two characters."""
        # Where words are counted, no label is of white space and of other characters.
        is_space = np.zeros(machine.steps.shape[1], dtype=np.bool_)
        is_space[[machine.partition.label_of(ord(char)) for char in SPACE]] = True
        # Once more from the places behind another character, along white space alone.
        others = replace(machine, steps=np.where(is_space, 0, machine.steps))
        spaces = replace(machine, steps=np.where(is_space, machine.steps, 0))
        ways = ways_of(counter_grid, others, num_layer_counters=0)
        found, best = best_through(counter_grid, ways, by_state[None], 0)
        begun = np.full_like(by_state, NEVER)
        begun[found] = best
        followed = Induction(counter_grid, ways_of(counter_grid, spaces), begun).slacks()
        inside = table.utf8.num_places
        slacks = np.maximum(
            table.spread(others, counter_grid, by_state),
            table.spread(spaces, counter_grid, followed),
        )
        slacks[::inside] = followed
        tokens = _tokens_of(vocabulary, SPACE - named)
        return cls(tokens, tokens & ~_tokens_of(vocabulary, _USUAL), slacks)


@kept_with_vocabulary(16)
def _tokens_of(vocabulary: Vocabulary, chars: frozenset[str]) -> npt.NDArray[np.uint8]:
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
