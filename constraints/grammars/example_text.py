"""Short texts that match a pattern, read off the pattern.

They need not be the shortest, and a matcher says afterwards whether they are right: the engine
knows more of characters than is looked at here.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase, digits

from constraints.grammars.patterns import Anchor, Chars, Choice, Concat, Empty, Pattern, Repeat

MAX_LEN = 50_000
# Patterns that are longer are not read for a guess: it would take as long as to compile them.
MAX_PATTERN_LEN = 50_000
# The first of them that a set has stands for it: what vocabularies spell in few tokens, and JSON
# without escapes.
LIKED = ascii_lowercase + digits + ascii_uppercase + " _-.,:;/@#+*=()[]{}<>!?&%$'|~^`" + '"\\\n\t'
# What is written of a set in the engine's syntax.
_PIECE = re.compile(
    r"\\x\{(?P<first>[0-9A-F]+)\}(?:-\\x\{(?P<last>[0-9A-F]+)\})?"
    r"|\\(?P<sign>[pP])\{(?P<name>[^}]*)\}"
    r"|(?P<open>\[\^?)|(?P<close>\])|(?P<meet>&&)|(?P<any>\(\?s:\.\))"
)


def example_text(pattern: Pattern, min_len: int = 0) -> str | None:
    """A short text of at least so many characters. None: none is seen."""
    found = _least(pattern, 0)
    if found is not None and len(found[0]) < min_len:
        found = _least(pattern, min_len - len(found[0]))
    return None if found is None or found[1] else found[0]


def _least(pattern: Pattern, extra_len: int) -> tuple[str, int] | None:
    """A text that is longer than need be by `extra_len`, and what of that found no place in it."""
    match pattern:
        case Empty() | Anchor():
            return "", extra_len
        case Chars():
            char = _char_of(pattern)
            return None if char is None else (char, extra_len)
        case Choice(options):
            found = [each for option in options if (each := _least(option, extra_len)) is not None]
            return min(found, key=lambda each: (each[1], len(each[0])), default=None)
        case Concat(parts):
            text = ""
            for part in parts:
                piece = _least(part, extra_len)
                if piece is None or len(text) > MAX_LEN:
                    return None
                text, extra_len = text + piece[0], piece[1]
            return text, extra_len
        case Repeat():
            return _repeated(pattern, extra_len)


def _repeated(pattern: Repeat, extra_len: int) -> tuple[str, int] | None:
    found = _least(pattern.part, 0)
    if found is None or not found[0]:
        return None if found is None and pattern.least else ("", extra_len)
    unit, count = found[0], pattern.least
    more = -(-extra_len // len(unit))
    if pattern.most is not None:
        more = min(more, pattern.most - count)
    count += more
    if count * len(unit) > MAX_LEN:
        return None
    return unit * count, max(0, extra_len - more * len(unit))


def _char_of(chars: Chars) -> str | None:
    match chars:
        case Chars(((first, last),), (), False, False) if first == last:
            return None if 0xD800 <= first <= 0xDFFF else chr(first)
    return _liked_of(chars)


@lru_cache(maxsize=4096)
def _liked_of(chars: Chars) -> str | None:
    for char in LIKED:
        if has(chars, char):
            return char
    return next(edges_of(chars), None)


def edges_of(chars: Chars) -> Iterator[str]:
    """Of characters given by number alone, those at the edges: inside, or just outside."""
    for first, last in chars.ranges:
        for code in (first - 1, last + 1) if chars.negated else (first, last):
            is_char = 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
            if is_char and has(chars, chr(code)):
                yield chr(code)


def has(chars: Chars, char: str) -> bool:
    """Whether the set has the character."""
    spellings = {char, char.lower(), char.upper()} if chars.folded else {char}
    codes = [ord(each) for each in spellings if len(each) == 1]
    is_member = any(
        any(first <= code <= last for first, last in chars.ranges)
        or any(_is_in(name, code) for name in chars.named)
        for code in codes
    )
    return is_member != chars.negated


def _is_in(named: str, code: int) -> bool:
    """Whether a set in the engine's syntax has this character."""
    # Of each set that is open: whether it is negated, what it was met with, what it has.
    open_sets = [(False, True, False)]
    for piece in _PIECE.finditer(named):
        negated, met, has = open_sets.pop()
        if piece["open"]:
            open_sets += [(negated, met, has), (piece["open"] == "[^", True, False)]
            continue
        if piece["meet"]:
            met, has = met and has, False
        elif piece["close"]:
            is_member = (met and has) != negated
            negated, met, has = open_sets.pop() if open_sets else (False, True, False)
            has = has or is_member
        else:
            has = has or _is_told(piece, code)
        open_sets.append((negated, met, has))
    _, met, has = open_sets[-1]
    return met and has


def _is_told(piece: re.Match[str], code: int) -> bool:
    if piece["any"]:
        return True
    if piece["sign"]:
        # Characters that this Python knows are of every age that is asked for.
        is_member = piece["name"].startswith("age:") or unicodedata.category(chr(code)).startswith(
            piece["name"]
        )
        return is_member != (piece["sign"] == "P")
    first = int(piece["first"], 16)
    return first <= code <= int(piece["last"] or piece["first"], 16)
