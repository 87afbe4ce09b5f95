"""Translates conditions on X.lower() and X.upper() into patterns of X.

    X.lower() == "ok"     [Oo][Kk\\u212a]        X.upper() == "SS"   (?:[Ss\\u017f][Ss\\u017f]|[ßẞ])
    "ok" in X.lower()     anything before it and behind

Python converts each character on its own, so this is exact. The exception is the capital sigma,
whose lower case depends on its neighbours, so texts with a sigma are checked afterwards. For
prefixes, suffixes and substrings, a character that becomes several may match partly: X.upper()
begins with "S" for `ßa`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from constraints.where.terms import Expression, Matches, OneOf

FOLDS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"lower": str.lower, "upper": str.upper}
)
_SIGMAS = frozenset("Σσς")
# The longest pattern; longer ones become checks. A letter takes three characters or more: [x].
_MAX_LEN = 20_000
MAX_LETTERS = _MAX_LEN // 3
# Beyond these two planes Unicode has no letters with two cases.
_END_OF_LETTERS = 0x20000
_ANYTHING = "(?s:.*)"
# A character becomes at most three letters, so those of it that match partly are at most two.
_MOST_LETTERS = 3
_PARTS = (1, 2)


class _Inexpressible(Exception):
    """A text with a sigma, or a pattern that is too long."""


def one_of(fold: str, texts: Collection[str]) -> Expression | None:
    """Pattern of texts that convert to one of these; None: not expressible."""
    return _any_of(texts, lambda text: _exactly(fold, text))


def beginning_with(fold: str, texts: Collection[str]) -> Expression | None:
    """Pattern of texts that convert to a text with one of these prefixes; None: not expressible."""
    return _any_of(texts, lambda text: _heads(fold, text), behind=_ANYTHING)


def ending_with(fold: str, texts: Collection[str]) -> Expression | None:
    """Pattern of texts that convert to a text with one of these suffixes; None: not expressible."""
    return _any_of(texts, lambda text: _tails(fold, text, _exactly), before=_ANYTHING)


def containing(fold: str, text: str) -> Expression | None:
    """Pattern of texts that convert to a text containing this one; None: not expressible."""

    def ways(text: str) -> list[str]:
        inside = _partly(fold, text, lambda letters, text: text in letters[1:-1])
        return [*_tails(fold, text, _heads), *inside]

    return _any_of((text,), ways, before=_ANYTHING, behind=_ANYTHING)


def _any_of(
    texts: Collection[str],
    ways: Callable[[str], Iterable[str]],
    *,
    before: str = "",
    behind: str = "",
) -> Expression | None:
    """The alternation of all ways for all texts; None if one is not expressible."""
    if sum(map(len, texts)) > MAX_LETTERS:
        return None
    try:
        patterns = dict.fromkeys(pattern for text in texts for pattern in ways(text))
    except _Inexpressible:
        return None
    whole = "|".join(patterns)
    if len(whole) > _MAX_LEN:
        return None
    if not patterns:
        return OneOf(())
    return Matches(f"{before}(?:{whole}){behind}" if before or behind else whole)


# Each returns the alternatives; an empty list: no text converts so.


def _exactly(fold: str, text: str) -> list[str]:
    if fold == "lower" and _SIGMAS & set(text):
        raise _Inexpressible
    behind = ""
    # By where the rest of the text begins, up to the next place that no character crosses.
    ways = {len(text): ""}
    for start in reversed(range(len(text))):
        options = [
            f"[{re.escape(chars)}]{ways[end]}"
            for end in range(start + 1, start + 1 + _MOST_LETTERS)
            if end in ways and (chars := _sources(fold, text[start:end]))
        ]
        if options:
            ways[start] = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
            if len(ways[start]) > _MAX_LEN:
                raise _Inexpressible
        if not _is_crossed(fold, text, start):
            if not options:
                return []
            behind = ways[start] + behind
            ways = {start: ""}
    return [behind]


def _heads(fold: str, text: str) -> list[str]:
    """Of texts that convert to this one, possibly with more behind it."""
    ways = _exactly(fold, text)
    for size in _PARTS[: len(text)]:
        last = _partly(fold, text[-size:], str.startswith)
        ways += [way + chars for chars in last for way in _exactly(fold, text[:-size])]
    return ways


def _tails(fold: str, text: str, rest: Callable[[str, str], list[str]]) -> list[str]:
    """Of texts that convert to this one, possibly with more before it; then the rest."""
    ways = rest(fold, text)
    for size in _PARTS[: len(text)]:
        first = _partly(fold, text[:size], str.endswith)
        ways += [chars + way for chars in first for way in rest(fold, text[size:])]
    return ways


def _sources(fold: str, letters: str) -> str:
    """The characters that convert to exactly these letters."""
    itself = letters if len(letters) == 1 and FOLDS[fold](letters) == letters else ""
    return itself + _changed(fold).get(letters, "")


def _is_crossed(fold: str, text: str, place: int) -> bool:
    """Whether a character converts to letters of the text on both sides of a place."""
    return any(
        _sources(fold, text[start:end])
        for start in range(max(place - 2, 0), place)
        for end in range(place + 1, start + 1 + _MOST_LETTERS)
        if end <= len(text)
    )


def _partly(fold: str, part: str, has: Callable[[str, str], bool]) -> list[str]:
    """The characters that convert to more letters than this part, as at most one alternative."""
    changed = _changed(fold).items()
    chars = "".join(
        chars for letters, chars in changed if len(letters) > len(part) and has(letters, part)
    )
    return [f"[{re.escape(chars)}]"] if chars else []


@lru_cache(maxsize=2)
def _changed(fold: str) -> Mapping[str, str]:
    """By letters, the other characters that become them."""
    changed: dict[str, str] = {}
    for char in map(chr, range(_END_OF_LETTERS)):
        letters = FOLDS[fold](char)
        if letters != char:
            changed[letters] = changed.get(letters, "") + char
    return MappingProxyType(changed)
