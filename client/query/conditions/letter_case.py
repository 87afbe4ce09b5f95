"""Comparisons with X.lower() or X.upper(), as patterns over the characters that become a text.

    X.lower() == "ok"    [Oo][Kk\\u212a]        X.upper() == "SS"    (?:[Ss\\u017f][Ss\\u017f]|[ßẞ])

Python takes each character by itself, so this is exact; but for one: what a capital sigma becomes
in lower case depends on the letters around it, so texts with a sigma are for checks.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from constraints.where.terms import Expression, Matches, OneOf

FOLDS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"lower": str.lower, "upper": str.upper}
)
_SIGMAS = frozenset("Σσς")
# A longer pattern is a check's. A letter takes three of it or more, as [x].
_MAX_LEN = 20_000
MAX_LETTERS = _MAX_LEN // 3
# Beyond these two planes Unicode has no letters with two cases.
_END_OF_LETTERS = 0x20000
_NOTHING = "(?!)"


def one_of(fold: str, texts: Collection[str]) -> Expression | None:
    """The texts that become one of these; None where a mask cannot say it."""
    if sum(map(len, texts)) > MAX_LETTERS:
        return None
    patterns = [_pattern(fold, text) for text in texts]
    if any(pattern is None for pattern in patterns):
        return None
    possible = [pattern for pattern in patterns if pattern != _NOTHING]
    whole = "|".join(pattern for pattern in possible if pattern is not None)
    if len(whole) > _MAX_LEN:
        return None
    return Matches(whole) if possible else OneOf(())


def _pattern(fold: str, text: str) -> str | None:
    """The texts that become one text; _NOTHING: none does."""
    if fold == "lower" and _SIGMAS & set(text):
        return None
    sources = _sources(fold)
    pieces, start = [], 0
    while start < len(text):
        end = _end_of_group(text, start, sources)
        found = _ways(text[start:end], sources)
        if len(found) > _MAX_LEN:
            return None
        pieces.append(found)
        start = end
    return _NOTHING if _NOTHING in pieces else "".join(pieces)


def _end_of_group(text: str, start: int, sources: "_Sources") -> int:
    """Where no character becomes letters on both sides."""
    at, end = start, start + 1
    while at < end:
        lengths = (length for length in (2, 3) if sources.of(text[at : at + length]))
        end = max(end, *(min(at + length, len(text)) for length in lengths), at + 1)
        at += 1
    return end


def _ways(group: str, sources: "_Sources") -> str:
    """All that a few letters may come from."""
    ways = ["", *[_NOTHING] * len(group)]  # by how many letters are there
    for end in range(1, len(group) + 1):
        options = []
        for length in range(1, min(end, 3) + 1):
            chars, before = sources.of(group[end - length : end]), ways[end - length]
            if chars and before != _NOTHING:
                options.append(before + f"[{''.join(map(re.escape, chars))}]")
        if options:
            ways[end] = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
        if len(ways[end]) > _MAX_LEN:
            return ways[end]
    return ways[-1]


@dataclass(frozen=True, slots=True)
class _Sources:
    """What letters come from. changed: by letters, the characters that become them."""

    changed: Mapping[str, str]
    vanishing: frozenset[str]

    def of(self, letters: str) -> str:
        """The characters that become these letters: one stays what it is, or is among them."""
        itself = letters if len(letters) == 1 and letters not in self.vanishing else ""
        return itself + self.changed.get(letters, "")


@lru_cache(maxsize=2)
def _sources(fold: str) -> _Sources:
    changed: dict[str, str] = {}
    vanishing: set[str] = set()
    for char in map(chr, range(_END_OF_LETTERS)):
        letters = FOLDS[fold](char)
        if letters != char:
            changed[letters] = changed.get(letters, "") + char
            vanishing.add(char)
    return _Sources(changed, frozenset(vanishing))
