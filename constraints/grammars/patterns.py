r"""Regular expressions as values; their sets of characters in the syntax of the engine.

Pattern = Empty | Chars | Concat | Choice | Repeat | Anchor
"""

from dataclasses import dataclass

from constraints.where.code_points import Ranges


@dataclass(frozen=True, slots=True)
class Empty:
    """The empty text."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set: code points, and sets with names.

    ranges:    (first, last) code points
    named:     sets in the engine's syntax, such as `\\p{L}`
    """

    ranges: Ranges
    named: tuple[str, ...] = ()
    negated: bool = False
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Concat:
    """One after the other."""

    parts: tuple["Pattern", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    options: tuple["Pattern", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `min_count` to `max_count` times, None: unbounded."""

    part: "Pattern"
    min_count: int
    max_count: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start of the text, or its end."""

    is_start: bool
    position: int


Pattern = Empty | Chars | Concat | Choice | Repeat | Anchor

EMPTY = Empty()
ANY = Chars((), negated=True)


def children(pattern: Pattern) -> tuple[Pattern, ...]:
    """The direct parts of a pattern."""
    match pattern:
        case Concat(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part):
            return (part,)
        case _:
            return ()


def written_set(chars: Chars) -> str:
    """A set in the engine's syntax; characters are written as numbers, so none is special."""
    members = "".join(
        rf"\x{{{first:X}}}" if first == last else rf"\x{{{first:X}}}-\x{{{last:X}}}"
        for first, last in chars.ranges
    ) + "".join(chars.named)
    if not members:
        return "(?s:.)" if chars.negated else r"[^\x{0}-\x{10FFFF}]"
    written = f"[{'^' if chars.negated else ''}{members}]"
    return f"(?i:{written})" if chars.folded else written
