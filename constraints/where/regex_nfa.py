r"""Regular expressions in Python's syntax as NFAs, parsed by Python's own parser.

Edges read a character of a set, or nothing (epsilon). An epsilon edge may have a condition: on the
adjacent characters (`\b`, `^`, `$`), or that another part ends here (lookbehind) or begins here
(lookahead). Backreferences, atomic groups and lookahead within a lookaround are out of reach.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from re import _constants as ops
from re import _parser as reader
from typing import Any

from constraints.where.code_points import NUM_CODE_POINTS, Ranges
from constraints.where.limits import OutOfReach, TooManyStates
from constraints.where.regex_char_sets import matched, word_characters

# The most states of a pattern with its repeats written out.
_MAX_PARTS = 4000
# Flags that concern characters or the notation of a pattern.
_SERVED_FLAGS = (
    re.UNICODE | re.IGNORECASE | re.ASCII | re.DOTALL | re.VERBOSE | re.MULTILINE
).value
_EVERY: Ranges = ((0, NUM_CODE_POINTS - 1),)
_NEWLINE: Ranges = ((10, 10),)
_NO_NEWLINE: Ranges = ((0, 9), (11, NUM_CODE_POINTS - 1))
_ALL_PAIRS = frozenset((before, after) for before in (False, True) for after in (False, True))
_NOT_BEHIND = frozenset(pair for pair in _ALL_PAIRS if not pair[0])
_NOT_AHEAD = frozenset(pair for pair in _ALL_PAIRS if not pair[1])
_ONE_SIDE = frozenset({(True, False), (False, True)})


@dataclass(frozen=True, slots=True)
class Boundary:
    """A condition on the adjacent characters.

    known: the number of the set that they are in or not; beyond the text's edges: not in it
    pairs: (whether the one before is in it, whether the one behind is) for which it holds
    fits_empty: whether it may hold in the empty text
    """

    known: int
    pairs: frozenset[tuple[bool, bool]]
    fits_empty: bool = True


@dataclass(frozen=True, slots=True)
class Lookaround:
    """A lookahead or lookbehind: whether text there can be read from `start` to `final`."""

    is_ahead: bool
    is_negated: bool
    start: int
    final: int


Condition = Boundary | Lookaround


@dataclass(slots=True, eq=False)
class Nfa:
    """An NFA over sets of characters; state 0 is the start.

    epsilon_edges: by state, (number of a condition or None, state)
    char_edges:    by state, (number of a set, state)
    conditions:    those within a lookaround come before it
    """

    final: int
    epsilon_edges: list[list[tuple[int | None, int]]]
    char_edges: list[tuple[int, int] | None]
    sets: dict[Ranges, int]
    conditions: list[Condition]


def read(pattern: str) -> Nfa:
    """The NFA of the texts that re.fullmatch matches. Raises OutOfReach."""
    try:
        parsed = reader.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise OutOfReach(f"pattern {pattern!r}: {error}") from error
    flags = int(parsed.state.flags)
    if flags & ~_SERVED_FLAGS:
        raise OutOfReach(f"flags in the pattern {pattern!r}")
    builder = _Builder()
    builder.parts.final = builder.sequence(parsed, 0, flags)
    return builder.parts


class _Builder:
    """Builds the NFA item by item."""

    def __init__(self) -> None:
        self.parts = Nfa(0, [[]], [None], {}, [])
        self._num_lookarounds = 0  # nested around the current item

    def sequence(self, items: Iterable[Any], start: int, flags: int) -> int:
        """Add the items in sequence behind `start`; returns the last state."""
        for op, argument in items:
            start = self._item(op, argument, start, flags)
        return start

    def _state(self) -> int:
        if len(self.parts.epsilon_edges) > _MAX_PARTS:
            raise TooManyStates("a pattern of too many parts")
        self.parts.epsilon_edges.append([])
        self.parts.char_edges.append(None)
        return len(self.parts.epsilon_edges) - 1

    def _pass(self, start: int, end: int, condition: int | None = None) -> None:
        self.parts.epsilon_edges[start].append((condition, end))

    def _set(self, ranges: Ranges) -> int:
        return self.parts.sets.setdefault(ranges, len(self.parts.sets))

    def _read(self, ranges: Ranges, start: int) -> int:
        end = self._state()
        # A state has one character edge: another one begins in a new state.
        begin = self._state()
        self._pass(start, begin)
        self.parts.char_edges[begin] = (self._set(ranges), end)
        return end

    def _item(self, op: Any, argument: Any, start: int, flags: int) -> int:
        if op is ops.SUBPATTERN:
            _, on, off, items = argument
            # `(?a:...)` replaces Unicode's rules, and vice versa.
            if on & (re.ASCII | re.UNICODE):
                off |= re.ASCII | re.UNICODE
            return self.sequence(items, start, flags & ~off | on)
        if op is ops.BRANCH:
            return self._branch(argument[1], start, flags)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            return self._repeat(argument, start, flags)
        if op is ops.AT:
            return self._at(argument, start, flags)
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            is_ahead = argument[0] > 0
            return self._lookaround(argument[1], start, flags, is_ahead, op is ops.ASSERT_NOT)
        return self._read(matched(op, argument, flags), start)

    def _branch(self, options: Sequence[Iterable[Any]], start: int, flags: int) -> int:
        ends = []
        for option in options:
            begin = self._state()
            self._pass(start, begin)
            ends.append(self.sequence(option, begin, flags))
        joined = self._state()
        for end in ends:
            self._pass(end, joined)
        return joined

    def _repeat(self, argument: Any, start: int, flags: int) -> int:
        least, most, items = argument
        for _ in range(least):
            start = self.sequence(items, start, flags)
        if most is ops.MAXREPEAT:
            loop = self._state()
            self._pass(start, loop)
            self._pass(self.sequence(items, loop, flags), loop)
            after = self._state()
            self._pass(loop, after)
            return after
        end = self._state()
        for _ in range(int(most) - least):
            self._pass(start, end)
            # A new state for each repeat, or the loops of one would be entered by the next.
            begin = self._state()
            self._pass(start, begin)
            start = self.sequence(items, begin, flags)
        self._pass(start, end)
        return end

    def _at(self, where: Any, start: int, flags: int) -> int:
        is_of_lines = bool(flags & re.MULTILINE)
        if where is ops.AT_BEGINNING_STRING or (where is ops.AT_BEGINNING and not is_of_lines):
            return self._boundary(_EVERY, _NOT_BEHIND, start)
        if where is ops.AT_BEGINNING:
            return self._boundary(_NO_NEWLINE, _NOT_BEHIND, start)
        if where is ops.AT_END_STRING:
            return self._boundary(_EVERY, _NOT_AHEAD, start)
        if where is ops.AT_END:
            return self._line_end(start, flags, is_of_lines)
        words = word_characters(bool(flags & re.ASCII))
        if where is ops.AT_BOUNDARY:
            return self._boundary(words, _ONE_SIDE, start)
        if where is ops.AT_NON_BOUNDARY:
            # In older Pythons it does not match in an empty text.
            fits_empty = re.fullmatch(r"\B", "") is not None
            return self._boundary(words, _ALL_PAIRS - _ONE_SIDE, start, fits_empty)
        raise OutOfReach(f"{where} in a pattern")

    def _boundary(
        self,
        ranges: Ranges,
        pairs: frozenset[tuple[bool, bool]],
        start: int,
        fits_empty: bool = True,
    ) -> int:
        self.parts.conditions.append(Boundary(self._set(ranges), pairs, fits_empty))
        end = self._state()
        self._pass(start, end, len(self.parts.conditions) - 1)
        return end

    def _line_end(self, start: int, flags: int, is_of_lines: bool) -> int:
        if is_of_lines:
            return self._boundary(_NO_NEWLINE, _NOT_AHEAD, start)
        # At the end, or before the newline that is the last character.
        end = self._boundary(_EVERY, _NOT_AHEAD, start)
        if self._num_lookarounds == 0:
            items = [(ops.LITERAL, _NEWLINE[0][0]), (ops.AT, ops.AT_END_STRING)]
            self._pass(self._lookaround(items, start, flags, True, False), end)
            return end
        raise OutOfReach("`$` in a look")

    def _lookaround(
        self, items: Any, start: int, flags: int, is_ahead: bool, is_negated: bool
    ) -> int:
        if is_ahead and self._num_lookarounds:
            raise OutOfReach("looking ahead from within a look")
        if not is_ahead and len(set(items.getwidth())) > 1:
            raise OutOfReach("looking behind at texts of several lengths")
        begin = self._state()
        self._num_lookarounds += 1
        final = self.sequence(items, begin, flags)
        self._num_lookarounds -= 1
        self.parts.conditions.append(Lookaround(is_ahead, is_negated, begin, final))
        end = self._state()
        self._pass(start, end, len(self.parts.conditions) - 1)
        return end
