"""Conditions as patterns: of texts in lower or upper case, and of numerals compared with a number.

    X.lower() == "ok"       [oO][kK\\u212a]
    X.upper() == "SS"       [SS\\u017f][Ss\\u017f], or something with an ß in it, which is checked

Python converts most characters on their own, and each to one: of these a pattern is exact. Texts
with another one (ß, the ligatures, İ, a capital sigma, whose lower case depends on its neighbours)
are possible, too, if it may become letters that are asked for.

    numeral = -? digits (. digits)?      its value is exact: "0.10" is 0.1, "-0" is 0, "007" is 7
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType

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
    patterns = [pattern for text in texts if (pattern := _folded(fold, text)) is not None]
    whole = "|".join(patterns)
    if before or behind:
        whole = f"{_ANYTHING * before}(?:{whole}){_ANYTHING * behind}"
    sufficient: Expression = Matches(whole) if patterns else OneOf(())
    # Where a text is only a part, an odd character may begin before it, or end behind it.
    is_part = before or behind
    odd = {
        char
        for char, letters in _letters(fold)[1]
        for text in texts
        if (set(letters) & set(text) if is_part else letters in text)
    }
    if not odd:
        return sufficient, sufficient
    has_odd = Matches(f"{_ANYTHING}[{''.join(sorted(odd))}]{_ANYTHING}")
    return sufficient, any_of((sufficient, has_odd))


def _folded(fold: str, text: str) -> str | None:
    """The pattern of texts that become this one, letter by letter; None: none does."""
    pattern = ""
    for letter in text:
        itself = letter * (FOLDS[fold](letter) == letter)
        chars = itself + _letters(fold)[0].get(letter, "")
        if not chars:
            return None
        pattern += f"[{re.escape(chars)}]"
    return pattern or "(?:)"


@lru_cache(maxsize=2)
def _letters(fold: str) -> tuple[Mapping[str, str], tuple[tuple[str, str], ...]]:
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
