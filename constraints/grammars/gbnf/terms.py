"""Grammars in GBNF as values.

Term = Chars | Text | Name | Sequence | Choice | Repeat | Terminal
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from constraints.where.code_points import Ranges


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set that is not empty; no surrogates."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Text:
    """These very characters, or the empty text."""

    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """What a rule stands for. position: where it is mentioned."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    options: tuple["Term", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `least` times to `most`, None: without end."""

    part: "Term"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Terminal:
    """A place in a grammar that a lexer is to read as one piece; equal to none but itself."""

    term: "Term"


Term = Chars | Text | Name | Sequence | Choice | Repeat | Terminal

EMPTY = Text("")


def sequence(parts: Iterable[Term]) -> Term:
    """The parts one after the other, without those that are empty."""
    kept = tuple(part for part in parts if part != EMPTY)
    return kept[0] if len(kept) == 1 else Sequence(kept) if kept else EMPTY


def choice(options: Iterable[Term]) -> Term:
    """One of the options, of which there is at least one."""
    kept = tuple(options)
    return kept[0] if len(kept) == 1 else Choice(kept)


def children(term: Term) -> tuple[Term, ...]:
    """The terms that a term is made of; a terminal is one piece."""
    match term:
        case Sequence(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part):
            return (part,)
        case _:
            return ()


def names(term: Term) -> Iterator[Name]:
    """All rules that are mentioned in a term, in order, outside of terminals."""
    if isinstance(term, Name):
        yield term
    for child in children(term):
        yield from names(child)
