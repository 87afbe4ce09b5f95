"""Finds the smallest part of a pattern that matches nothing, for error messages.

    foo$bar  ->  $b        adjacent items; each candidate is tried as a pattern of its own

Patterns have Python's syntax. Their automata decide what matches; this module only splits them.
"""

import re
from collections.abc import Callable

from constraints.errors import ConstraintError
from constraints.where.limits import OutOfReach
from constraints.where.regex_dfa import matches

# The most states of all candidates: about a fifth of a second; makes the result deterministic.
_MAX_STATES = 1500
_MAX_ITEMS = 2000
_ANYTHING = "(?s:.*)"
_FLAGS = re.compile(r"\(\?[aimsux]+\)")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
_ATOM = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{1,3}|.)"
    r"|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)
_REPEAT = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")

# A place: text[start:end].
Span = tuple[int, int]


def unmatchable_parts(pattern: str) -> tuple[Span, ...]:
    """For a pattern that matches nothing, a part of each alternative that matches nothing.

    The whole pattern if there are too many candidates, or if it is in verbose syntax.
    """
    flags = _FLAGS.match(pattern)
    begin = flags.end() if flags else 0
    if flags and "x" in flags.group():
        return ((0, len(pattern)),)
    search = _Search(pattern, flags.group() if flags else "")
    try:
        return tuple(search.piece(option) for option in _options(pattern, begin, len(pattern)))
    except (ConstraintError, OutOfReach, RecursionError):
        return ((0, len(pattern)),)


class _Search:
    """Tries parts of one pattern, within the limit of states."""

    def __init__(self, pattern: str, flags: str) -> None:
        self._pattern = pattern
        self._flags = flags
        self._states_left = _MAX_STATES

    def piece(self, option: Span) -> Span:
        """The smallest part found of an alternative that matches nothing."""
        items = _items(self._pattern, *option)
        if not 1 < len(items) <= _MAX_ITEMS:
            return self._inside(items[0]) if items else option
        last = _first(
            len(items) - 1, lambda index: self._is_empty((option[0], items[index][1]), option)
        )
        rest = items[: last + 1]
        skipped = last - _first(
            last, lambda index: self._is_empty((rest[last - index][0], rest[-1][1]), option)
        )
        start = rest[skipped][0]
        end = rest[-1][1]
        return (start, end) if skipped < last else self._inside((start, end))

    def _inside(self, item: Span) -> Span:
        """A part of a group that matches nothing in any context."""
        group = _GROUP.match(self._pattern, item[0])
        end = _end_of_atom(self._pattern, item[0])
        if group is None or end != item[1]:
            return item
        options = _options(self._pattern, group.end(), end - 1)
        if len(options) > 1 or not self._is_empty(options[0], item):
            return item
        return self.piece(options[0])

    def _is_empty(self, piece: Span, whole: Span) -> bool:
        """Whether a part of `whole` never matches; False if the limit is reached."""
        if self._states_left <= 0:
            return False
        before = _ANYTHING if piece[0] > whole[0] else ""
        after = _ANYTHING if piece[1] < whole[1] else ""
        tried = f"{self._flags}{before}(?:{self._pattern[slice(*piece)]}){after}"
        automaton = matches(tried)
        self._states_left -= automaton.num_states
        return not automaton.accepts.any()


def _first(last: int, holds: Callable[[int], bool]) -> int:
    """The first of 0..last for which `holds`, which is monotonic and holds for the last."""
    low = 0
    high = last
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _options(pattern: str, begin: int, end: int) -> list[Span]:
    """The alternatives of a part of a pattern."""
    options = []
    start = begin
    at = begin
    while at < end:
        if pattern[at] == "|":
            options.append((start, at))
            start = at + 1
        at = _end_of_atom(pattern, at)
    return [*options, (start, end)]


def _items(pattern: str, begin: int, end: int) -> list[Span]:
    """The items of an alternative, with their repeats."""
    items = []
    at = begin
    while at < end:
        start = at
        at = _end_of_atom(pattern, at)
        repeat = _REPEAT.match(pattern, at, end)
        at = repeat.end() if repeat else at
        items.append((start, at))
    return items


def _end_of_atom(pattern: str, at: int) -> int:
    """The end of a character, an escape, a set or a group."""
    depth = 0
    while True:
        atom = _ATOM.match(pattern, at)
        if atom is None:
            return len(pattern)
        at = atom.end()
        depth += (atom.group() == "(") - (atom.group() == ")")
        if depth <= 0:
            return at
