"""Values as texts that masks could have written: numbers without exponents, keys in some order."""

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from typing import Any

from constraints.matcher import Language, Matcher

# The most pieces of texts that are tried.
_MAX_TRIES = 10_000


def spelt(value: Any) -> str:
    """The value as compact JSON, with the keys as they come."""
    match value:
        case dict():
            members = (f"{spelt(key)}:{spelt(each)}" for key, each in value.items())
            return f"{{{','.join(members)}}}"
        case list():
            return f"[{','.join(map(spelt, value))}]"
        case Decimal():
            return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def is_in_some_spelling(language: Language, value: Any) -> bool:
    """Whether the language has the value with its keys in some order, as far as these are tried.

    Multiples of a fraction may be written with as many decimals as it has.
    """
    tries = iter(range(_MAX_TRIES))
    return any(each.is_complete for each in _behind(language.matcher(), value, tries))


def _behind(matcher: Matcher, value: Any, tries: Iterator[int]) -> Iterator[Matcher]:
    """The matcher behind the value, for each spelling that is legal."""
    match value:
        case dict() if value:
            for opened in _advanced(matcher, "{", tries):
                yield from _behind_members(opened, value, tries)
        case list() if value:
            for opened in _advanced(matcher, "[", tries):
                yield from _behind_items(opened, value, tries)
        case Decimal():
            for zeros in ("", "0"):
                yield from _advanced(matcher, spelt(value) + zeros, tries)
        case _:
            yield from _advanced(matcher, spelt(value), tries)


def _behind_members(
    matcher: Matcher, members: dict[str, Any], tries: Iterator[int]
) -> Iterator[Matcher]:
    for key, value in members.items():
        rest = {name: each for name, each in members.items() if name != key}
        for started in _advanced(matcher, f"{spelt(key)}:", tries):
            # What follows rarely depends on how the value was spelt.
            for behind in islice(_behind(started, value, tries), 1):
                for ended in _advanced(behind, "," if rest else "}", tries):
                    yield from _behind_members(ended, rest, tries) if rest else [ended]


def _behind_items(matcher: Matcher, items: list[Any], tries: Iterator[int]) -> Iterator[Matcher]:
    for behind in _behind(matcher, items[0], tries):
        for ended in _advanced(behind, "," if items[1:] else "]", tries):
            yield from _behind_items(ended, items[1:], tries) if items[1:] else [ended]


def _advanced(matcher: Matcher, text: str, tries: Iterator[int]) -> Iterator[Matcher]:
    """The matcher behind the text, if it is legal."""
    tokens = list(text.encode())
    if next(tries, None) is None or matcher.num_legal(tokens) < len(tokens):
        return
    fork = matcher.fork()
    for token in tokens:
        fork.advance(token)
    yield fork
