r"""Characters that are equal when a pattern ignores case.

The engine follows Unicode. Python has more equal characters (four of them equal `i`) and fewer:
with `(?ai)` only the letters of ASCII, and a class like `\w` applies to the character itself, not
to its other case.
"""

from dataclasses import replace

from constraints.grammars.patterns import Chars
from constraints.where.code_points import Ranges
from constraints.where.regex_char_sets import in_any_case

_CASE_DISTANCE = 0x20
_LETTERS = ((0x41, 0x5A, _CASE_DISTANCE), (0x61, 0x7A, -_CASE_DISTANCE))
# I, i, and both with and without a dot.
_EVERY_I: Ranges = ((0x49, 0x49), (0x69, 0x69), (0x130, 0x131))


def folded(chars: Chars, *, is_python: bool, is_ascii: bool) -> Chars:
    """The set with the other cases of its characters."""
    if not is_python:
        return replace(chars, folded=True)
    if chars.named:
        # The engine would apply the classes to other cases, too.
        return replace(chars, ranges=in_any_case(chars.ranges, is_ascii) if chars.ranges else ())
    if is_ascii:
        return replace(chars, ranges=chars.ranges + _in_other_case(chars.ranges))
    has_i = any(
        first <= last_i and first_i <= last
        for first, last in chars.ranges
        for first_i, last_i in _EVERY_I
    )
    return replace(chars, ranges=chars.ranges + (_EVERY_I if has_i else ()), folded=True)


def _in_other_case(ranges: Ranges) -> Ranges:
    return tuple(
        (max(first, low) + distance, min(last, high) + distance)
        for first, last in ranges
        for low, high, distance in _LETTERS
        if first <= high and low <= last
    )
