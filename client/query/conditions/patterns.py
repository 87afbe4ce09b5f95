"""Conditions as patterns: of texts in lower case, and of numerals compared with a number.

X.lower() == "ok"       [oO][kK\\u212a]

numeral = -? digits (. digits)?      its value is exact: "0.10" is 0.1, "-0" is 0, "007" is 7
"""

import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache

from constraints.where.terms import And, Expression, IsFloat, Matches, Not, OneOf, any_of

# More letters become checks; each is a set of two characters or more: [xX].
MAX_LETTERS = 7_000
# Beyond these two planes Unicode has no letters with two cases.
_END_OF_LETTERS = 0x20000
# The lower case of Σ depends on its neighbours, and that of İ is an i with this dot.
_ODD = frozenset("σς\u0307")


def lowered(
    texts: Collection[str], *, before: bool = False, behind: bool = False
) -> Expression | None:
    """The texts whose lower case is one of these.

    before, behind: or begins, ends, with anything there
    None: there are too many letters, or odd ones
    """
    if sum(map(len, texts)) > MAX_LETTERS or not _ODD.isdisjoint("".join(texts)):
        return None
    sources = _sources()
    patterns = []
    for text in dict.fromkeys(texts):
        sets = [letter * (letter.lower() == letter) + sources.get(letter, "") for letter in text]
        if behind and text.endswith("i"):
            sets[-1] += "İ"
        if all(sets):
            patterns.append("".join(f"[{re.escape(chars)}]" for chars in sets) or "(?:)")
    if not patterns:
        return OneOf(())
    whole = "|".join(patterns)
    if before or behind:
        whole = f"{'(?s:.*)' * before}(?:{whole}){'(?s:.*)' * behind}"
    return Matches(whole)


@lru_cache(maxsize=1)
def _sources() -> Mapping[str, str]:
    """By letter the other characters that have it as their lower case."""
    sources: dict[str, str] = {}
    for char in map(chr, range(_END_OF_LETTERS)):
        letter = char.lower()
        if letter != char:
            sources[letter] = sources.get(letter, "") + char
    return sources


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
