"""Conditions as patterns: of texts in lower or upper case, and of numerals compared with a number.

    X.lower() == "ok"       [oO][kK\\u212a]
    X.upper() == "SS"       [SS\\u017f][Ss\\u017f], or something with an ß in it, which is checked

Python converts most characters on their own, and each to one: of these a pattern is exact. For the
others (ß, the ligatures, İ, a capital sigma, whose lower case depends on its neighbours) there are
two patterns: of texts without them, and of those with one of them somewhere, too.

    numeral = -? digits (. digits)?      its value is exact: "0.10" is 0.1, "-0" is 0, "007" is 7
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from constraints.where.terms import And, Expression, IsFloat, Matches, Not, OneOf, any_of

FOLDS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"lower": str.lower, "upper": str.upper}
)
# More letters become checks; each is a set of three characters or more: [x].
MAX_LETTERS = 7_000
# Beyond these two planes Unicode has no letters with two cases.
_END_OF_LETTERS = 0x20000
_ANYTHING = "(?s:.*)"


def folded(
    fold: str, texts: Collection[str], *, before: bool = False, behind: bool = False
) -> tuple[Expression, Expression] | None:
    """What is sufficient, and what is necessary, for a text to become one of these.

    before, behind: or one with anything there
    None: there are too many letters
    """
    if sum(map(len, texts)) > MAX_LETTERS:
        return None
    odd = {text: _odd_in(fold, text, is_part=before or behind) for text in texts}
    found = [
        dict.fromkeys(pattern for text in texts if (pattern := _folded(fold, text, chars[text])))
        for chars in (dict.fromkeys(texts, ()), odd)
    ]
    sufficient, necessary = (_any_of(patterns, before, behind) for patterns in found)
    return sufficient, necessary


def _any_of(patterns: Collection[str], before: bool, behind: bool) -> Expression:
    whole = "|".join(patterns)
    if before or behind:
        whole = f"{_ANYTHING * before}(?:{whole}){_ANYTHING * behind}"
    return Matches(whole) if patterns else OneOf(())


_Odd: TypeAlias = tuple[tuple[str, str], ...]


def _odd_in(fold: str, text: str, *, is_part: bool) -> _Odd:
    """The odd characters that become letters of the text, with all that each becomes."""
    return tuple(
        (char, letters)
        for char, letters in _letters(fold)[1]
        if (set(letters) & set(text) if is_part else letters in text)
    )


def _folded(fold: str, text: str, odd: _Odd) -> str | None:
    """The pattern of texts that become this one, some of their characters odd; None: none does.

    A letter is optional where an odd character may have brought it with the one before.
    """
    pattern = ""
    for place, letter in enumerate(text):
        itself = letter * (FOLDS[fold](letter) == letter)
        chars = itself + _letters(fold)[0].get(letter, "")
        chars += "".join(dict.fromkeys(char for char, letters in odd if letter in letters))
        if not chars:
            return None
        pair = text[place - 1 : place + 1]
        is_optional = place > 0 and any(pair in letters for _, letters in odd)
        pattern += f"[{re.escape(chars)}]" + "?" * is_optional
    return pattern or "(?:)"


@lru_cache(maxsize=2)
def _letters(fold: str) -> tuple[Mapping[str, str], _Odd]:
    """By letter the other characters that become it on their own; and what odd ones become."""
    sources: dict[str, str] = {}
    odd: list[tuple[str, str]] = []
    for char in map(chr, range(_END_OF_LETTERS)):
        letters = FOLDS[fold](char)
        if fold == "lower" and char == "Σ":
            odd += [(char, "σ"), (char, "ς")]
        elif len(letters) > 1:
            odd.append((char, letters))
        elif letters != char:
            sources[letters] = sources.get(letters, "") + char
    return MappingProxyType(sources), tuple(odd)


def numerals_related(relation: str, bound: Decimal) -> Expression:
    """The numerals with `value relation bound`; relation: <, <=, ==, !=, >=, >."""
    equal = numerals_among((bound,))
    beyond = Matches(("-" if bound < 0 else "") + _greater(bound))
    # Away from zero.
    away = "<" if bound < 0 else ">"
    if relation == "==":
        return equal
    if relation == "!=":
        return And((IsFloat(), Not(equal)))
    if relation[0] == away:
        return any_of((beyond, equal)) if "=" in relation else beyond
    rest = () if "=" in relation else (Not(equal),)
    return And((IsFloat(), Not(beyond), *rest))


def numerals_among(bounds: Iterable[Decimal]) -> Expression:
    """The numerals whose value is one of these."""
    patterns = [_equal(bound) for bound in bounds]
    return Matches("|".join(patterns)) if patterns else OneOf(())


def _digits(bound: Decimal) -> tuple[str, str]:
    """The digits before and behind the point, without needless zeros."""
    whole, _, fraction = format(abs(bound), "f").partition(".")
    return whole.lstrip("0"), fraction.rstrip("0")


def _equal(bound: Decimal) -> str:
    whole, fraction = _digits(bound)
    sign = "-?" if not bound else "-" if bound < 0 else ""
    behind = rf"\.{fraction}0*" if fraction else r"(?:\.0+)?"
    return f"{sign}{_padded(whole)}{behind}"


def _padded(whole: str) -> str:
    return f"0*{whole}" if whole else "0+"


def _greater(bound: Decimal) -> str:
    """Unsigned numerals further from zero."""
    whole, fraction = _digits(bound)
    longer = [f"0*[1-9][0-9]{{{len(whole)},}}"]
    longer += (f"0*{larger}[0-9]{{{left}}}" for larger, left in _larger(whole))
    behind = [f"{fraction}[0-9]*[1-9][0-9]*"]
    behind += (f"{larger}[0-9]*" for larger, _ in _larger(fraction))
    return rf"(?:(?:{'|'.join(longer)})(?:\.[0-9]+)?|{_padded(whole)}\.(?:{'|'.join(behind)}))"


def _larger(digits: str) -> Iterable[tuple[str, int]]:
    """Beginnings with a larger last digit, and how many digits are left behind each."""
    for index, digit in enumerate(digits):
        if digit != "9":
            yield f"{digits[:index]}[{int(digit) + 1}-9]", len(digits) - index - 1
