"""Grammars in GBNF as values.

Term = CharSet | Text | Name | Sequence | Alternation | Repetition | Terminal
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from constraints.where.code_points import Ranges


@dataclass(frozen=True, slots=True)
class CharSet:
    """One character of a set, which is not empty and has no surrogates."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly these characters; may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to a rule. position: where it is written."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """One of them."""

    options: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """From `min_count` to `max_count` times, None: unbounded."""

    part: "Term"
    min_count: int
    max_count: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Terminal:
    """A part of a grammar that the lexer reads as one token; compared by identity."""

    term: "Term"


Term = CharSet | Text | Name | Sequence | Alternation | Repetition | Terminal

EMPTY = Text("")


def sequence(parts: Iterable[Term]) -> Term:
    """The parts one after the other, without those that are empty."""
    kept = tuple(part for part in parts if part != EMPTY)
    return kept[0] if len(kept) == 1 else Sequence(kept) if kept else EMPTY


def choice(options: Iterable[Term]) -> Term:
    """One of the options, of which there is at least one."""
    kept = tuple(options)
    return kept[0] if len(kept) == 1 else Alternation(kept)


def children(term: Term) -> tuple[Term, ...]:
    """The direct parts of a term; a terminal has none."""
    match term:
        case Sequence(parts):
            return parts
        case Alternation(options):
            return options
        case Repetition(part):
            return (part,)
        case _:
            return ()


def names(term: Term) -> Iterator[Name]:
    """All references to rules in a term, in order, outside of terminals."""
    if isinstance(term, Name):
        yield term
    for child in children(term):
        yield from names(child)
