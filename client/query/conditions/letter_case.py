"""Translates conditions on X.lower() and X.upper() into patterns of X.

    X.lower() == "ok"     [Oo][Kk\\u212a]        X.upper() == "SS"   (?:[Ss\\u017f][Ss\\u017f]|[ßẞ])
    "ok" in X.lower()     anything before it and behind

Python converts each character on its own, so this is exact. The exception is the capital sigma,
whose lower case depends on its neighbours, so texts with a sigma are checked afterwards. For
prefixes, suffixes and substrings, a character that becomes several may match partly: X.upper()
begins with "S" for `ßa`.
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
# The longest pattern; longer ones become checks. A letter takes three characters or more: [x].
_MAX_LEN = 20_000
MAX_LETTERS = _MAX_LEN // 3
# Beyond these two planes Unicode has no letters with two cases.
_END_OF_LETTERS = 0x20000
_NOTHING = "(?!)"
_ANYTHING = "(?s:.*)"
# A character becomes at most three, so a part of them is at most two.
_PARTS = (1, 2)


def one_of(fold: str, texts: Collection[str]) -> Expression | None:
    """Pattern of texts that convert to one of these; None: not expressible."""
    return _any_of(texts, lambda text: [_pattern(fold, text)])


def beginning_with(fold: str, texts: Collection[str]) -> Expression | None:
    """Pattern of texts that convert to a text with one of these prefixes; None: not expressible."""
    return _any_of(texts, lambda text: _heads(fold, text), behind=_ANYTHING)


def ending_with(fold: str, texts: Collection[str]) -> Expression | None:
    """Pattern of texts that convert to a text with one of these suffixes; None: not expressible."""
    return _any_of(texts, lambda text: _tails(fold, text, _exactly), before=_ANYTHING)


def containing(fold: str, text: str) -> Expression | None:
    """Pattern of texts that convert to a text containing this one; None: not expressible."""

    def ways(text: str) -> list[str | None]:
        inside = _sources(fold).that_hold(text)
        return [*_tails(fold, text, _heads), _set(inside)]

    return _any_of((text,), ways, before=_ANYTHING, behind=_ANYTHING)


def _any_of(
    texts: Collection[str],
    ways: Callable[[str], list[str | None]],
    *,
    before: str = "",
    behind: str = "",
) -> Expression | None:
    """The alternation of all ways for all texts; None if one is not expressible."""
    if sum(map(len, texts)) > MAX_LETTERS:
        return None
    patterns: list[str] = []
    for text in texts:
        for pattern in ways(text):
            if pattern is None:
                return None
            if pattern != _NOTHING:
                patterns.append(pattern)
    whole = "|".join(dict.fromkeys(patterns))
    if len(whole) > _MAX_LEN:
        return None
    if not patterns:
        return OneOf(())
    return Matches(f"{before}(?:{whole}){behind}" if before or behind else whole)


def _exactly(fold: str, text: str) -> list[str | None]:
    return [_pattern(fold, text)]


def _heads(fold: str, text: str) -> list[str | None]:
    """Patterns of texts that convert to this one, possibly with more behind it."""
    ways = [_pattern(fold, text)]
    for size in _PARTS[: len(text)]:
        chars = _sources(fold).that_begin(text[-size:])
        ways.append(_joined(_pattern(fold, text[:-size]), _set(chars)))
    return ways


def _tails(fold: str, text: str, rest: Callable[[str, str], list[str | None]]) -> list[str | None]:
    """Patterns of texts that convert to this one, possibly with more before it; then the rest."""
    ways = rest(fold, text)
    for size in _PARTS[: len(text)]:
        chars = _set(_sources(fold).that_end(text[:size]))
        ways += [_joined(chars, way) for way in rest(fold, text[size:])]
    return ways


def _joined(one: str | None, other: str | None) -> str | None:
    if _NOTHING in (one, other):
        return _NOTHING
    return None if one is None or other is None else one + other


def _set(chars: str) -> str:
    return f"[{''.join(map(re.escape, chars))}]" if chars else _NOTHING


def _pattern(fold: str, text: str) -> str | None:
    """Pattern of the texts that convert to one text; _NOTHING: there is none."""
    if fold == "lower" and _SIGMAS & set(text):
        return None
    sources = _sources(fold)
    pieces = []
    start = 0
    while start < len(text):
        end = _end_of_group(text, start, sources)
        found = _ways(text[start:end], sources)
        if len(found) > _MAX_LEN:
            return None
        pieces.append(found)
        start = end
    return _NOTHING if _NOTHING in pieces else "".join(pieces)


def _end_of_group(text: str, start: int, sources: "_Sources") -> int:
    """The next boundary that no character's conversion crosses."""
    at = start
    end = start + 1
    while at < end:
        lengths = (length for length in (2, 3) if sources.of(text[at : at + length]))
        end = max(end, *(min(at + length, len(text)) for length in lengths), at + 1)
        at += 1
    return end


def _ways(group: str, sources: "_Sources") -> str:
    """Pattern of all sources of a few letters."""
    ways = ["", *[_NOTHING] * len(group)]  # by how many letters are there
    for end in range(1, len(group) + 1):
        options = []
        for length in range(1, min(end, 3) + 1):
            chars = sources.of(group[end - length : end])
            before = ways[end - length]
            if chars and before != _NOTHING:
                options.append(before + _set(chars))
        if options:
            ways[end] = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
        if len(ways[end]) > _MAX_LEN:
            return ways[end]
    return ways[-1]


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of letters.

    changed: by letters, the characters that become them; several: those of two letters and three
    """

    changed: Mapping[str, str]
    several: Mapping[str, str]
    vanishing: frozenset[str]

    def of(self, letters: str) -> str:
        """The characters that convert to exactly these letters."""
        itself = letters if len(letters) == 1 and letters not in self.vanishing else ""
        return itself + self.changed.get(letters, "")

    def that_begin(self, letters: str) -> str:
        """The characters that convert to these letters and more behind them."""
        return self._that(lambda whole: whole != letters and whole.startswith(letters))

    def that_end(self, letters: str) -> str:
        """The characters that convert to these letters and more before them."""
        return self._that(lambda whole: whole != letters and whole.endswith(letters))

    def that_hold(self, letters: str) -> str:
        """The characters that convert to these letters with others on both sides."""
        return self._that(lambda whole: letters in whole[1:-1])

    def _that(self, fits: Callable[[str], bool]) -> str:
        return "".join(chars for whole, chars in self.several.items() if fits(whole))


@lru_cache(maxsize=2)
def _sources(fold: str) -> _Sources:
    changed: dict[str, str] = {}
    vanishing: set[str] = set()
    for char in map(chr, range(_END_OF_LETTERS)):
        letters = FOLDS[fold](char)
        if letters != char:
            changed[letters] = changed.get(letters, "") + char
            vanishing.add(char)
    several = {letters: chars for letters, chars in changed.items() if len(letters) > 1}
    return _Sources(changed, several, frozenset(vanishing))
