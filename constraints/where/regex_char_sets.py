"""The characters that one item of a pattern matches, under its flags.

The flags are Python's IGNORECASE, ASCII and DOTALL. The rules for upper and lower case are taken
from `re` itself.
"""

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import pairwise
from re import _constants as ops
from typing import Any

import numpy as np

from constraints.where.code_points import NUM_CODE_POINTS, Ranges
from constraints.where.limits import OutOfReach

_NEWLINE: Ranges = ((10, 10),)
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


def matched(op: Any, argument: Any, flags: int) -> Ranges:
    """The characters that an item of a parsed pattern matches. Raises OutOfReach."""
    if op is ops.LITERAL:
        return _folded(((argument, argument),), flags)
    if op is ops.NOT_LITERAL:
        return _without(_folded(((argument, argument),), flags))
    if op is ops.ANY:
        return _without(() if flags & re.DOTALL else _NEWLINE)
    if op is not ops.IN:
        raise OutOfReach(f"{op} in a pattern")
    is_negated = argument[0][0] is ops.NEGATE
    # A category applies to the character itself, not to its other case.
    plain = _united(_plain(*item) for item in argument[is_negated:] if item[0] is not ops.CATEGORY)
    named = [_named(item[1], flags) for item in argument if item[0] is ops.CATEGORY]
    ranges = _united([_folded(plain, flags), *named])
    return _without(ranges) if is_negated else ranges


def word_characters(is_ascii: bool) -> Ranges:
    """The word characters, which define word boundaries."""
    return _category(_CATEGORIES["WORD"], is_ascii)


def _plain(op: Any, argument: Any) -> Ranges:
    if op is ops.RANGE:
        return (argument,)
    if op is not ops.LITERAL:
        raise OutOfReach(f"{op} in a pattern")
    return ((argument, argument),)


def _named(category: Any, flags: int) -> Ranges:
    name = str(category).removeprefix("CATEGORY_")
    known = _CATEGORIES.get(name.removeprefix("NOT_"))
    if known is None:
        raise OutOfReach(f"{name} in a pattern")
    ranges = _category(known, bool(flags & re.ASCII))
    return _without(ranges) if name.startswith("NOT_") else ranges


@cache
def _category(name: str, is_ascii: bool) -> Ranges:
    r"""The code points of \d, \s or \w in this Python."""
    code_points = np.arange(NUM_CODE_POINTS, dtype="<u4")
    everything = code_points.tobytes().decode("utf-32-le", "surrogatepass")
    found = re.finditer(f"{name}+", everything, re.ASCII if is_ascii else re.UNICODE)
    return tuple((run.start(), run.end() - 1) for run in found)


@cache
def _cased() -> tuple[int, ...]:
    """The code points that have another case."""
    every = map(chr, range(NUM_CODE_POINTS))
    return tuple(ord(c) for c in every if not c.lower() == c.upper() == c.casefold() == c)


@lru_cache(maxsize=256)
def in_any_case(ranges: Ranges, is_ascii: bool) -> Ranges:
    """All characters that match one of these when case is ignored."""
    members = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    flags = re.IGNORECASE | (re.ASCII if is_ascii else re.UNICODE)
    matches = re.compile(f"[{members}]", flags).match
    return _united([ranges, *(((code, code),) for code in _cased() if matches(chr(code)))])


def _folded(ranges: Ranges, flags: int) -> Ranges:
    if not flags & re.IGNORECASE or not ranges:
        return ranges
    return in_any_case(ranges, bool(flags & re.ASCII))


def _united(several: Iterable[Ranges]) -> Ranges:
    """The union, with adjacent ranges joined."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(piece for ranges in several for piece in ranges):
        if united and first <= united[-1][1] + 1:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return tuple(united)


def _without(ranges: Ranges) -> Ranges:
    """All other code points."""
    bounds = ((0, -1), *ranges, (NUM_CODE_POINTS, NUM_CODE_POINTS))
    pieces = ((before[1] + 1, after[0] - 1) for before, after in pairwise(bounds))
    return tuple((first, last) for first, last in pieces if first <= last)
