"""Short texts that match a pattern, built from its syntax.

They need not be the shortest. A matcher checks afterwards whether they are valid, since the engine
has more detailed tables of characters.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase, digits

from constraints.grammars.patterns import Anchor, Chars, Choice, Concat, Empty, Pattern, Repeat

MAX_LEN = 50_000
# Longer patterns are not parsed for a guess: that would take as long as compiling them.
MAX_PATTERN_LEN = 50_000
# The first of these characters in a set represents it: vocabularies spell them in few tokens, and
# JSON needs no escapes for them.
LIKED = ascii_lowercase + digits + ascii_uppercase + " _-.,:;/@#+*=()[]{}<>!?&%$'|~^`" + '"\\\n\t'
# The parts of a set in the engine's syntax.
_PIECE = re.compile(
    r"\\x\{(?P<first>[0-9A-F]+)\}(?:-\\x\{(?P<last>[0-9A-F]+)\})?"
    r"|\\(?P<sign>[pP])\{(?P<name>[^}]*)\}"
    r"|(?P<open>\[\^?)|(?P<close>\])|(?P<meet>&&)|(?P<any>\(\?s:\.\))"
)


def example_text(pattern: Pattern, min_len: int = 0) -> str | None:
    """A short text of at least `min_len` characters. None: none found."""
    found = _example(pattern, 0)
    if found is not None and len(found[0]) < min_len:
        found = _example(pattern, min_len - len(found[0]))
    return None if found is None or found[1] else found[0]


def _example(pattern: Pattern, extra_len: int) -> tuple[str, int] | None:
    """A text `extra_len` longer than necessary, and how much of `extra_len` did not fit."""
    match pattern:
        case Empty() | Anchor():
            return "", extra_len
        case Chars():
            char = _char_of(pattern)
            return None if char is None else (char, extra_len)
        case Choice(options):
            found = [
                each for option in options if (each := _example(option, extra_len)) is not None
            ]
            return min(found, key=lambda each: (each[1], len(each[0])), default=None)
        case Concat(parts):
            text = ""
            for part in parts:
                found_part = _example(part, extra_len)
                if found_part is None or len(text) > MAX_LEN:
                    return None
                text += found_part[0]
                extra_len = found_part[1]
            return text, extra_len
        case Repeat():
            return _repeated(pattern, extra_len)


def _repeated(pattern: Repeat, extra_len: int) -> tuple[str, int] | None:
    found = _example(pattern.part, 0)
    if found is None or not found[0]:
        return None if found is None and pattern.min_count else ("", extra_len)
    unit = found[0]
    count = pattern.min_count
    more = -(-extra_len // len(unit))
    if pattern.max_count is not None:
        more = min(more, pattern.max_count - count)
    count += more
    if count * len(unit) > MAX_LEN:
        return None
    return unit * count, max(0, extra_len - more * len(unit))


def _char_of(chars: Chars) -> str | None:
    match chars:
        case Chars(((first, last),), (), False, False) if first == last:
            return None if 0xD800 <= first <= 0xDFFF else chr(first)
    return _preferred_char(chars)


@lru_cache(maxsize=4096)
def _preferred_char(chars: Chars) -> str | None:
    for char in LIKED:
        if has(chars, char):
            return char
    return next(edges_of(chars), None)


def edges_of(chars: Chars) -> Iterator[str]:
    """Characters at the edges of a set given by numbers: inside, or just outside if negated."""
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
    # For each open set: whether it is negated, the intersection so far, the union so far.
    open_sets = [(False, True, False)]
    for part in _PIECE.finditer(named):
        negated, met, has = open_sets.pop()
        if part["open"]:
            open_sets += [(negated, met, has), (part["open"] == "[^", True, False)]
            continue
        if part["meet"]:
            met = met and has
            has = False
        elif part["close"]:
            is_member = (met and has) != negated
            negated, met, has = open_sets.pop() if open_sets else (False, True, False)
            has = has or is_member
        else:
            has = has or _is_in_part(part, code)
        open_sets.append((negated, met, has))
    _, met, has = open_sets[-1]
    return met and has


def _is_in_part(part: re.Match[str], code: int) -> bool:
    if part["any"]:
        return True
    if part["sign"]:
        # Every character that this Python knows satisfies the ages in use.
        is_member = part["name"].startswith("age:") or unicodedata.category(chr(code)).startswith(
            part["name"]
        )
        return is_member != (part["sign"] == "P")
    first = int(part["first"], 16)
    return first <= code <= int(part["last"] or part["first"], 16)
