r"""Rewrites patterns of JSON strings that the engine would misread.

In a string's pattern the engine takes a set with all control characters to allow every escape: it
would let `\"` pass for `[^"]`, and `\\` for `[^\\]`. A set without NUL is read right.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from constraints.grammars.patterns import Chars, Choice, Concat, Pattern, Repeat, written_set

_NUL = (0, 0)
_CONTROLS = range(0x20)
_ESCAPED = (ord('"'), ord("\\"))


def without_misread_sets(pattern: Pattern) -> Pattern:
    """The same pattern; where sets would be misread, without NUL in any set like them."""
    if any(_is_misread(chars) for chars in _sets(pattern)):
        return _mapped(pattern, _without_nul)
    return pattern


def _sets(pattern: Pattern) -> Iterator[Chars]:
    match pattern:
        case Chars():
            yield pattern
        case Concat(parts) | Choice(parts):
            for part in parts:
                yield from _sets(part)
        case Repeat(part):
            yield from _sets(part)


def _mapped(pattern: Pattern, change: Callable[[Chars], Chars]) -> Pattern:
    match pattern:
        case Chars():
            return change(pattern)
        case Concat(parts):
            return Concat(tuple(_mapped(part, change) for part in parts))
        case Choice(options):
            return Choice(tuple(_mapped(option, change) for option in options))
        case Repeat(part):
            return replace(pattern, part=_mapped(part, change))
        case _:
            return pattern


def _is_misread(chars: Chars) -> bool:
    # The members of named sets are known to the engine only.
    return bool(chars.named) or (
        not _has_escaped(chars) and all(_has(chars, code) for code in _CONTROLS)
    )


def _has_escaped(chars: Chars) -> bool:
    return all(_has(chars, code) for code in _ESCAPED)


def _has(chars: Chars, code: int) -> bool:
    return chars.negated != any(first <= code <= last for first, last in chars.ranges)


def _without_nul(chars: Chars) -> Chars:
    if chars.named:
        inner = written_set(replace(chars, folded=False))
        return Chars((), (rf"{inner}&&[^\x{{0}}]",), folded=chars.folded)
    if _has_escaped(chars) or not _has(chars, 0):
        return chars
    if chars.negated:
        return replace(chars, ranges=(_NUL, *chars.ranges))
    rest = ((max(first, 1), last) for first, last in chars.ranges if last)
    return replace(chars, ranges=tuple(rest))
